//! Tokens in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{Access, KeyHash, Scope, SessionId, TokenId, allows_class};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Sqlite;
use super::audit::append_audit_entry;
use super::convert::{ReadColumns, to_millis};
use super::projects::is_ready;
use crate::{AuditEntry, Page, Result, RevokeOutcome, Token, TokenStore};

const COLUMNS: &str = "id, name, scope, created_at, expires_at, revoked_at, session, minted";

fn token(row: &Row<'_>) -> rusqlite::Result<Token> {
    Ok(Token {
        id: row.parsed(0)?,
        name: row.get(1)?,
        scope: row.parsed(2)?,
        created_at: row.time(3)?,
        expires_at: row.optional_time(4)?,
        revoked_at: row.optional_time(5)?,
        session_id: row.optional_parsed(6)?,
        minted: row.get(7)?,
    })
}

fn find(connection: &Connection, id: TokenId) -> Result<Option<Token>> {
    Ok(connection
        .prepare_cached(&format!("select {COLUMNS} from tokens where id = ?1"))?
        .query_row([id.to_string()], token)
        .optional()?)
}

/// Adds a token. False if its scope names a project that does not exist.
pub(super) fn insert(connection: &Connection, token: &Token, hash: KeyHash) -> Result<bool> {
    if let Some(project) = token.scope.project()
        && !is_ready(connection, project)?
    {
        return Ok(false);
    }
    connection
        .prepare_cached(
            "insert into tokens (id, name, hash, scope, created_at, expires_at, revoked_at,
                session, minted)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            token.id.to_string(),
            token.name,
            hash.as_bytes(),
            token.scope.to_string(),
            to_millis(token.created_at),
            token.expires_at.map(to_millis),
            token.revoked_at.map(to_millis),
            token.session_id.map(|id| id.to_string()),
            token.minted,
        ])?;
    Ok(true)
}

/// Deletes the token that the agent of a session was started with.
pub(super) fn delete_agent_token(connection: &Connection, session: SessionId) -> Result<()> {
    connection
        .prepare_cached("delete from tokens where session = ?1 and minted")?
        .execute([session.to_string()])?;
    Ok(())
}

/// Revokes all tokens of a session.
pub(super) fn revoke_session_tokens(
    connection: &Connection,
    session: SessionId,
    at: Timestamp,
) -> Result<()> {
    connection
        .prepare_cached(
            "update tokens set revoked_at = ?2 where session = ?1 and revoked_at is null",
        )?
        .execute(params![session.to_string(), to_millis(at)])?;
    Ok(())
}

/// Counts the valid admin tokens except `id`. Tokens of sessions do not count: only the agents of the
/// sessions have them.
fn count_other_admins(connection: &Connection, id: Option<TokenId>, now: Timestamp) -> Result<i64> {
    Ok(connection.query_row(
        "select count(*) from tokens where scope = ?1 and revoked_at is null and session is null
           and (expires_at is null or expires_at > ?2) and id is not ?3",
        params![
            Scope::Admin.to_string(),
            to_millis(now),
            id.map(|id| id.to_string())
        ],
        |row| row.get(0),
    )?)
}

#[async_trait]
impl TokenStore for Sqlite {
    async fn add_token(
        &self,
        token: &Token,
        hash: KeyHash,
        audit: Option<AuditEntry>,
    ) -> Result<bool> {
        let token = token.clone();
        self.write(move |connection| {
            let added = insert(connection, &token, hash)?;
            if added {
                append_audit_entry(connection, audit)?;
            }
            Ok(added)
        })
        .await
    }

    async fn token_by_hash(&self, hash: KeyHash) -> Result<Option<Token>> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached(&format!("select {COLUMNS} from tokens where hash = ?1"))?
                .query_row([hash.as_bytes()], token)
                .optional()?)
        })
    }

    async fn token(&self, id: TokenId) -> Result<Option<Token>> {
        self.read(|connection| find(connection, id))
    }

    async fn tree_owner(&self, session: SessionId) -> Result<Option<Token>> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached(&format!(
                    "select {COLUMNS} from tokens where id =
                        (select root.owner_id from sessions
                         join sessions root on root.id = sessions.root_id where sessions.id = ?1)"
                ))?
                .query_row([session.to_string()], token)
                .optional()?)
        })
    }

    async fn tokens(&self, after: Option<&str>, limit: u32) -> Result<Page<Token>> {
        let after: i64 = after.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
        let rows = self
            .read_blocking(move |connection| {
                let mut statement = connection.prepare_cached(&format!(
                    "select {COLUMNS}, rowid from tokens where rowid > ?1 order by rowid limit ?2"
                ))?;
                let rows = statement.query_map(params![after, limit + 1], |row| {
                    Ok((token(row)?, row.get(8)?))
                })?;
                Ok(rows.collect::<rusqlite::Result<Vec<(Token, i64)>>>()?)
            })
            .await?;
        let page = Page::from_rows(rows, limit, |(_, rowid)| rowid.to_string());
        Ok(Page {
            rows: page.rows.into_iter().map(|(token, _)| token).collect(),
            next: page.next,
        })
    }

    async fn revoke_token(
        &self,
        id: TokenId,
        now: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<RevokeOutcome> {
        self.write(move |connection| {
            let Some(token) = find(connection, id)? else {
                return Ok(RevokeOutcome::NoSuchToken);
            };
            if !token.is_valid(now) {
                return Ok(RevokeOutcome::Already);
            }
            if token.session_id.is_none()
                && allows_class(token.scope, Access::Admin)
                && count_other_admins(connection, Some(id), now)? == 0
            {
                return Ok(RevokeOutcome::LastAdmin);
            }
            connection.execute(
                "update tokens set revoked_at = ?2 where id = ?1",
                params![id.to_string(), to_millis(now)],
            )?;
            append_audit_entry(connection, audit)?;
            Ok(RevokeOutcome::Done)
        })
        .await
    }

    async fn has_admin_token(&self, now: Timestamp) -> Result<bool> {
        self.read(|connection| Ok(count_other_admins(connection, None, now)? > 0))
    }
}
