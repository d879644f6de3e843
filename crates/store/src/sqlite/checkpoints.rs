//! Checkpoints in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, SessionId};
use rusqlite::{Connection, OptionalExtension, params};

use super::Sqlite;
use super::audit::append_audit_entry;
use super::convert::to_millis;
use super::sessions::find_seq;
use crate::{AuditEntry, Checkpoint, CheckpointStep, CheckpointStore, Result, TreeHash};

/// Adds what a step knows about its turn.
pub(super) fn record(connection: &Connection, seq: i64, step: &CheckpointStep) -> Result<()> {
    connection
        .prepare_cached(
            "insert into checkpoints (session, turn, before, after) values (?1, ?2, ?3, ?4)
             on conflict (session, turn) do update set
                 before = coalesce(excluded.before, before),
                 after = coalesce(excluded.after, after)",
        )?
        .execute(params![seq, step.turn, step.before, step.after])?;
    Ok(())
}

#[async_trait]
impl CheckpointStore for Sqlite {
    async fn checkpoints(&self, session: SessionId) -> Result<Vec<Checkpoint>> {
        self.read_blocking(move |connection| {
            let mut statement = connection.prepare_cached(
                "select turn, before, after from checkpoints join sessions on session = seq
                 where id = ?1 order by turn",
            )?;
            let rows = statement.query_map([session.to_string()], |row| {
                Ok(Checkpoint {
                    turn: row.get(0)?,
                    before: row.get(1)?,
                    after: row.get(2)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn keep_tree(&self, session: SessionId, tree: TreeHash, at: Timestamp) -> Result<()> {
        self.write(move |connection| {
            if let Some(seq) = find_seq(connection, session)? {
                connection
                    .prepare_cached(
                        "insert into kept_trees (session, tree, at) values (?1, ?2, ?3)
                         on conflict (session, tree) do update set at = excluded.at",
                    )?
                    .execute(params![seq, tree, to_millis(at)])?;
            }
            Ok(())
        })
        .await
    }

    async fn project_trees(&self, project: ProjectId) -> Result<Vec<TreeHash>> {
        self.read_blocking(move |connection| {
            let mut statement = connection.prepare_cached(
                "with own as (select seq from sessions where project_id = ?1)
                 select before from checkpoints where session in own and before is not null
                 union select after from checkpoints where session in own and after is not null
                 union select tree from kept_trees where session in own",
            )?;
            let rows = statement.query_map([project.to_string()], |row| row.get(0))?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn reviewed_turn(&self, session: SessionId) -> Result<Option<u32>> {
        self.read(|connection| {
            let turn = connection
                .prepare_cached("select reviewed_turn from sessions where id = ?1")?
                .query_row([session.to_string()], |row| row.get(0))
                .optional()?;
            Ok(turn.flatten())
        })
    }

    async fn set_reviewed_turn(
        &self,
        session: SessionId,
        turn: u32,
        audit: Option<AuditEntry>,
    ) -> Result<bool> {
        self.write(move |connection| {
            let changed = connection
                .prepare_cached("update sessions set reviewed_turn = ?2 where id = ?1")?
                .execute(params![session.to_string(), turn])?;
            if changed > 0 {
                append_audit_entry(connection, audit)?;
            }
            Ok(changed > 0)
        })
        .await
    }
}
