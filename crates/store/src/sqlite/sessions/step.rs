//! One step of a session, in one transaction.

use jiff::Timestamp;
use oubliette_model::{Event, SessionId, Status};
use rusqlite::{Connection, OptionalExtension, params};

use super::row::{number, text, word};
use crate::sqlite::calls::begin_turn;
use crate::sqlite::convert::{Columns, time};
use crate::sqlite::tokens::{end_all, end_minted, insert};
use crate::{Decision, Result, Step, Stepped};

/// The text of events as it is stored.
pub(super) fn bodies(events: &[Event]) -> Result<Vec<(&'static str, String)>> {
    let body = |event: &Event| Ok((event.kind(), text(event)?));
    events.iter().map(body).collect()
}

/// Appends events to a session's log; where it ends then.
pub(in crate::sqlite) fn append_events(
    connection: &Connection,
    seq: i64,
    at: Timestamp,
    events: &[Event],
) -> Result<i64> {
    let start: i64 = connection
        .prepare_cached("select log_end from sessions where seq = ?1")?
        .query_row([seq], |row| row.get(0))?;
    append(connection, seq, start, at, &bodies(events)?)
}

fn append(
    connection: &Connection,
    seq: i64,
    start: i64,
    at: Timestamp,
    events: &[(&'static str, String)],
) -> Result<i64> {
    if events.is_empty() {
        return Ok(start);
    }
    let at = time(at);
    let mut insert = connection.prepare_cached(
        "insert into events (session, idx, at, kind, body) values (?1, ?2, ?3, ?4, ?5)",
    )?;
    for (index, (kind, body)) in (start..).zip(events) {
        insert.execute(params![seq, index, at, kind, body])?;
    }
    let end = start + events.len() as i64;
    connection
        .prepare_cached("update sessions set log_end = ?2 where seq = ?1")?
        .execute(params![seq, end])?;
    Ok(end)
}

/// `events` are those of the step: whoever asks for it makes them, not the one who writes.
pub(super) fn step(
    connection: &Connection,
    id: SessionId,
    step: &Step,
    events: &[(&'static str, String)],
) -> Result<Option<Stepped>> {
    let found = connection
        .prepare_cached("select seq, root_id, parent_id, log_end from sessions where id = ?1")?
        .query_row([id.to_string()], |row| {
            let parent: Option<String> = row.get(2)?;
            Ok((row.get(0)?, row.parsed(1)?, parent, row.get(3)?))
        })
        .optional()?;
    let Some((seq, root_id, parent, log_end)) = found else {
        return Ok(None);
    };
    let seq: i64 = seq;
    let parent_id: Option<SessionId> = parent.and_then(|id| id.parse().ok());
    let log_end = append(connection, seq, log_end, step.at, events)?;
    if let Some(parent) = parent_id
        && !step.to_parent.is_empty()
        && let Some(parent) = number(connection, parent)?
    {
        append_events(connection, parent, step.at, &step.to_parent)?;
    }
    change_row(connection, id, seq, step)?;
    change_input(connection, seq, step)?;
    change_decisions(connection, seq, step)?;
    if let Some(message) = step.message_done {
        let start = log_end - step.events.len() as i64;
        begin_turn(connection, message, start, &step.events)?;
        connection
            .prepare_cached("delete from messages where session = ?1 and id = ?2")?
            .execute(params![seq, message])?;
    }
    if step.messages_dropped {
        connection
            .prepare_cached("delete from messages where session = ?1")?
            .execute([seq])?;
    }
    if let Some(limit) = step.cost_limit {
        connection
            .prepare_cached("update sessions set cost_limit = ?2 where id = ?1")?
            .execute(params![SessionId::to_string(&root_id), limit])?;
    }
    Ok(Some(Stepped {
        log_end,
        root_id,
        parent_id,
    }))
}

fn change_row(connection: &Connection, id: SessionId, seq: i64, step: &Step) -> Result<()> {
    if let Some(status) = step.status {
        let ended = status.is_ended().then(|| time(step.at));
        connection
            .prepare_cached(
                "update sessions set status = ?2, ended_at = ?3, updated_at = ?4 where seq = ?1",
            )?
            .execute(params![seq, status.as_str(), ended, time(step.at)])?;
    }
    if let Some(waiting) = &step.waiting {
        let waiting = waiting.as_ref().map(text).transpose()?;
        connection
            .prepare_cached("update sessions set waiting = ?2 where seq = ?1")?
            .execute(params![seq, waiting])?;
    }
    if let Some(error) = &step.error {
        connection
            .prepare_cached("update sessions set error = ?2 where seq = ?1")?
            .execute(params![seq, error])?;
    }
    if let Some((usage, cost)) = &step.usage {
        connection
            .prepare_cached("update sessions set usage = ?2, cost_usd = ?3 where seq = ?1")?
            .execute(params![seq, text(usage)?, cost])?;
    }
    if let Some(name) = &step.agent_session_id {
        connection
            .prepare_cached("update sessions set agent_session_id = ?2 where seq = ?1")?
            .execute(params![seq, name])?;
    }
    if let Some(key) = &step.key {
        connection
            .prepare_cached("update sessions set key_hash = ?2 where seq = ?1")?
            .execute(params![seq, key.as_bytes()])?;
    }
    if let Some(live) = &step.live {
        connection
            .prepare_cached(
                "update sessions set live = ?2, key_hash = iif(?2 is null, null, key_hash)
                 where seq = ?1",
            )?
            .execute(params![seq, live])?;
    }
    if matches!(step.live, Some(None)) {
        end_minted(connection, id)?;
    }
    if step.status.is_some_and(Status::is_ended) {
        end_all(connection, id, step.at)?;
    }
    if let Some((token, hash)) = &step.token {
        insert(connection, token, *hash)?;
    }
    if step.turn_begun {
        connection
            .prepare_cached("update sessions set turns = turns + 1 where seq = ?1")?
            .execute([seq])?;
    }
    if step.wanted_done {
        connection
            .prepare_cached("update sessions set wanted = null where seq = ?1")?
            .execute([seq])?;
    }
    Ok(())
}

fn change_input(connection: &Connection, seq: i64, step: &Step) -> Result<()> {
    // Without an agent there is nobody to have it.
    if matches!(step.live, Some(None)) {
        connection
            .prepare_cached("delete from agent_input where session = ?1")?
            .execute([seq])?;
    }
    if let Some(taken) = step.input_taken {
        connection
            .prepare_cached("delete from agent_input where session = ?1 and at < ?2")?
            .execute(params![seq, taken as i64])?;
    }
    for (at, bytes) in &step.input {
        connection
            .prepare_cached("insert into agent_input (session, at, bytes) values (?1, ?2, ?3)")?
            .execute(params![seq, *at as i64, bytes])?;
    }
    Ok(())
}

fn change_decisions(connection: &Connection, seq: i64, step: &Step) -> Result<()> {
    for decision in &step.decisions {
        let Decision {
            request_id,
            kind,
            detail,
            deadline,
            ..
        } = decision;
        connection
            .prepare_cached(
                "insert into decisions (session, request_id, kind, detail, deadline)
                 values (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                seq,
                request_id,
                word(kind)?,
                detail,
                time(*deadline)
            ])?;
    }
    for request in &step.decisions_done {
        connection
            .prepare_cached("delete from decisions where session = ?1 and request_id = ?2")?
            .execute(params![seq, request])?;
    }
    Ok(())
}
