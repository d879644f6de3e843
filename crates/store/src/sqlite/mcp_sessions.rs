//! MCP sessions in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::SessionId;
use rusqlite::{OptionalExtension, params};

use super::Sqlite;
use super::convert::{ReadColumns, to_millis};
use crate::{McpSession, McpSessionStore, Result};

#[async_trait]
impl McpSessionStore for Sqlite {
    async fn put_mcp_session(&self, session: &McpSession, max_sessions: u32) -> Result<()> {
        let session = session.clone();
        self.write(move |connection| {
            connection.execute(
                "insert into mcp_sessions (id, token_id, state, seen_at) values (?1, ?2, ?3, ?4)
                 on conflict (id) do update set state = excluded.state, seen_at = excluded.seen_at",
                params![
                    session.id,
                    session.token_id.to_string(),
                    session.state,
                    to_millis(session.seen_at),
                ],
            )?;
            connection.execute(
                "delete from mcp_sessions where id in (
                    select id from mcp_sessions where token_id = ?1
                    order by seen_at desc, rowid desc limit -1 offset ?2)",
                params![session.token_id.to_string(), max_sessions],
            )?;
            Ok(())
        })
        .await
    }

    async fn mcp_session(&self, id: &str) -> Result<Option<McpSession>> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached(
                    "select id, token_id, state, seen_at from mcp_sessions where id = ?1",
                )?
                .query_row([id], |row| {
                    Ok(McpSession {
                        id: row.get(0)?,
                        token_id: row.parsed(1)?,
                        state: row.get(2)?,
                        seen_at: row.time(3)?,
                    })
                })
                .optional()?)
        })
    }

    async fn bind_session(&self, session: SessionId, mcp_session: &str) -> Result<()> {
        let mcp_session = mcp_session.to_owned();
        self.write(move |connection| {
            connection
                .prepare_cached(
                    "insert into bound_sessions (session, mcp_session)
                     select seq, mcp_sessions.id from sessions, mcp_sessions
                     where sessions.id = ?1 and mcp_sessions.id = ?2
                     on conflict (session) do update set mcp_session = excluded.mcp_session",
                )?
                .execute(params![session.to_string(), mcp_session])?;
            Ok(())
        })
        .await
    }

    async fn bound_sessions(&self, mcp_session: &str) -> Result<Vec<SessionId>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "select id from bound_sessions join sessions on seq = session
                 where mcp_session = ?1 order by seq",
            )?;
            let rows = statement.query_map([mcp_session], |row| row.parsed(0))?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }

    async fn touch_mcp_sessions(&self, ids: Vec<String>, now: Timestamp) -> Result<()> {
        self.write(move |connection| {
            let mut statement =
                connection.prepare_cached("update mcp_sessions set seen_at = ?2 where id = ?1")?;
            for id in ids {
                statement.execute(params![id, to_millis(now)])?;
            }
            Ok(())
        })
        .await
    }

    async fn remove_mcp_session(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        self.write(move |connection| {
            connection.execute("delete from mcp_sessions where id = ?1", [id])?;
            Ok(())
        })
        .await
    }

    async fn trim_mcp_sessions(&self, before: Timestamp) -> Result<usize> {
        self.write(move |connection| {
            Ok(connection.execute(
                "delete from mcp_sessions where seen_at < ?1",
                [to_millis(before)],
            )?)
        })
        .await
    }
}
