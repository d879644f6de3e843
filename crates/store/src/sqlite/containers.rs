//! Containers in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{KeyHash, ProjectId, WorkspaceId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Sqlite;
use super::audit::append_audit_entry;
use super::convert::{ReadColumns, to_millis};
use super::projects::is_ready;
use super::writer::overwrite_deleted;
use crate::{
    AuditEntry, Container, ContainerStore, DROPPED_RESULT, Exec, MAX_KEPT_RESULT_BYTES,
    MAX_KEPT_RESULTS, Result,
};

const SELECT_CONTAINERS: &str =
    "select id, project_id, workspace_id, key_hash, created_at from containers";

fn container(row: &Row<'_>) -> rusqlite::Result<Container> {
    Ok(Container {
        id: row.get(0)?,
        project_id: row.parsed(1)?,
        workspace_id: row.optional_parsed(2)?,
        key: KeyHash::from_bytes(row.get(3)?),
        created_at: row.time(4)?,
    })
}

fn exec(row: &Row<'_>) -> rusqlite::Result<Exec> {
    Ok(Exec {
        project_id: row.parsed(0)?,
        exec_id: row.get(1)?,
        boot_id: row.get(2)?,
        started_at: row.time(3)?,
        command_hash: row.get(4)?,
        result: row.get(5)?,
    })
}

fn find_exec(
    connection: &Connection,
    project: ProjectId,
    exec_id: &str,
) -> rusqlite::Result<Option<Exec>> {
    connection
        .prepare_cached(
            "select project_id, exec_id, boot_id, started_at, command_hash, result from execs
             where project_id = ?1 and exec_id = ?2",
        )?
        .query_row(params![project.to_string(), exec_id], exec)
        .optional()
}

/// Drops the oldest results of a project beyond what is kept, but not that of `newest`.
fn drop_old_results(connection: &Connection, project: &str, newest: &str) -> Result<()> {
    connection
        .prepare_cached(
            "update execs set result = ?5, result_bytes = 0
             where project_id = ?1 and exec_id in (
                 select exec_id from (
                     select exec_id, row_number() over newest_first as place,
                            sum(result_bytes) over newest_first as bytes
                     from execs where project_id = ?1 and result_bytes > 0
                     window newest_first as (order by started_at desc, exec_id)
                 ) where (place > ?3 or bytes > ?4) and exec_id <> ?2
             )",
        )?
        .execute(params![
            project,
            newest,
            MAX_KEPT_RESULTS,
            MAX_KEPT_RESULT_BYTES as i64,
            DROPPED_RESULT
        ])?;
    Ok(())
}

#[async_trait]
impl ContainerStore for Sqlite {
    async fn put_container(&self, container: &Container) -> Result<bool> {
        let container = container.clone();
        self.write(move |connection| {
            if !is_ready(connection, container.project_id)? {
                return Ok(false);
            }
            let workspace = container.workspace_id.as_ref().map(WorkspaceId::as_str);
            let project = container.project_id.to_string();
            if let Some(workspace) = workspace
                && !connection
                    .prepare_cached("select 1 from workspaces where project_id = ?1 and id = ?2")?
                    .exists(params![project, workspace])?
            {
                return Ok(false);
            }
            connection.execute(
                "insert or replace into containers
                     (id, project_id, workspace_id, key_hash, created_at)
                 values (?1, ?2, ?3, ?4, ?5)",
                params![
                    container.id,
                    project,
                    workspace,
                    container.key.as_bytes(),
                    to_millis(container.created_at),
                ],
            )?;
            Ok(true)
        })
        .await
    }

    async fn container(&self, id: &str) -> Result<Option<Container>> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached(&format!("{SELECT_CONTAINERS} where id = ?1"))?
                .query_row([id], container)
                .optional()?)
        })
    }

    async fn containers(&self) -> Result<Vec<Container>> {
        self.read_blocking(|connection| {
            let mut statement = connection.prepare_cached(SELECT_CONTAINERS)?;
            let rows = statement.query_map([], container)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn project_containers(&self, project: ProjectId) -> Result<Vec<Container>> {
        self.read(|connection| {
            let query = format!("{SELECT_CONTAINERS} where project_id = ?1 order by workspace_id");
            let mut statement = connection.prepare_cached(&query)?;
            let rows = statement.query_map([project.to_string()], container)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        self.write(move |connection| {
            connection.execute("delete from containers where id = ?1", [id])?;
            Ok(())
        })
        .await
    }

    async fn add_exec(&self, new: &Exec, audit: Option<AuditEntry>) -> Result<Option<Exec>> {
        let new = new.clone();
        self.write(move |connection| {
            append_audit_entry(connection, audit)?;
            let existing = find_exec(connection, new.project_id, &new.exec_id)?;
            if existing.is_none() {
                connection.execute(
                    "insert into execs (project_id, exec_id, boot_id, started_at, command_hash)
                     values (?1, ?2, ?3, ?4, ?5)",
                    params![
                        new.project_id.to_string(),
                        new.exec_id,
                        new.boot_id,
                        to_millis(new.started_at),
                        new.command_hash,
                    ],
                )?;
            }
            Ok(existing)
        })
        .await
    }

    async fn exec(&self, project: ProjectId, exec_id: &str) -> Result<Option<Exec>> {
        self.read(|connection| Ok(find_exec(connection, project, exec_id)?))
    }

    async fn remove_unstarted_exec(&self, project: ProjectId, exec_id: &str) -> Result<()> {
        let exec_id = exec_id.to_owned();
        self.write(move |connection| {
            connection.execute(
                "delete from execs where project_id = ?1 and exec_id = ?2 and result is null",
                params![project.to_string(), exec_id],
            )?;
            Ok(())
        })
        .await
    }

    async fn set_exec_result(&self, project: ProjectId, exec_id: &str, result: &str) -> Result<()> {
        let (exec_id, result) = (exec_id.to_owned(), result.to_owned());
        self.write(move |connection| {
            let project = project.to_string();
            connection.execute(
                "update execs set result = ?3, result_bytes = octet_length(?3)
                 where project_id = ?1 and exec_id = ?2",
                params![project, exec_id, result],
            )?;
            overwrite_deleted(connection, |connection| {
                drop_old_results(connection, &project, &exec_id)
            })
        })
        .await
    }

    async fn finished_execs(
        &self,
        project: ProjectId,
        id_prefix: &str,
        limit: u32,
    ) -> Result<Vec<Exec>> {
        let (project, prefix) = (project.to_string(), id_prefix.to_owned());
        self.read_blocking(move |connection| {
            let mut statement = connection.prepare_cached(
                "select project_id, exec_id, boot_id, started_at, command_hash, result from execs
                 where project_id = ?1 and exec_id >= ?2 and exec_id < ?2 || char(1114111)
                     and result <> ''
                 order by started_at desc, exec_id limit ?3",
            )?;
            let rows = statement.query_map(params![project, prefix, limit], exec)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn trim_execs(&self, before: Timestamp) -> Result<usize> {
        self.write(move |connection| {
            // Output of commands is not searched for secrets.
            overwrite_deleted(connection, |connection| {
                Ok(connection.execute(
                    "delete from execs where started_at < ?1",
                    [to_millis(before)],
                )?)
            })
        })
        .await
    }
}
