//! Workspaces in SQLite.

use async_trait::async_trait;
use oubliette_model::{ProjectId, WorkspaceId};
use rusqlite::{OptionalExtension, Row, params};

use super::Sqlite;
use super::audit::append_audit_entry;
use super::convert::{ReadColumns, to_millis};
use super::projects::is_ready;
use crate::{AuditEntry, Page, Result, StoreError, Workspace, WorkspaceStore};

fn workspace(row: &Row<'_>) -> rusqlite::Result<Workspace> {
    Ok(Workspace {
        id: row.parsed(0)?,
        created_at: row.time(1)?,
    })
}

#[async_trait]
impl WorkspaceStore for Sqlite {
    async fn add_workspace(
        &self,
        project: ProjectId,
        workspace: &Workspace,
        max_workspaces: u32,
    ) -> Result<bool> {
        let workspace = workspace.clone();
        self.write(move |connection| {
            if !is_ready(connection, project)? {
                return Ok(false);
            }
            let count: u32 = connection.query_row(
                "select count(*) from workspaces where project_id = ?1 and id <> ?2",
                params![project.to_string(), workspace.id.as_str()],
                |row| row.get(0),
            )?;
            if count >= max_workspaces {
                return Err(StoreError::TooManyWorkspaces { count });
            }
            connection.execute(
                "insert into workspaces (project_id, id, created_at) values (?1, ?2, ?3)",
                params![
                    project.to_string(),
                    workspace.id.as_str(),
                    to_millis(workspace.created_at)
                ],
            )?;
            Ok(true)
        })
        .await
    }

    async fn workspace(&self, project: ProjectId, id: &WorkspaceId) -> Result<Option<Workspace>> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached(
                    "select id, created_at from workspaces where project_id = ?1 and id = ?2",
                )?
                .query_row(params![project.to_string(), id.as_str()], workspace)
                .optional()?)
        })
    }

    async fn workspaces(
        &self,
        project: ProjectId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Workspace>> {
        let after = after.unwrap_or_default().to_owned();
        let rows = self
            .read_blocking(move |connection| {
                let mut statement = connection.prepare_cached(
                    "select id, created_at from workspaces where project_id = ?1 and id > ?2
                     order by id limit ?3",
                )?;
                let rows = statement
                    .query_map(params![project.to_string(), after, limit + 1], workspace)?;
                Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
            })
            .await?;
        Ok(Page::from_rows(rows, limit, |workspace| {
            workspace.id.to_string()
        }))
    }

    async fn remove_workspace(
        &self,
        project: ProjectId,
        id: &WorkspaceId,
        audit: Option<AuditEntry>,
    ) -> Result<bool> {
        let id = id.clone();
        self.write(move |connection| {
            let in_use = connection
                .prepare_cached(
                    "select 1 from sessions
                     where project_id = ?1 and workspace_id = ?2 and ended_at is null",
                )?
                .exists(params![project.to_string(), id.as_str()])?;
            if in_use {
                return Err(StoreError::InUse);
            }
            let removed = connection.execute(
                "delete from workspaces where project_id = ?1 and id = ?2",
                params![project.to_string(), id.as_str()],
            )?;
            if removed > 0 {
                append_audit_entry(connection, audit)?;
            }
            Ok(removed > 0)
        })
        .await
    }
}
