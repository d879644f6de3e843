//! Projects in SQLite.

use async_trait::async_trait;
use oubliette_model::{ProjectId, WorkspaceId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Sqlite;
use super::audit::append_audit_entry;
use super::convert::{ReadColumns, json_column, to_json, to_millis};
use super::schedules::remove_project_targets;
use super::writer::overwrite_deleted;
use crate::{
    AuditEntry, Page, Project, ProjectState, ProjectStore, ProjectUpdate, Result, VisibleProjects,
};

const COLUMNS: &str = "id, name, revision, settings, created_at, updated_at";

fn project(row: &Row<'_>) -> rusqlite::Result<Project> {
    Ok(Project {
        id: row.parsed(0)?,
        name: row.parsed(1)?,
        revision: row.get(2)?,
        settings: json_column(row, 3)?,
        created_at: row.time(4)?,
        updated_at: row.time(5)?,
    })
}

fn find(connection: &Connection, id: ProjectId) -> Result<Option<Project>> {
    Ok(connection
        .prepare_cached(&format!(
            "select {COLUMNS} from projects where id = ?1 and state = 'ready'"
        ))?
        .query_row([id.to_string()], project)
        .optional()?)
}

pub(super) fn is_ready(connection: &Connection, id: ProjectId) -> Result<bool> {
    Ok(connection
        .prepare_cached("select 1 from projects where id = ?1 and state = 'ready'")?
        .exists([id.to_string()])?)
}

/// Changes the state of a project; how many rows that changed. SQLite moves the settings, in which secrets
/// may be, to other pages.
fn set_state(connection: &Connection, id: ProjectId, from: &str, to: &str) -> Result<usize> {
    overwrite_deleted(connection, |connection| {
        Ok(connection.execute(
            "update projects set state = ?3 where id = ?1 and state = ?2",
            params![id.to_string(), from, to],
        )?)
    })
}

#[async_trait]
impl ProjectStore for Sqlite {
    async fn reserve_project(&self, project: &Project) -> Result<()> {
        let settings = to_json(&project.settings)?;
        let project = project.clone();
        self.write(move |connection| {
            connection.execute(
                "insert into projects (id, name, state, revision, settings, created_at, updated_at)
                 values (?1, ?2, 'creating', ?3, ?4, ?5, ?6)",
                params![
                    project.id.to_string(),
                    project.name.as_str(),
                    project.revision,
                    settings,
                    to_millis(project.created_at),
                    to_millis(project.updated_at),
                ],
            )?;
            Ok(())
        })
        .await
    }

    async fn confirm_project(&self, id: ProjectId, audit: Option<AuditEntry>) -> Result<bool> {
        self.write(move |connection| {
            let confirmed = set_state(connection, id, "creating", "ready")?;
            if confirmed == 0 {
                return Ok(false);
            }
            connection.execute(
                "insert into workspaces (project_id, id, created_at)
                 select id, ?2, created_at from projects where id = ?1",
                params![id.to_string(), WorkspaceId::DEFAULT],
            )?;
            append_audit_entry(connection, audit)?;
            Ok(true)
        })
        .await
    }

    async fn project(&self, id: ProjectId) -> Result<Option<Project>> {
        self.read(|connection| find(connection, id))
    }

    async fn projects_matching(
        &self,
        visible: VisibleProjects,
        name: &str,
        prefix: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Project>> {
        let only = match visible {
            VisibleProjects::Only(id) => Some(id.to_string()),
            VisibleProjects::All => None,
        };
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&format!(
                "select {COLUMNS} from projects
                 where (name = ?1 or (id >= ?2 and id < ?2 || 'g'))
                   and state = 'ready' and (?3 is null or id = ?3)
                 order by name limit ?4"
            ))?;
            let rows = statement.query_map(params![name, prefix, only, limit], project)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }

    async fn projects(
        &self,
        visible: VisibleProjects,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Project>> {
        let after = after.unwrap_or_default().to_owned();
        let rows = match visible {
            VisibleProjects::Only(id) => {
                let own = self.read(|connection| find(connection, id))?;
                own.into_iter()
                    .filter(|project| project.name.as_str() > after.as_str())
                    .collect()
            }
            VisibleProjects::All => {
                self.read_blocking(move |connection| {
                    let mut statement = connection.prepare_cached(&format!(
                        "select {COLUMNS} from projects where name > ?1 and state = 'ready'
                         order by name limit ?2"
                    ))?;
                    let rows = statement.query_map(params![after, limit + 1], project)?;
                    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
                })
                .await?
            }
        };
        Ok(Page::from_rows(rows, limit, |project| {
            project.name.to_string()
        }))
    }

    async fn update_project(
        &self,
        project: &Project,
        audit: Option<AuditEntry>,
    ) -> Result<ProjectUpdate> {
        let settings = to_json(&project.settings)?;
        let project = project.clone();
        self.write(move |connection| {
            // The settings that are replaced may have secrets.
            let updated = overwrite_deleted(connection, |connection| {
                Ok(connection.execute(
                    "update projects set name = ?3, settings = ?4, updated_at = ?5,
                        revision = revision + 1
                     where id = ?1 and revision = ?2 and state = 'ready'",
                    params![
                        project.id.to_string(),
                        project.revision,
                        project.name.as_str(),
                        settings,
                        to_millis(project.updated_at),
                    ],
                )?)
            })?;
            if updated == 0 {
                return Ok(ProjectUpdate::Stale);
            }
            append_audit_entry(connection, audit)?;
            let revision = project.revision + 1;
            Ok(ProjectUpdate::Done(Box::new(Project {
                revision,
                ..project
            })))
        })
        .await
    }

    async fn mark_project_deleting(
        &self,
        id: ProjectId,
        audit: Option<AuditEntry>,
    ) -> Result<Option<usize>> {
        self.write(move |connection| {
            let marked = set_state(connection, id, "ready", "deleting")?;
            if marked == 0 {
                return Ok(None);
            }
            let delete_where = |condition: &str| {
                connection.execute(
                    &format!(
                        "delete from tokens where {condition} and
                         scope in ('project:' || ?1, 'project:' || ?1 || ':ro')"
                    ),
                    [id.to_string()],
                )
            };
            // Those that were revoked before are not counted.
            delete_where("revoked_at is not null")?;
            let tokens = delete_where("true")?;
            remove_project_targets(connection, id)?;
            append_audit_entry(connection, audit)?;
            Ok(Some(tokens))
        })
        .await
    }

    async fn delete_project(&self, id: ProjectId) -> Result<()> {
        let id = id.to_string();
        // Only what may have secrets: overwriting the logs, from which they are removed, takes long.
        let emptied = id.clone();
        self.write_and_purge(move |connection| {
            connection.execute("delete from execs where project_id = ?1", [&emptied])?;
            connection.execute(
                "update projects set settings = '{}' where id = ?1",
                [&emptied],
            )?;
            Ok(())
        })
        .await?;
        self.write(move |connection| {
            connection.execute("delete from projects where id = ?1", [&id])?;
            Ok(())
        })
        .await
    }

    async fn unfinished_projects(&self) -> Result<Vec<(ProjectId, ProjectState)>> {
        self.read_blocking(|connection| {
            let mut statement =
                connection.prepare("select id, state from projects where state <> 'ready'")?;
            let rows = statement.query_map([], |row| {
                let state = match row.get_ref(1)?.as_str()? {
                    "creating" => ProjectState::Creating,
                    _ => ProjectState::Deleting,
                };
                Ok((row.parsed(0)?, state))
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn count_projects(&self) -> Result<i64> {
        self.read(|connection| {
            Ok(connection.query_row(
                "select count(*) from projects where state = 'ready'",
                [],
                |row| row.get(0),
            )?)
        })
    }
}
