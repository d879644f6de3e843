//! MCP sessions in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::Sqlite;
use super::convert::{Columns, time};
use crate::{McpSession, McpSessions, Result};

#[async_trait]
impl McpSessions for Sqlite {
    async fn put_mcp_session(&self, session: &McpSession, keep: u32) -> Result<()> {
        let session = session.clone();
        self.write(move |connection| {
            connection.execute(
                "insert into mcp_sessions (id, token_id, state, seen_at) values (?1, ?2, ?3, ?4)
                 on conflict (id) do update set state = excluded.state, seen_at = excluded.seen_at",
                params![
                    session.id,
                    session.token_id.to_string(),
                    session.state,
                    time(session.seen_at),
                ],
            )?;
            connection.execute(
                "delete from mcp_sessions where id in (
                    select id from mcp_sessions where token_id = ?1
                    order by seen_at desc, rowid desc limit -1 offset ?2)",
                params![session.token_id.to_string(), keep],
            )?;
            Ok(())
        })
        .await
    }

    async fn mcp_session(&self, id: &str) -> Result<Option<McpSession>> {
        self.look(|connection| {
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

    async fn touch_mcp_sessions(&self, ids: Vec<String>, now: Timestamp) -> Result<()> {
        self.write(move |connection| {
            let mut statement =
                connection.prepare_cached("update mcp_sessions set seen_at = ?2 where id = ?1")?;
            for id in ids {
                statement.execute(params![id, time(now)])?;
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
                [time(before)],
            )?)
        })
        .await
    }
}
