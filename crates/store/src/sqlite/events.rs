//! The log of sessions in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::SessionId;
use rusqlite::{Connection, Row, params};

use super::Sqlite;
use super::convert::{Columns, misread, time};
use super::sessions::{TREE, number};
use crate::{Events, Logged, Result};

/// Events that are read where they are asked for.
const FEW: u32 = 16;

pub(super) fn logged(row: &Row<'_>) -> rusqlite::Result<Logged> {
    Ok(Logged {
        position: row.get(0)?,
        session_id: row.parsed(1)?,
        index: row.get(2)?,
        at: row.time(3)?,
        body: row.get(4)?,
    })
}

/// Takes rows until there are enough bytes of them, and at least one.
fn bounded(
    rows: impl Iterator<Item = rusqlite::Result<Logged>>,
    bytes: usize,
) -> Result<Vec<Logged>> {
    let (mut taken, mut size) = (Vec::new(), 0);
    for row in rows {
        let row = row?;
        size += row.body.len();
        if size > bytes && !taken.is_empty() {
            break;
        }
        taken.push(row);
    }
    Ok(taken)
}

fn page(
    connection: &Connection,
    id: SessionId,
    since: i64,
    limit: u32,
    bytes: usize,
) -> Result<Vec<Logged>> {
    let Some(seq) = number(connection, id)? else {
        return Ok(Vec::new());
    };
    let mut statement = connection.prepare_cached(
        "select position, ?4, idx, at, body from events
         where session = ?1 and idx > ?2 order by idx limit ?3",
    )?;
    let rows = statement.query_map(params![seq, since, limit, id.to_string()], logged)?;
    bounded(rows, bytes)
}

#[async_trait]
impl Events for Sqlite {
    async fn events(
        &self,
        id: SessionId,
        since: i64,
        limit: u32,
        bytes: usize,
    ) -> Result<Vec<Logged>> {
        // Who follows a session asks for the few that are new.
        let few = self.look(|connection| page(connection, id, since, limit.min(FEW), bytes))?;
        if limit <= FEW || few.len() < FEW as usize {
            return Ok(few);
        }
        self.scan(move |connection| page(connection, id, since, limit, bytes))
            .await
    }

    async fn tree_events(
        &self,
        id: SessionId,
        after: i64,
        limit: u32,
        bytes: usize,
    ) -> Result<Vec<Logged>> {
        self.scan(move |connection| {
            // Each log is read from its own index; then the positions put them in one order.
            let mut statement = connection.prepare_cached(&format!(
                "{TREE} select position, sessions.id, idx, at, body from sessions
                 join events on session = seq
                 where sessions.id in tree and position > ?2 order by position limit ?3"
            ))?;
            let rows = statement.query_map(params![id.to_string(), after, limit], logged)?;
            bounded(rows, bytes)
        })
        .await
    }

    async fn deltas(&self, id: SessionId, from: i64) -> Result<Vec<String>> {
        self.scan(move |connection| {
            let Some(seq) = number(connection, id)? else {
                return Ok(Vec::new());
            };
            let mut statement = connection.prepare_cached(
                "select body from events
                 where session = ?1 and idx >= ?2 and kind = 'delta' order by idx",
            )?;
            let rows = statement.query_map(params![seq, from], |row| {
                let body = row.get_ref(0)?.as_str()?;
                let body: serde_json::Value =
                    serde_json::from_str(body).map_err(|e| misread(0, e))?;
                Ok(body["text"].as_str().unwrap_or_default().to_owned())
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn trim_events(&self, before: Timestamp, most: i64) -> Result<usize> {
        let bounds = self
            .scan(move |connection| {
                // Not from under an agent: its owner may still need the newest of them.
                let mut statement = connection.prepare(
                    "select seq, max(log_end - ?2, coalesce((
                        select min(idx) from events where session = seq and idx > 0 and at >= ?1
                     ), log_end - 1))
                     from sessions where live is null and log_end - trimmed_before > 1",
                )?;
                let rows = statement.query_map(params![time(before), most], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
                Ok(rows.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?)
            })
            .await?;
        let mut trimmed = 0;
        for (seq, bound) in bounds {
            // One session at a time: nobody waits for the whole of it.
            trimmed += self
                .write(move |connection| {
                    let gone = connection.execute(
                        "delete from events where session = ?1 and idx > 0 and idx < ?2",
                        params![seq, bound],
                    )?;
                    if gone > 0 {
                        connection.execute(
                            "update sessions set trimmed_before = ?2 where seq = ?1",
                            params![seq, bound],
                        )?;
                    }
                    Ok(gone)
                })
                .await?;
        }
        Ok(trimmed)
    }
}
