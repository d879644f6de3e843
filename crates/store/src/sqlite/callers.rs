//! Caller tools in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{
    AwaitedRequest, AwaitedRequestKind, CallerToolOutcome, Event, SessionId, Status, TokenId,
    TurnKind,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::Sqlite;
use super::audit::append_audit_entry;
use super::calls::is_active;
use super::convert::{
    ReadColumns, conversion_error, enum_from_string, enum_to_string, json_column, to_json,
    to_millis,
};
use super::sessions::{append_events, find_seq, find_with_seq};
use crate::{
    AddRequestOutcome, AuditEntry, CallerRequest, CallerRequestResult, CallerStore, DeclaredTools,
    EndRequestOutcome, MAX_PENDING_REQUEST_BYTES, MAX_PENDING_REQUESTS, Result, Session,
    StoreError, ToolDeclaration,
};

const COLUMNS: &str = "sessions.id, request_id, call_id, tool, arguments, asked_at, deadline, \
     handed, outcome, answer, event_index";
const FROM: &str = "from caller_requests join sessions on seq = session";

fn uuid_column(row: &Row<'_>, column: usize) -> rusqlite::Result<Uuid> {
    let text = row.get_ref(column)?.as_str()?;
    Uuid::try_parse(text).map_err(|e| conversion_error(column, e))
}

fn request(row: &Row<'_>) -> rusqlite::Result<CallerRequest> {
    let outcome: Option<String> = row.get(8)?;
    let result = match outcome {
        Some(outcome) => Some(CallerRequestResult {
            outcome: enum_from_string(8, outcome)?,
            answer: json_column(row, 9)?,
        }),
        None => None,
    };
    Ok(CallerRequest {
        session_id: row.parsed(0)?,
        request_id: uuid_column(row, 1)?,
        call_id: uuid_column(row, 2)?,
        tool: row.get(3)?,
        arguments: json_column(row, 4)?,
        asked_at: row.time(5)?,
        deadline: row.time(6)?,
        event_index: row.get(10)?,
        delivered: row.get(7)?,
        result,
    })
}

fn find_by_call(
    connection: &Connection,
    session: SessionId,
    call_id: Uuid,
) -> Result<Option<CallerRequest>> {
    Ok(connection
        .prepare_cached(&format!(
            "select {COLUMNS} {FROM} where sessions.id = ?1 and call_id = ?2"
        ))?
        .query_row(params![session.to_string(), call_id.to_string()], request)
        .optional()?)
}

fn pending_requests(connection: &Connection, seq: i64, limit: u32) -> Result<Vec<CallerRequest>> {
    let mut statement = connection.prepare_cached(&format!(
        "select {COLUMNS} {FROM} where session = ?1 and outcome is null order by asked_at limit ?2"
    ))?;
    let rows = statement.query_map(params![seq, limit], request)?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
}

/// Replaces the declared tools of a session.
pub(super) fn declare_tools(
    connection: &Connection,
    seq: i64,
    session: &Session,
    declaration: &ToolDeclaration,
    at: Timestamp,
) -> Result<()> {
    if session.owner_id != Some(declaration.token_id) {
        if has_valid_owner(connection, session, at)? {
            return Err(StoreError::NotOwner);
        }
        connection
            .prepare_cached("update sessions set owner_id = ?2 where seq = ?1")?
            .execute(params![seq, declaration.token_id.to_string()])?;
        // They ended with the old owner and must not come back to life with the new one.
        if session.parent_id.is_none() {
            connection
                .prepare_cached(
                    "update tokens set revoked_at = ?2 where revoked_at is null and session in
                        (select id from sessions where root_id = ?1)",
                )?
                .execute(params![session.id.to_string(), to_millis(at)])?;
        }
    }
    connection
        .prepare_cached(
            "insert into caller_tools (session, caller_id, tools) values (?1, ?2, ?3)
             on conflict (session) do update set caller_id = ?2, tools = ?3",
        )?
        .execute(params![seq, declaration.caller_id, declaration.tools])?;
    Ok(())
}

fn has_valid_owner(connection: &Connection, session: &Session, at: Timestamp) -> Result<bool> {
    let Some(owner) = session.owner_id else {
        return Ok(false);
    };
    Ok(connection
        .prepare_cached(
            "select 1 from tokens where id = ?1 and revoked_at is null
                and (expires_at is null or expires_at > ?2)",
        )?
        .exists(params![owner.to_string(), to_millis(at)])?)
}

/// Whether the agent of a session can call tools of a token other than this one.
pub(super) fn has_tools_of_others(
    connection: &Connection,
    session: &Session,
    token: Option<TokenId>,
    at: Timestamp,
) -> Result<bool> {
    if session.owner_id == token || !has_valid_owner(connection, session, at)? {
        return Ok(false);
    }
    Ok(connection
        .prepare_cached(
            "select 1 from caller_tools join sessions on seq = session
             where sessions.id = ?1 and tools <> '[]'",
        )?
        .exists([session.id.to_string()])?)
}

fn add_request(connection: &Connection, request: &CallerRequest) -> Result<AddRequestOutcome> {
    if let Some(existing) = find_by_call(connection, request.session_id, request.call_id)? {
        return Ok(AddRequestOutcome::Existing(Box::new(existing)));
    }
    let found = find_with_seq(connection, request.session_id)?;
    let Some((seq, session)) = found.filter(|(_, session)| is_active(session)) else {
        return Ok(AddRequestOutcome::SessionGone);
    };
    let arguments = to_json(&request.arguments)?;
    let (pending, bytes): (u32, i64) = connection
        .prepare_cached(
            "select count(*), coalesce(sum(length(arguments)), 0)
             from caller_requests indexed by caller_requests_pending
             where session = ?1 and outcome is null",
        )?
        .query_row([seq], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if pending >= MAX_PENDING_REQUESTS || bytes + arguments.len() as i64 > MAX_PENDING_REQUEST_BYTES
    {
        return Ok(AddRequestOutcome::TooManyPending);
    }
    connection
        .prepare_cached(
            "insert into caller_requests
                (session, request_id, call_id, tool, arguments, asked_at, deadline, event_index)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            seq,
            request.request_id.to_string(),
            request.call_id.to_string(),
            request.tool,
            arguments,
            to_millis(request.asked_at),
            to_millis(request.deadline),
            session.log_end,
        ])?;
    count_request_bytes(connection, seq, arguments.len())?;
    let event = Event::CallerToolRequest {
        request_id: request.request_id.to_string(),
        tool: request.tool.clone(),
        arguments: request.arguments.clone(),
        expires_at: request.deadline,
    };
    let mut events = vec![event];
    if session.status == Status::Running {
        events.push(set_awaited_request(
            connection,
            seq,
            Some(request),
            request.asked_at,
        )?);
    }
    append_events(connection, seq, request.asked_at, &events)?;
    Ok(AddRequestOutcome::Added(Box::new(session)))
}

/// Adds to what the requests of a session take.
fn count_request_bytes(connection: &Connection, seq: i64, bytes: usize) -> Result<()> {
    connection
        .prepare_cached("update sessions set request_bytes = request_bytes + ?2 where seq = ?1")?
        .execute(params![seq, bytes as i64])?;
    Ok(())
}

/// Makes a session wait for a request, or run if there is none. Returns the status event.
fn set_awaited_request(
    connection: &Connection,
    seq: i64,
    request: Option<&CallerRequest>,
    at: Timestamp,
) -> Result<Event> {
    let waiting = request.map(|request| AwaitedRequest {
        kind: AwaitedRequestKind::CallerTool,
        request_id: request.request_id.to_string(),
        until: request.deadline,
    });
    let status = match waiting {
        Some(_) => Status::Waiting,
        None => Status::Running,
    };
    connection
        .prepare_cached(
            "update sessions set status = ?2, waiting = ?3, updated_at = ?4 where seq = ?1",
        )?
        .execute(params![
            seq,
            status.as_str(),
            waiting.as_ref().map(to_json).transpose()?,
            to_millis(at)
        ])?;
    Ok(Event::Status {
        status,
        waiting_for: waiting,
        error: None,
        kind: TurnKind::Prompt,
    })
}

fn end_request(
    connection: &Connection,
    id: SessionId,
    request_id: Uuid,
    result: &CallerRequestResult,
    event: Event,
    at: Timestamp,
) -> Result<EndRequestOutcome> {
    let Some((seq, session)) = find_with_seq(connection, id)? else {
        return Ok(EndRequestOutcome::NoSuchRequest);
    };
    let is_answer = matches!(
        result.outcome,
        CallerToolOutcome::Answered | CallerToolOutcome::Failed
    );
    let answer = to_json(&result.answer)?;
    let changed = connection
        .prepare_cached(
            "update caller_requests set outcome = ?3, answer = ?4, ended_at = ?5
             where session = ?1 and request_id = ?2 and outcome is null
               and (not ?6 or deadline > ?5)",
        )?
        .execute(params![
            seq,
            request_id.to_string(),
            enum_to_string(&result.outcome)?,
            answer,
            to_millis(at),
            is_answer
        ])?;
    if changed == 0 {
        let exists = connection
            .prepare_cached("select 1 from caller_requests where session = ?1 and request_id = ?2")?
            .exists(params![seq, request_id.to_string()])?;
        return Ok(if exists {
            EndRequestOutcome::Late
        } else {
            EndRequestOutcome::NoSuchRequest
        });
    }
    count_request_bytes(connection, seq, answer.len())?;
    let mut events = vec![event];
    let is_awaited = session
        .waiting
        .is_some_and(|waiting| waiting.request_id == request_id.to_string());
    if session.status == Status::Waiting && is_awaited {
        let next = pending_requests(connection, seq, 1)?;
        events.push(set_awaited_request(connection, seq, next.first(), at)?);
    }
    append_events(connection, seq, at, &events)?;
    Ok(EndRequestOutcome::Done)
}

#[async_trait]
impl CallerStore for Sqlite {
    async fn caller_tools(&self, session: SessionId) -> Result<Option<DeclaredTools>> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached(
                    "select caller_id, tools from caller_tools join sessions on seq = session
                     where id = ?1",
                )?
                .query_row([session.to_string()], |row| {
                    Ok(DeclaredTools {
                        caller_id: row.get(0)?,
                        tools: row.get(1)?,
                    })
                })
                .optional()?)
        })
    }

    async fn add_caller_request(&self, request: &CallerRequest) -> Result<AddRequestOutcome> {
        let request = request.clone();
        self.write(move |connection| add_request(connection, &request))
            .await
    }

    async fn caller_request_by_call(
        &self,
        session: SessionId,
        call_id: Uuid,
    ) -> Result<Option<CallerRequest>> {
        self.read(|connection| find_by_call(connection, session, call_id))
    }

    async fn caller_request(
        &self,
        session: SessionId,
        request_id: Uuid,
    ) -> Result<Option<CallerRequest>> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached(&format!(
                    "select {COLUMNS} {FROM} where request_id = ?2 and sessions.id = ?1"
                ))?
                .query_row(
                    params![session.to_string(), request_id.to_string()],
                    request,
                )
                .optional()?)
        })
    }

    async fn pending_requests(&self, session: SessionId) -> Result<Vec<CallerRequest>> {
        self.read(|connection| match find_seq(connection, session)? {
            Some(seq) => pending_requests(connection, seq, MAX_PENDING_REQUESTS),
            None => Ok(Vec::new()),
        })
    }

    async fn all_pending_requests(&self) -> Result<Vec<CallerRequest>> {
        self.read_blocking(|connection| {
            let mut statement = connection.prepare(&format!(
                "select {COLUMNS} {FROM} where outcome is null order by asked_at"
            ))?;
            let rows = statement.query_map([], request)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn mark_delivered(&self, session: SessionId, requests: &[Uuid]) -> Result<()> {
        let requests = requests.to_vec();
        self.write(move |connection| {
            let Some(seq) = find_seq(connection, session)? else {
                return Ok(());
            };
            let mut statement = connection.prepare_cached(
                "update caller_requests set handed = 1 where session = ?1 and request_id = ?2",
            )?;
            for request in requests {
                statement.execute(params![seq, request.to_string()])?;
            }
            Ok(())
        })
        .await
    }

    async fn end_caller_request(
        &self,
        session: SessionId,
        request_id: Uuid,
        result: &CallerRequestResult,
        event: Event,
        at: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<EndRequestOutcome> {
        let result = result.clone();
        self.write(move |connection| {
            let outcome = end_request(connection, session, request_id, &result, event, at)?;
            if outcome == EndRequestOutcome::Done {
                append_audit_entry(connection, audit)?;
            }
            Ok(outcome)
        })
        .await
    }
}
