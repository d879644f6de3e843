//! Calls from containers in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{Event, SessionId, TokenId};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::Sqlite;
use super::audit::append_audit_entry;
use super::convert::{ReadColumns, to_millis};
use super::events::stored_event;
use super::schedules;
use super::sessions::{count_queued_bytes, find, find_seq, queue_message};
use crate::{
    AuditEntry, CallStore, CallTurn, CalledTurn, MAX_KEPT_OUTCOME_BYTES, MAX_KEPT_OUTCOMES, Result,
    Session, SessionMessage, StopOutcome, StopRequest, ToolCallStart,
};

/// Returns the session that a call went to, if the call was made before.
pub(super) fn find_called_session(
    connection: &Connection,
    caller: SessionId,
    call_id: Uuid,
) -> Result<Option<Session>> {
    let child: Option<SessionId> = connection
        .prepare_cached(
            "select child.id from relay_calls
             join sessions on sessions.seq = session join sessions child on child.seq = child
             where sessions.id = ?1 and call_id = ?2",
        )?
        .query_row(params![caller.to_string(), call_id.to_string()], |row| {
            row.parsed(0)
        })
        .optional()?;
    match child {
        Some(child) => find(connection, child),
        None => Ok(None),
    }
}

/// Records a call with the message that it queued.
pub(super) fn insert_call(
    connection: &Connection,
    caller: SessionId,
    call_id: Uuid,
    child: i64,
    message: i64,
    at: Timestamp,
) -> Result<()> {
    let Some(caller) = find_seq(connection, caller)? else {
        return Ok(());
    };
    insert_row(connection, (caller, child), call_id, message, at)
}

/// Records that someone waits for the turn of a message: as a call of the session to itself.
pub(super) fn insert_wait(
    connection: &Connection,
    session: i64,
    wait_id: Uuid,
    message: i64,
    at: Timestamp,
) -> Result<()> {
    insert_row(connection, (session, session), wait_id, message, at)
}

fn insert_row(
    connection: &Connection,
    (caller, child): (i64, i64),
    call_id: Uuid,
    message: i64,
    at: Timestamp,
) -> Result<()> {
    connection
        .prepare_cached(
            "insert into relay_calls (session, call_id, child, message, created_at)
             values (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            caller,
            call_id.to_string(),
            child,
            message,
            to_millis(at)
        ])?;
    Ok(())
}

/// Records the index of the prompt event that started the turn of a message. `start` is the index of
/// the first of `events`.
pub(super) fn record_turn_start(
    connection: &Connection,
    message: i64,
    start: i64,
    events: &[Event],
) -> Result<()> {
    let prompt = events
        .iter()
        .rposition(|event| matches!(event, Event::Prompt { .. }));
    let at = start + prompt.unwrap_or_default() as i64;
    connection
        .prepare_cached("update relay_calls set prompted = ?2 where message = ?1")?
        .execute(params![message, at])?;
    schedules::record_turn_start(connection, message, at)
}

#[async_trait]
impl CallStore for Sqlite {
    async fn queue_call(
        &self,
        caller: SessionId,
        call_id: Uuid,
        to: SessionId,
        message: &SessionMessage,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>> {
        let message = message.clone();
        self.write(move |connection| {
            if let Some(existing) = find_called_session(connection, caller, call_id)? {
                return Ok(Some((existing, false)));
            }
            let is_caller_active =
                find(connection, caller)?.is_some_and(|caller| is_active(&caller));
            if !is_caller_active {
                return Ok(None);
            }
            let Some((session, resumed, message_id)) = queue_message(connection, to, &message)?
            else {
                return Ok(None);
            };
            if let Some(child) = find_seq(connection, to)? {
                insert_call(
                    connection,
                    caller,
                    call_id,
                    child,
                    message_id,
                    message.created_at,
                )?;
            }
            append_audit_entry(connection, audit)?;
            Ok(Some((session, resumed)))
        })
        .await
    }

    async fn called_turn(&self, caller: SessionId, call_id: Uuid) -> Result<Option<CalledTurn>> {
        self.read(|connection| find_call(connection, caller, call_id))
    }

    async fn record_delivery(
        &self,
        session: SessionId,
        wait_id: Uuid,
        delivery: &str,
    ) -> Result<()> {
        let delivery = delivery.to_owned();
        self.write(move |connection| {
            connection
                .prepare_cached(
                    "update relay_calls set delivery = ?3
                     where session = (select seq from sessions where id = ?1) and call_id = ?2",
                )?
                .execute(params![session.to_string(), wait_id.to_string(), delivery])?;
            Ok(())
        })
        .await
    }

    async fn stop_message(
        &self,
        session: SessionId,
        wait_id: Uuid,
        audit: Option<AuditEntry>,
    ) -> Result<Option<StopOutcome>> {
        self.write(move |connection| {
            let Some(call) = find_call(connection, session, wait_id)? else {
                return Ok(None);
            };
            let outcome = match call.turn {
                CallTurn::Answered(_) | CallTurn::Dropped => StopOutcome::Ended,
                CallTurn::Queued if drop_message_behind(connection, session, wait_id)? => {
                    StopOutcome::Dropped
                }
                CallTurn::Queued | CallTurn::Running => {
                    connection
                        .prepare_cached(
                            "update sessions set wanted = 'interrupt' where id = ?1 and wanted is null",
                        )?
                        .execute([session.to_string()])?;
                    StopOutcome::Requested
                }
            };
            append_audit_entry(connection, audit)?;
            Ok(Some(outcome))
        })
        .await
    }

    async fn begin_tool_call(
        &self,
        token: TokenId,
        call_id: Uuid,
        at: Timestamp,
    ) -> Result<ToolCallStart> {
        self.write(move |connection| {
            let key = (token.to_string(), call_id.to_string());
            let found: Option<Option<String>> = connection
                .prepare_cached(
                    "select outcome from tool_calls where token_id = ?1 and call_id = ?2",
                )?
                .query_row((&key.0, &key.1), |row| row.get(0))
                .optional()?;
            if let Some(outcome) = found {
                return Ok(outcome.map_or(ToolCallStart::Unknown, ToolCallStart::Repeated));
            }
            connection
                .prepare_cached(
                    "insert into tool_calls (token_id, call_id, begun_at) values (?1, ?2, ?3)",
                )?
                .execute(params![key.0, key.1, to_millis(at)])?;
            Ok(ToolCallStart::New)
        })
        .await
    }

    async fn end_tool_call(&self, token: TokenId, call_id: Uuid, outcome: &str) -> Result<()> {
        let outcome = outcome.to_owned();
        self.write(move |connection| {
            let (token, call_id) = (token.to_string(), call_id.to_string());
            connection
                .prepare_cached(
                    "update tool_calls set outcome = ?3, outcome_bytes = octet_length(?3)
                     where token_id = ?1 and call_id = ?2",
                )?
                .execute(params![token, call_id, outcome])?;
            drop_old_outcomes(connection, &token, &call_id)
        })
        .await
    }

    async fn trim_calls(&self, before: Timestamp) -> Result<usize> {
        self.write(move |connection| {
            let before = [to_millis(before)];
            let messages =
                connection.execute("delete from relay_calls where created_at < ?1", before)?;
            let operations =
                connection.execute("delete from tool_calls where begun_at < ?1", before)?;
            Ok(messages + operations)
        })
        .await
    }
}

fn find_call(
    connection: &Connection,
    caller: SessionId,
    call_id: Uuid,
) -> Result<Option<CalledTurn>> {
    let found = connection
        .prepare_cached(
            "select child.id, prompted, relay_calls.created_at, delivery, child.seq,
                    exists (select 1 from messages where messages.id = message)
             from relay_calls
             join sessions on sessions.seq = session
             join sessions child on child.seq = child
             where sessions.id = ?1 and call_id = ?2",
        )?
        .query_row(params![caller.to_string(), call_id.to_string()], |row| {
            let call = CalledTurn {
                child: row.parsed(0)?,
                turn: CallTurn::Dropped,
                prompted: row.get(1)?,
                created_at: row.time(2)?,
                delivery: row.get(3)?,
            };
            Ok((call, row.get(4)?, row.get(5)?))
        })
        .optional()?;
    let Some((call, seq, is_queued)) = found else {
        return Ok(None);
    };
    let turn = match (call.prompted, is_queued) {
        (Some(prompted), _) => turn_state(connection, call.child, seq, prompted)?,
        (None, true) => CallTurn::Queued,
        (None, false) => CallTurn::Dropped,
    };
    Ok(Some(CalledTurn { turn, ..call }))
}

/// Removes a message from the queue if its turn cannot be about to start: it is behind another message or
/// a running turn, or its session has ended. Otherwise the session's actor may have read it already.
fn drop_message_behind(connection: &Connection, session: SessionId, wait_id: Uuid) -> Result<bool> {
    let Some(seq) = find_seq(connection, session)? else {
        return Ok(false);
    };
    let removed = connection
        .prepare_cached(
            "delete from messages where session = ?1
                and id = (select message from relay_calls where session = ?1 and call_id = ?2)
                and (exists (select 1 from messages earlier
                             where earlier.session = ?1 and earlier.id < messages.id)
                     or exists (select 1 from sessions where seq = ?1
                                and (ended_at is not null or status in ('running', 'waiting'))))",
        )?
        .execute(params![seq, wait_id.to_string()])?;
    if removed > 0 {
        count_queued_bytes(connection, seq)?;
    }
    Ok(removed > 0)
}

/// Forgets the oldest outcomes of a token beyond what is kept, but not that of `newest`.
fn drop_old_outcomes(connection: &Connection, token: &str, newest: &str) -> Result<()> {
    connection
        .prepare_cached(
            "update tool_calls set outcome = null, outcome_bytes = 0
             where token_id = ?1 and call_id in (
                 select call_id from (
                     select call_id, row_number() over newest_first as place,
                            sum(outcome_bytes) over newest_first as bytes
                     from tool_calls where token_id = ?1 and outcome_bytes > 0
                     window newest_first as (order by begun_at desc, call_id)
                 ) where (place > ?3 or bytes > ?4) and call_id <> ?2
             )",
        )?
        .execute(params![
            token,
            newest,
            MAX_KEPT_OUTCOMES,
            MAX_KEPT_OUTCOME_BYTES as i64
        ])?;
    Ok(())
}

/// Whether a session has not ended and has no request to end.
pub(super) fn is_active(session: &Session) -> bool {
    !session.status.is_ended() && session.stop_request != Some(StopRequest::End)
}

pub(super) fn turn_state(
    connection: &Connection,
    child: SessionId,
    seq: i64,
    prompted: i64,
) -> Result<CallTurn> {
    let completion = connection
        .prepare_cached(
            "select position, ?3, idx, at, body from events
             where session = ?1 and idx > ?2 and kind = 'completion' order by idx limit 1",
        )?
        .query_row(params![seq, prompted, child.to_string()], stored_event)
        .optional()?;
    Ok(match completion {
        Some(completion) => CallTurn::Answered(Box::new(completion)),
        None => CallTurn::Running,
    })
}
