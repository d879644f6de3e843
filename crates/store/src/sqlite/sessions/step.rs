//! Commits one step of a session in one transaction.

use jiff::Timestamp;
use oubliette_model::{Event, SessionId, Status};
use rusqlite::{Connection, OptionalExtension, params};

use super::row::find_seq;
use super::spawn::count_queued_bytes;
use crate::sqlite::calls::record_turn_start;
use crate::sqlite::checkpoints::record as record_checkpoint;
use crate::sqlite::convert::{ReadColumns, enum_to_string, to_json, to_millis};
use crate::sqlite::tokens::{delete_agent_token, insert as insert_token, revoke_session_tokens};
use crate::{CommittedStep, PendingDecision, Result, SessionStep, StopRequest};

/// Serialises events to their kind and stored JSON.
pub(super) fn serialize(events: &[Event]) -> Result<Vec<(&'static str, String)>> {
    let serialize_one = |event: &Event| Ok((event.kind(), to_json(event)?));
    events.iter().map(serialize_one).collect()
}

/// Appends events to the log of a session and returns the new end of the log.
pub(in crate::sqlite) fn append_events(
    connection: &Connection,
    seq: i64,
    at: Timestamp,
    events: &[Event],
) -> Result<i64> {
    let start: i64 = connection
        .prepare_cached("select log_end from sessions where seq = ?1")?
        .query_row([seq], |row| row.get(0))?;
    append_serialized(connection, seq, start, at, &serialize(events)?)
}

fn append_serialized(
    connection: &Connection,
    seq: i64,
    start: i64,
    at: Timestamp,
    events: &[(&'static str, String)],
) -> Result<i64> {
    if events.is_empty() {
        return Ok(start);
    }
    let at = to_millis(at);
    let mut insert = connection.prepare_cached(
        "insert into events (session, idx, at, kind, body) values (?1, ?2, ?3, ?4, ?5)",
    )?;
    for (index, (kind, body)) in (start..).zip(events) {
        insert.execute(params![seq, index, at, kind, body])?;
    }
    let end = start + events.len() as i64;
    let bytes: usize = events.iter().map(|(_, body)| body.len()).sum();
    connection
        .prepare_cached(
            "update sessions set log_end = ?2, log_bytes = log_bytes + ?3 where seq = ?1",
        )?
        .execute(params![seq, end, bytes as i64])?;
    Ok(end)
}

/// `events` are the events of the step, serialised by the caller to keep this work off the writer
/// thread.
pub(super) fn commit(
    connection: &Connection,
    id: SessionId,
    step: &SessionStep,
    events: &[(&'static str, String)],
) -> Result<Option<CommittedStep>> {
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
    let log_end = append_serialized(connection, seq, log_end, step.at, events)?;
    if let Some(parent) = parent_id
        && !step.parent_events.is_empty()
        && let Some(parent) = find_seq(connection, parent)?
    {
        append_events(connection, parent, step.at, &step.parent_events)?;
    }
    update_session(connection, id, seq, step)?;
    update_input(connection, seq, step)?;
    update_decisions(connection, seq, step)?;
    if let Some(checkpoint) = &step.checkpoint {
        record_checkpoint(connection, seq, checkpoint)?;
    }
    if let Some(message) = step.taken_message {
        let start = log_end - step.events.len() as i64;
        record_turn_start(connection, message, start, &step.events)?;
        connection
            .prepare_cached("delete from messages where session = ?1 and id = ?2")?
            .execute(params![seq, message])?;
    }
    if step.drop_messages {
        connection
            .prepare_cached("delete from messages where session = ?1")?
            .execute([seq])?;
    }
    if step.taken_message.is_some() || step.drop_messages {
        count_queued_bytes(connection, seq)?;
    }
    if let Some(limit) = step.cost_limit {
        connection
            .prepare_cached("update sessions set cost_limit = ?2 where id = ?1")?
            .execute(params![SessionId::to_string(&root_id), limit])?;
    }
    Ok(Some(CommittedStep {
        log_end,
        root_id,
        parent_id,
    }))
}

fn update_session(
    connection: &Connection,
    id: SessionId,
    seq: i64,
    step: &SessionStep,
) -> Result<()> {
    if let Some(status) = step.status {
        let ended = status.is_ended().then(|| to_millis(step.at));
        connection
            .prepare_cached(
                "update sessions set status = ?2, ended_at = ?3, updated_at = ?4 where seq = ?1",
            )?
            .execute(params![seq, status.as_str(), ended, to_millis(step.at)])?;
    }
    if let Some(waiting) = &step.waiting {
        let waiting = waiting.as_ref().map(to_json).transpose()?;
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
            .execute(params![seq, to_json(usage)?, cost])?;
    }
    if let Some(agent_session_id) = &step.agent_session_id {
        connection
            .prepare_cached("update sessions set agent_session_id = ?2 where seq = ?1")?
            .execute(params![seq, agent_session_id])?;
    }
    if step.forget_conversation {
        connection
            .prepare_cached(
                "update sessions set agent_session_id = null,
                    choices = json_set(choices, '$.starts_from_transcript', json('true'))
                 where seq = ?1",
            )?
            .execute([seq])?;
    }
    if let Some(model) = &step.used_model {
        connection
            .prepare_cached(
                "update sessions set choices = json_set(choices, '$.used_model', ?2) where seq = ?1",
            )?
            .execute(params![seq, model])?;
    }
    if let Some(hosts) = &step.network_allowed {
        connection
            .prepare_cached(
                "update sessions set choices = json_set(choices, '$.network_allowed', json(?2)) where seq = ?1",
            )?
            .execute(params![seq, to_json(hosts)?])?;
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
        delete_agent_token(connection, id)?;
    }
    if step.status.is_some_and(Status::is_ended) {
        revoke_session_tokens(connection, id, step.at)?;
    }
    if let Some((token, hash)) = &step.token {
        insert_token(connection, token, *hash)?;
    }
    if step.turn_started {
        connection
            .prepare_cached("update sessions set turns = turns + 1 where seq = ?1")?
            .execute([seq])?;
    }
    if let Some(request) = step.handled_stop_request {
        let sql = match request {
            StopRequest::End => "update sessions set wanted = null where seq = ?1",
            StopRequest::Interrupt => {
                "update sessions set wanted = null where seq = ?1 and wanted = 'interrupt'"
            }
        };
        connection.prepare_cached(sql)?.execute([seq])?;
    }
    Ok(())
}

fn update_input(connection: &Connection, seq: i64, step: &SessionStep) -> Result<()> {
    if matches!(step.live, Some(None)) {
        connection
            .prepare_cached("delete from agent_input where session = ?1")?
            .execute([seq])?;
    }
    if let Some(offset) = step.input_acknowledged {
        connection
            .prepare_cached("delete from agent_input where session = ?1 and at < ?2")?
            .execute(params![seq, offset as i64])?;
    }
    for (offset, bytes) in &step.input {
        connection
            .prepare_cached("insert into agent_input (session, at, bytes) values (?1, ?2, ?3)")?
            .execute(params![seq, *offset as i64, bytes])?;
    }
    Ok(())
}

fn update_decisions(connection: &Connection, seq: i64, step: &SessionStep) -> Result<()> {
    for decision in &step.decisions {
        let PendingDecision {
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
                enum_to_string(kind)?,
                detail,
                to_millis(*deadline)
            ])?;
    }
    for request in &step.removed_decisions {
        connection
            .prepare_cached("delete from decisions where session = ?1 and request_id = ?2")?
            .execute(params![seq, request])?;
    }
    Ok(())
}
