//! Tokens in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{KeyHash, Scope, SessionId, TokenId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Sqlite;
use super::audit::append;
use super::convert::{Columns, time};
use super::projects::is_ready;
use crate::{AuditEntry, Page, Result, Revoked, Token, Tokens};

const COLUMNS: &str = "id, name, scope, created_at, expires_at, revoked_at, session, minted";

fn token(row: &Row<'_>) -> rusqlite::Result<Token> {
    Ok(Token {
        id: row.parsed(0)?,
        name: row.get(1)?,
        scope: row.parsed(2)?,
        created_at: row.time(3)?,
        expires_at: row.maybe_time(4)?,
        revoked_at: row.maybe_time(5)?,
        session_id: row.maybe_parsed(6)?,
        minted: row.get(7)?,
    })
}

fn find(connection: &Connection, id: TokenId) -> Result<Option<Token>> {
    Ok(connection
        .prepare_cached(&format!("select {COLUMNS} from tokens where id = ?1"))?
        .query_row([id.to_string()], token)
        .optional()?)
}

/// Adds a token, or nothing if its scope is for a project that is not there.
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
            time(token.created_at),
            token.expires_at.map(time),
            token.revoked_at.map(time),
            token.session_id.map(|id| id.to_string()),
            token.minted,
        ])?;
    Ok(true)
}

/// Ends the token that the agent of a session was started with.
pub(super) fn end_minted(connection: &Connection, session: SessionId) -> Result<()> {
    connection
        .prepare_cached("delete from tokens where session = ?1 and minted")?
        .execute([session.to_string()])?;
    Ok(())
}

/// Ends every token of a session.
pub(super) fn end_all(connection: &Connection, session: SessionId, at: Timestamp) -> Result<()> {
    connection
        .prepare_cached(
            "update tokens set revoked_at = ?2 where session = ?1 and revoked_at is null",
        )?
        .execute(params![session.to_string(), time(at)])?;
    Ok(())
}

/// How many valid admin tokens there are besides one. Those of sessions do not count: nobody else
/// has them.
fn other_admins(connection: &Connection, id: Option<TokenId>, now: Timestamp) -> Result<i64> {
    Ok(connection.query_row(
        "select count(*) from tokens where scope = ?1 and revoked_at is null and session is null
           and (expires_at is null or expires_at > ?2) and id is not ?3",
        params![
            Scope::Admin.to_string(),
            time(now),
            id.map(|id| id.to_string())
        ],
        |row| row.get(0),
    )?)
}

#[async_trait]
impl Tokens for Sqlite {
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
                append(connection, audit)?;
            }
            Ok(added)
        })
        .await
    }

    async fn token_by_hash(&self, hash: KeyHash) -> Result<Option<Token>> {
        self.look(|connection| {
            Ok(connection
                .prepare_cached(&format!("select {COLUMNS} from tokens where hash = ?1"))?
                .query_row([hash.as_bytes()], token)
                .optional()?)
        })
    }

    async fn token(&self, id: TokenId) -> Result<Option<Token>> {
        self.look(|connection| find(connection, id))
    }

    async fn tokens(&self, after: Option<&str>, limit: u32) -> Result<Page<Token>> {
        let after: i64 = after.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
        let rows = self
            .scan(move |connection| {
                let mut statement = connection.prepare_cached(&format!(
                    "select {COLUMNS}, rowid from tokens where rowid > ?1 order by rowid limit ?2"
                ))?;
                let rows = statement.query_map(params![after, limit + 1], |row| {
                    Ok((token(row)?, row.get(8)?))
                })?;
                Ok(rows.collect::<rusqlite::Result<Vec<(Token, i64)>>>()?)
            })
            .await?;
        let page = Page::cut(rows, limit, |(_, rowid)| rowid.to_string());
        Ok(Page {
            rows: page.rows.into_iter().map(|(token, _)| token).collect(),
            next: page.next,
        })
    }

    async fn revoke(
        &self,
        id: TokenId,
        now: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Revoked> {
        self.write(move |connection| {
            let Some(token) = find(connection, id)? else {
                return Ok(Revoked::NoSuchToken);
            };
            if !token.is_valid(now) {
                return Ok(Revoked::Already);
            }
            let lasting = token.session_id.is_none();
            if lasting
                && token.scope == Scope::Admin
                && other_admins(connection, Some(id), now)? == 0
            {
                return Ok(Revoked::LastAdmin);
            }
            connection.execute(
                "update tokens set revoked_at = ?2 where id = ?1",
                params![id.to_string(), time(now)],
            )?;
            append(connection, audit)?;
            Ok(Revoked::Done)
        })
        .await
    }

    async fn has_admin(&self, now: Timestamp) -> Result<bool> {
        self.look(|connection| Ok(other_admins(connection, None, now)? > 0))
    }
}
