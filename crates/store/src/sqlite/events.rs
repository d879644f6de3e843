//! Event logs of sessions in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::SessionId;
use rusqlite::{Connection, Row, params};

use super::Sqlite;
use super::convert::{ReadColumns, conversion_error, to_millis};
use super::sessions::{TREE, find_seq};
use crate::{EventStore, Result, StoredEvent};

/// Up to this number of events is read on the calling thread.
const MAX_INLINE_EVENTS: u32 = 16;

pub(super) fn stored_event(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    Ok(StoredEvent {
        position: row.get(0)?,
        session_id: row.parsed(1)?,
        index: row.get(2)?,
        at: row.time(3)?,
        body: row.get(4)?,
    })
}

/// Takes rows up to `max_bytes` of bodies, and at least one row.
fn take_bytes(
    rows: impl Iterator<Item = rusqlite::Result<StoredEvent>>,
    max_bytes: usize,
) -> Result<Vec<StoredEvent>> {
    let (mut taken, mut size) = (Vec::new(), 0);
    for row in rows {
        let row = row?;
        size += row.body.len();
        if size > max_bytes && !taken.is_empty() {
            break;
        }
        taken.push(row);
    }
    Ok(taken)
}

fn events_after(
    connection: &Connection,
    id: SessionId,
    since: i64,
    limit: u32,
    max_bytes: usize,
) -> Result<Vec<StoredEvent>> {
    let Some(seq) = find_seq(connection, id)? else {
        return Ok(Vec::new());
    };
    let mut statement = connection.prepare_cached(
        "select position, ?4, idx, at, body from events
         where session = ?1 and idx > ?2 order by idx limit ?3",
    )?;
    let rows = statement.query_map(params![seq, since, limit, id.to_string()], stored_event)?;
    take_bytes(rows, max_bytes)
}

#[async_trait]
impl EventStore for Sqlite {
    async fn events(
        &self,
        id: SessionId,
        since: i64,
        limit: u32,
        max_bytes: usize,
    ) -> Result<Vec<StoredEvent>> {
        // A subscriber reads the few newest events.
        let few = self.read(|connection| {
            events_after(
                connection,
                id,
                since,
                limit.min(MAX_INLINE_EVENTS),
                max_bytes,
            )
        })?;
        if limit <= MAX_INLINE_EVENTS || few.len() < MAX_INLINE_EVENTS as usize {
            return Ok(few);
        }
        self.read_blocking(move |connection| events_after(connection, id, since, limit, max_bytes))
            .await
    }

    async fn tree_events(
        &self,
        id: SessionId,
        after: i64,
        limit: u32,
        max_bytes: usize,
    ) -> Result<Vec<StoredEvent>> {
        self.read_blocking(move |connection| {
            // SQLite reads each log from its own index and sorts the events by position.
            let mut statement = connection.prepare_cached(&format!(
                "{TREE} select position, sessions.id, idx, at, body from sessions
                 join events on session = seq
                 where sessions.id in tree and position > ?2 order by position limit ?3"
            ))?;
            let rows = statement.query_map(params![id.to_string(), after, limit], stored_event)?;
            take_bytes(rows, max_bytes)
        })
        .await
    }

    async fn newest_events(
        &self,
        id: SessionId,
        kind: &str,
        limit: u32,
    ) -> Result<Vec<StoredEvent>> {
        self.read(|connection| {
            let Some(seq) = find_seq(connection, id)? else {
                return Ok(Vec::new());
            };
            let mut statement = connection.prepare_cached(
                "select position, ?4, idx, at, body from events
                 where session = ?1 and kind = ?2 order by idx desc limit ?3",
            )?;
            let values = params![seq, kind, limit, id.to_string()];
            let rows = statement.query_map(values, stored_event)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }

    async fn text_deltas(&self, id: SessionId, from: i64) -> Result<Vec<String>> {
        self.read_blocking(move |connection| {
            let Some(seq) = find_seq(connection, id)? else {
                return Ok(Vec::new());
            };
            let mut statement = connection.prepare_cached(
                "select body from events
                 where session = ?1 and idx >= ?2 and kind = 'delta' order by idx",
            )?;
            let rows = statement.query_map(params![seq, from], |row| {
                let body = row.get_ref(0)?.as_str()?;
                let body: serde_json::Value =
                    serde_json::from_str(body).map_err(|e| conversion_error(0, e))?;
                Ok(body["text"].as_str().unwrap_or_default().to_owned())
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn trim_events(&self, before: Timestamp, max_events: i64) -> Result<usize> {
        let bounds = self
            .read_blocking(move |connection| {
                // Sessions with an agent are left out: their actors may still need recent events.
                let mut statement = connection.prepare(
                    "select seq, max(log_end - ?2, coalesce((
                        select min(idx) from events where session = seq and idx > 0 and at >= ?1
                     ), log_end - 1))
                     from sessions where live is null and log_end - trimmed_before > 1",
                )?;
                let rows = statement.query_map(params![to_millis(before), max_events], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
                Ok(rows.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?)
            })
            .await?;
        let mut trimmed = 0;
        for (seq, bound) in bounds {
            // One session per transaction, so that other writes do not wait for all of them.
            trimmed += self
                .write(move |connection| {
                    let deleted = connection.execute(
                        "delete from events where session = ?1 and idx > 0 and idx < ?2",
                        params![seq, bound],
                    )?;
                    if deleted > 0 {
                        connection.execute(
                            "update sessions set trimmed_before = ?2, log_bytes = (
                                select coalesce(sum(octet_length(body)), 0) from events
                                where session = ?1
                             ) where seq = ?1",
                            params![seq, bound],
                        )?;
                    }
                    Ok(deleted)
                })
                .await?;
        }
        Ok(trimmed)
    }
}
