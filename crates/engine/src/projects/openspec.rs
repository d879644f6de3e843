//! Reads the OpenSpec directory of a workspace, and finds the sessions that work on its changes.

use std::collections::HashMap;
use std::time::Duration;

use oubliette_model::{ProjectId, SessionId, Status, WorkspaceId};
use oubliette_store::{SessionFilter, VisibleProjects};
use schemars::JsonSchema;
use serde::Serialize;

use super::Projects;
use crate::files::{ReadLimits, WorkspaceTree};
use crate::{Result, paging};

/// Far more than people write by hand.
pub(super) const ALL_CHANGES_LIMITS: ReadLimits = ReadLimits {
    max_entries: 200_000,
    // So many per entry that an ordinary tree reaches the limit of entries first.
    max_lookups: 5_000_000,
    max_time: Duration::from_secs(10),
    max_total_bytes: 128 << 20,
    max_file_bytes: 8 << 20,
};
/// Lower, because the files become part of the result.
pub(super) const ONE_CHANGE_LIMITS: ReadLimits = ReadLimits {
    max_total_bytes: 16 << 20,
    ..ALL_CHANGES_LIMITS
};
/// How many pages of sessions are searched for those that work on changes.
const MAX_SESSION_PAGES: usize = 10;

/// A session that works on a change.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ActiveSession {
    session_id: SessionId,
    workspace_id: WorkspaceId,
    status: Status,
}

impl Projects<'_> {
    /// Runs `read` on the files of a workspace; `None` if its directory does not exist yet.
    pub(super) async fn read_openspec<T: Send + 'static>(
        self,
        project: ProjectId,
        workspace: Option<WorkspaceId>,
        limits: ReadLimits,
        read: impl FnOnce(&WorkspaceTree) -> T + Send + 'static,
    ) -> Result<Option<T>> {
        self.engine.project(project).await?;
        let workspace = workspace.unwrap_or_default();
        self.engine
            .workspaces()
            .require(project, &workspace)
            .await?;
        let files = self.engine.files();
        if !files.has_workspace(project, &workspace) {
            return Ok(None);
        }
        let result = files.read_workspace(project, &workspace, limits, read);
        Ok(Some(result.await?))
    }

    /// The sessions of a project that have not ended, by their change: for one change or for all.
    pub(super) async fn active_sessions(
        self,
        project: ProjectId,
        change: Option<&str>,
    ) -> Result<HashMap<String, Vec<ActiveSession>>> {
        let filter = SessionFilter {
            active: Some(true),
            change_id: change.map(str::to_owned),
            ..SessionFilter::default()
        };
        let mut by_change: HashMap<String, Vec<ActiveSession>> = HashMap::new();
        let mut after: Option<String> = None;
        for _ in 0..MAX_SESSION_PAGES {
            let visible = VisibleProjects::Only(project);
            let page = self
                .engine
                .store()
                .sessions(visible, &filter, after.as_deref(), paging::MAX_LIMIT)
                .await?;
            for session in page.rows {
                if let Some(change) = session.choices.change_id {
                    by_change.entry(change).or_default().push(ActiveSession {
                        session_id: session.id,
                        workspace_id: session.workspace_id,
                        status: session.status,
                    });
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(by_change)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use oubliette_openspec::list_changes;
    use uuid::Uuid;

    use super::*;
    use crate::files::Files;

    #[tokio::test]
    async fn reading_a_complex_schema_over_many_directories_stops_at_a_limit() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        let project = ProjectId::new(Uuid::from_u128(1));
        let workspace = files.create_project_dirs(project).await.unwrap();
        let openspec = workspace.join("openspec");
        for number in 0..100 {
            fs::create_dir_all(openspec.join(format!("changes/{number}/empty"))).unwrap();
        }
        let alternatives = "{a,b}".repeat(8);
        let mut schema = "name: s\nversion: 1\nartifacts:\n".to_owned();
        for number in 0..1000 {
            schema += &format!(
                "  - {{id: a{number}, generates: '*/{alternatives}', template: t, description: d}}\n"
            );
        }
        fs::create_dir_all(openspec.join("schemas/s")).unwrap();
        fs::write(openspec.join("schemas/s/schema.yaml"), schema).unwrap();
        fs::write(openspec.join("config.yaml"), "schema: s\n").unwrap();
        let few_lookups = ReadLimits {
            max_lookups: 10_000,
            max_time: Duration::from_secs(600),
            ..ALL_CHANGES_LIMITS
        };
        let short_time = ReadLimits {
            max_entries: usize::MAX,
            max_lookups: usize::MAX,
            max_time: Duration::from_secs(1),
            ..ALL_CHANGES_LIMITS
        };
        for limits in [few_lookups, short_time] {
            let started = Instant::now();
            let workspace = WorkspaceId::default();
            let listed = files
                .read_workspace(project, &workspace, limits, |tree| list_changes(tree))
                .await
                .unwrap();
            let error = listed.unwrap_err();
            assert!(error.contains("too complex"), "{error}");
            assert!(started.elapsed() < Duration::from_secs(60));
        }
    }
}
