//! The audit log in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, Row, named_params, params};

use super::Sqlite;
use super::convert::{ReadColumns, conversion_error, to_millis};
use crate::{AuditEntry, AuditFilter, AuditOutcome, AuditRecord, AuditStore, Page, Result};

/// Appends an entry in the transaction of the write that it belongs to.
pub(super) fn append_audit_entry(connection: &Connection, entry: Option<AuditEntry>) -> Result<()> {
    let Some(entry) = entry else { return Ok(()) };
    connection
        .prepare_cached(
            "insert into audit (at, token_id, operation, project_id, outcome, address)
             values (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            to_millis(entry.at),
            entry.token_id.map(|id| id.to_string()),
            entry.operation,
            entry.project_id.map(|id| id.to_string()),
            entry.outcome.as_str(),
            entry.address,
        ])?;
    Ok(())
}

fn record(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    let outcome: String = row.get(5)?;
    let outcome = AuditOutcome::parse(&outcome)
        .ok_or_else(|| conversion_error(5, std::io::Error::other("unknown outcome")))?;
    let id = |column| -> rusqlite::Result<Option<String>> { row.get(column) };
    Ok(AuditRecord {
        id: row.get(0)?,
        entry: AuditEntry {
            at: row.time(1)?,
            token_id: id(2)?.and_then(|id| id.parse().ok()),
            operation: row.get(3)?,
            project_id: id(4)?.and_then(|id| id.parse().ok()),
            outcome,
            address: row.get(6)?,
        },
    })
}

#[async_trait]
impl AuditStore for Sqlite {
    async fn append_audit(&self, entries: Vec<AuditEntry>) -> Result<()> {
        self.write(move |connection| {
            entries
                .into_iter()
                .try_for_each(|entry| append_audit_entry(connection, Some(entry)))
        })
        .await
    }

    async fn audit_records(
        &self,
        filter: &AuditFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<AuditRecord>> {
        let filter = filter.clone();
        let before: i64 = after
            .and_then(|cursor| cursor.parse().ok())
            .unwrap_or(i64::MAX);
        let rows = self
            .read_blocking(move |connection| {
                let mut statement = connection.prepare_cached(
                    "select id, at, token_id, operation, project_id, outcome, address from audit
                     where id < :before
                       and (:token is null or token_id = :token)
                       and (:project is null or project_id = :project)
                       and (:operation is null or operation = :operation)
                       and (:outcome is null or outcome = :outcome)
                       and (:since is null or at >= :since)
                     order by id desc limit :limit",
                )?;
                let rows = statement.query_map(
                    named_params! {
                        ":before": before,
                        ":token": filter.token_id.map(|id| id.to_string()),
                        ":project": filter.project_id.map(|id| id.to_string()),
                        ":operation": filter.operation,
                        ":outcome": filter.outcome.map(AuditOutcome::as_str),
                        ":since": filter.since.map(to_millis),
                        ":limit": limit + 1,
                    },
                    record,
                )?;
                Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
            })
            .await?;
        Ok(Page::from_rows(rows, limit, |record| record.id.to_string()))
    }

    async fn trim_audit(&self, before: Timestamp) -> Result<usize> {
        self.write(move |connection| {
            Ok(connection.execute("delete from audit where at < ?1", [to_millis(before)])?)
        })
        .await
    }
}
