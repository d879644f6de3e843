//! The tools of callers in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{
    AwaitedRequest, AwaitedRequestKind, CallerToolOutcome, Event, SessionId, Status,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::Sqlite;
use super::audit::append;
use super::calls::is_alive;
use super::convert::{Columns, misread, time};
use super::sessions::{append_events, find_numbered, from_word, json, number, text, word};
use crate::{
    Asked, AuditEntry, CallerRequest, Callers, Declaration, Declared, Ended, MOST_PENDING,
    MOST_PENDING_BYTES, Result, Session, Settled, StoreError,
};

const COLUMNS: &str = "sessions.id, request_id, call_id, tool, arguments, asked_at, deadline, \
     handed, outcome, answer, event_index";
const FROM: &str = "from caller_requests join sessions on seq = session";

fn uuid(row: &Row<'_>, column: usize) -> rusqlite::Result<Uuid> {
    let text = row.get_ref(column)?.as_str()?;
    Uuid::try_parse(text).map_err(|e| misread(column, e))
}

fn request(row: &Row<'_>) -> rusqlite::Result<CallerRequest> {
    let outcome: Option<String> = row.get(8)?;
    let ended = match outcome {
        Some(outcome) => Some(Ended {
            outcome: from_word(8, outcome)?,
            answer: json(row, 9)?,
        }),
        None => None,
    };
    Ok(CallerRequest {
        session_id: row.parsed(0)?,
        request_id: uuid(row, 1)?,
        call_id: uuid(row, 2)?,
        tool: row.get(3)?,
        arguments: json(row, 4)?,
        asked_at: row.time(5)?,
        deadline: row.time(6)?,
        event_index: row.get(10)?,
        handed: row.get(7)?,
        ended,
    })
}

fn call(
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

fn pending(connection: &Connection, seq: i64, most: u32) -> Result<Vec<CallerRequest>> {
    let mut statement = connection.prepare_cached(&format!(
        "select {COLUMNS} {FROM} where session = ?1 and outcome is null order by asked_at limit ?2"
    ))?;
    let rows = statement.query_map(params![seq, most], request)?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
}

/// Replaces the tools of a session, or takes them away.
pub(super) fn declare(
    connection: &Connection,
    seq: i64,
    session: &Session,
    declaration: &Declaration,
    at: Timestamp,
) -> Result<()> {
    if session.owner_id != Some(declaration.by) {
        let owned = match session.owner_id {
            Some(owner) => connection
                .prepare_cached(
                    "select 1 from tokens where id = ?1 and revoked_at is null
                        and (expires_at is null or expires_at > ?2)",
                )?
                .exists(params![owner.to_string(), time(at)])?,
            None => false,
        };
        if owned {
            return Err(StoreError::NotOwner);
        }
        connection
            .prepare_cached("update sessions set owner_id = ?2 where seq = ?1")?
            .execute(params![seq, declaration.by.to_string()])?;
    }
    connection
        .prepare_cached(
            "insert into caller_tools (session, caller_id, tools) values (?1, ?2, ?3)
             on conflict (session) do update set caller_id = ?2, tools = ?3",
        )?
        .execute(params![seq, declaration.caller_id, declaration.tools])?;
    Ok(())
}

fn ask(connection: &Connection, asked: &CallerRequest) -> Result<Asked> {
    if let Some(before) = call(connection, asked.session_id, asked.call_id)? {
        return Ok(Asked::Before(Box::new(before)));
    }
    let found = find_numbered(connection, asked.session_id)?;
    let Some((seq, session)) = found.filter(|(_, session)| is_alive(session)) else {
        return Ok(Asked::Gone);
    };
    let arguments = text(&asked.arguments)?;
    let (waiting, bytes): (u32, i64) = connection
        .prepare_cached(
            "select count(*), coalesce(sum(length(arguments)), 0)
             from caller_requests indexed by caller_requests_pending
             where session = ?1 and outcome is null",
        )?
        .query_row([seq], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if waiting >= MOST_PENDING || bytes + arguments.len() as i64 > MOST_PENDING_BYTES {
        return Ok(Asked::TooMany);
    }
    connection
        .prepare_cached(
            "insert into caller_requests
                (session, request_id, call_id, tool, arguments, asked_at, deadline, event_index)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            seq,
            asked.request_id.to_string(),
            asked.call_id.to_string(),
            asked.tool,
            arguments,
            time(asked.asked_at),
            time(asked.deadline),
            session.log_end,
        ])?;
    let event = Event::CallerToolRequest {
        request_id: asked.request_id.to_string(),
        tool: asked.tool.clone(),
        arguments: asked.arguments.clone(),
        expires_at: asked.deadline,
    };
    let mut events = vec![event];
    if session.status == Status::Running {
        events.push(wait_for(connection, seq, Some(asked), asked.asked_at)?);
    }
    append_events(connection, seq, asked.asked_at, &events)?;
    Ok(Asked::New(Box::new(session)))
}

/// Has a session wait for a call, or go on; the event that says so.
fn wait_for(
    connection: &Connection,
    seq: i64,
    asked: Option<&CallerRequest>,
    at: Timestamp,
) -> Result<Event> {
    let waiting = asked.map(|asked| AwaitedRequest {
        kind: AwaitedRequestKind::CallerTool,
        request_id: asked.request_id.to_string(),
        until: asked.deadline,
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
            waiting.as_ref().map(text).transpose()?,
            time(at)
        ])?;
    Ok(Event::Status {
        status,
        waiting_for: waiting,
        error: None,
    })
}

fn settle(
    connection: &Connection,
    id: SessionId,
    request_id: Uuid,
    ended: &Ended,
    event: Event,
    at: Timestamp,
) -> Result<Settled> {
    let Some((seq, session)) = find_numbered(connection, id)? else {
        return Ok(Settled::NoSuchRequest);
    };
    let answered = matches!(
        ended.outcome,
        CallerToolOutcome::Answered | CallerToolOutcome::Failed
    );
    let changed = connection
        .prepare_cached(
            "update caller_requests set outcome = ?3, answer = ?4, ended_at = ?5
             where session = ?1 and request_id = ?2 and outcome is null
               and (not ?6 or deadline > ?5)",
        )?
        .execute(params![
            seq,
            request_id.to_string(),
            word(&ended.outcome)?,
            text(&ended.answer)?,
            time(at),
            answered
        ])?;
    if changed == 0 {
        let there = connection
            .prepare_cached("select 1 from caller_requests where session = ?1 and request_id = ?2")?
            .exists(params![seq, request_id.to_string()])?;
        return Ok(match there {
            true => Settled::Late,
            false => Settled::NoSuchRequest,
        });
    }
    let mut events = vec![event];
    let waited_for = session
        .waiting
        .is_some_and(|waiting| waiting.request_id == request_id.to_string());
    if session.status == Status::Waiting && waited_for {
        let next = pending(connection, seq, 1)?;
        events.push(wait_for(connection, seq, next.first(), at)?);
    }
    append_events(connection, seq, at, &events)?;
    Ok(Settled::Done)
}

#[async_trait]
impl Callers for Sqlite {
    async fn caller_tools(&self, session: SessionId) -> Result<Option<Declared>> {
        self.look(|connection| {
            Ok(connection
                .prepare_cached(
                    "select caller_id, tools from caller_tools join sessions on seq = session
                     where id = ?1",
                )?
                .query_row([session.to_string()], |row| {
                    Ok(Declared {
                        caller_id: row.get(0)?,
                        tools: row.get(1)?,
                    })
                })
                .optional()?)
        })
    }

    async fn ask_caller(&self, request: &CallerRequest) -> Result<Asked> {
        let request = request.clone();
        self.write(move |connection| ask(connection, &request))
            .await
    }

    async fn caller_call(
        &self,
        session: SessionId,
        call_id: Uuid,
    ) -> Result<Option<CallerRequest>> {
        self.look(|connection| call(connection, session, call_id))
    }

    async fn caller_request(
        &self,
        session: SessionId,
        request_id: Uuid,
    ) -> Result<Option<CallerRequest>> {
        self.look(|connection| {
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
        self.look(|connection| match number(connection, session)? {
            Some(seq) => pending(connection, seq, MOST_PENDING),
            None => Ok(Vec::new()),
        })
    }

    async fn all_pending_requests(&self) -> Result<Vec<CallerRequest>> {
        self.scan(|connection| {
            let mut statement = connection.prepare(&format!(
                "select {COLUMNS} {FROM} where outcome is null order by asked_at"
            ))?;
            let rows = statement.query_map([], request)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn hand_out(&self, session: SessionId, requests: &[Uuid]) -> Result<()> {
        let requests = requests.to_vec();
        self.write(move |connection| {
            let Some(seq) = number(connection, session)? else {
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

    async fn settle_request(
        &self,
        session: SessionId,
        request_id: Uuid,
        ended: &Ended,
        event: Event,
        at: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Settled> {
        let ended = ended.clone();
        self.write(move |connection| {
            let settled = settle(connection, session, request_id, &ended, event, at)?;
            if settled == Settled::Done {
                append(connection, audit)?;
            }
            Ok(settled)
        })
        .await
    }
}
