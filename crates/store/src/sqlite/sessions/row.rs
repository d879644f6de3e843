//! Converts rows to sessions.

use oubliette_model::{KeyHash, SessionId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::sqlite::convert::{ReadColumns, conversion_error, json_column, to_json, to_millis};
use crate::{Result, Session, StopRequest};

pub(super) const COLUMNS: &str = "id, project_id, workspace_id, parent_id, root_id, depth, \
     owner_id, agent, choices, status, waiting, wanted, error, usage, cost_usd, turns, key_hash, \
     agent_session_id, live, log_end, trimmed_before, created_at, updated_at, ended_at";

/// Reads a column whose value is ignored if it cannot be parsed.
fn parsed_or_none<T: std::str::FromStr>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

pub(super) fn session(row: &Row<'_>) -> rusqlite::Result<Session> {
    let stop_request: Option<String> = row.get(11)?;
    let waiting: Option<String> = row.get(10)?;
    let key: Option<[u8; 32]> = row.get(16)?;
    Ok(Session {
        id: row.parsed(0)?,
        project_id: row.parsed(1)?,
        workspace_id: row.parsed(2)?,
        parent_id: parsed_or_none(row, 3)?,
        root_id: row.parsed(4)?,
        depth: row.get(5)?,
        owner_id: parsed_or_none(row, 6)?,
        agent: row.get(7)?,
        choices: json_column(row, 8)?,
        status: row.parsed(9)?,
        waiting: waiting
            .map(|text| serde_json::from_str(&text).map_err(|e| conversion_error(10, e)))
            .transpose()?,
        stop_request: stop_request.map(|word| match word.as_str() {
            "end" => StopRequest::End,
            _ => StopRequest::Interrupt,
        }),
        error: row.get(12)?,
        usage: json_column(row, 13)?,
        cost_usd: row.get(14)?,
        turns: row.get(15)?,
        key: key.map(KeyHash::from_bytes),
        agent_session_id: row.get(17)?,
        live: row.get(18)?,
        log_end: row.get(19)?,
        trimmed_before: row.get(20)?,
        created_at: row.time(21)?,
        updated_at: row.time(22)?,
        ended_at: row.optional_time(23)?,
    })
}

pub(in crate::sqlite) fn find(connection: &Connection, id: SessionId) -> Result<Option<Session>> {
    Ok(find_with_seq(connection, id)?.map(|(_, session)| session))
}

/// Returns a session with its row number.
pub(in crate::sqlite) fn find_with_seq(
    connection: &Connection,
    id: SessionId,
) -> Result<Option<(i64, Session)>> {
    Ok(connection
        .prepare_cached(&format!(
            "select {COLUMNS}, seq from sessions where id = ?1"
        ))?
        .query_row([id.to_string()], |row| Ok((row.get(24)?, session(row)?)))
        .optional()?)
}

/// Returns the row number of a session, which other tables refer to.
pub(in crate::sqlite) fn find_seq(connection: &Connection, id: SessionId) -> Result<Option<i64>> {
    Ok(connection
        .prepare_cached("select seq from sessions where id = ?1")?
        .query_row([id.to_string()], |row| row.get(0))
        .optional()?)
}

pub(super) fn insert(connection: &Connection, session: &Session) -> Result<i64> {
    connection
        .prepare_cached(
            "insert into sessions (id, project_id, workspace_id, parent_id, root_id, depth,
                owner_id, agent, choices, status, usage, cost_usd, turns, log_end, trimmed_before,
                created_at, updated_at)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 0, 0, 0, 0, ?12, ?12)",
        )?
        .execute(params![
            session.id.to_string(),
            session.project_id.to_string(),
            session.workspace_id.as_str(),
            session.parent_id.map(|id| id.to_string()),
            session.root_id.to_string(),
            session.depth,
            session.owner_id.map(|id| id.to_string()),
            session.agent,
            to_json(&session.choices)?,
            session.status.as_str(),
            to_json(&session.usage)?,
            to_millis(session.created_at),
        ])?;
    Ok(connection.last_insert_rowid())
}
