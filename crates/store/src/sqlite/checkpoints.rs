//! Checkpoints in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, SessionId};
use rusqlite::{Connection, OptionalExtension, params};

use super::Sqlite;
use super::audit::append_audit_entry;
use super::convert::{ReadColumns, to_millis};
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

    async fn later_work(&self, session: SessionId, turn: u32) -> Result<Option<SessionId>> {
        self.read_blocking(move |connection| {
            let found = connection
                .prepare_cached(
                    "with own as (select * from sessions where id = ?1),
                     since (position) as (select coalesce(case when ?2 > 0 then
                         (select max(position) from events where session = (select seq from own)
                              and kind = 'checkpoint' and json_extract(body, '$.turn') = ?2)
                     when (select trimmed_before from own) = 0 then
                         (select min(position) from events where session = (select seq from own)
                              and kind = 'prompt')
                     end, 0))
                     select other.id from sessions other, own, since
                     where other.project_id = own.project_id
                       and other.workspace_id = own.workspace_id
                       and other.root_id != own.root_id
                       and exists (select 1 from events where session = other.seq
                           and position > since.position and kind in ('completion', 'rewound'))
                     order by other.seq desc limit 1",
                )?
                .query_row(params![session.to_string(), turn], |row| row.parsed(0))
                .optional()?;
            Ok(found)
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
