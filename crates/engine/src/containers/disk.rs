//! Measures the disk usage of projects with a limit. A project over its limit is only reported: no
//! process is stopped, because only the filesystem could enforce the limit in time.

use std::collections::HashMap;
use std::time::Duration;

use oubliette_model::ProjectId;
use parking_lot::Mutex;

use super::Containers;

const MEASURE_INTERVAL: Duration = Duration::from_secs(20);

/// The last measured size of each project.
#[derive(Debug, Default)]
pub(super) struct DiskUsage {
    bytes: Mutex<HashMap<ProjectId, u64>>,
}

impl Containers<'_> {
    /// The size of a project's files when they were last measured.
    pub(crate) fn disk_usage_bytes(self, project: ProjectId) -> Option<u64> {
        self.state().disk_usage.bytes.lock().get(&project).copied()
    }

    /// Measures the projects whose containers are in use until the engine ends.
    pub(crate) async fn measure_disk_usage(self) {
        loop {
            for (project, limit_bytes) in self.projects_with_disk_limit().await {
                tokio::select! {
                    () = self.measure_project(project, limit_bytes) => {}
                    () = self.engine.stopping() => return,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(MEASURE_INTERVAL) => {}
                () = self.engine.stopping() => return,
            }
        }
    }

    /// Projects with a disk limit whose container is or was recently in use, with the limit in bytes.
    async fn projects_with_disk_limit(self) -> HashMap<ProjectId, u64> {
        let containers: Vec<String> = {
            let usage = self.state().usage.lock();
            usage.keys().map(|id| id.as_str().to_owned()).collect()
        };
        let store = self.engine.store();
        let mut limits = HashMap::new();
        for id in containers {
            let Ok(Some(container)) = store.container(&id).await else {
                continue;
            };
            let Ok(Some(project)) = store.project(container.project_id).await else {
                continue;
            };
            let defaults = &self.engine.settings().limits;
            let limit = defaults.disk_of(&project.settings.limits);
            limits.extend(limit.map(|mb| (project.id, u64::from(mb) << 20)));
        }
        limits
    }

    async fn measure_project(self, project: ProjectId, limit_bytes: u64) {
        let bytes = match self.engine.files().disk_usage(project).await {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(%project, %error, "could not measure the files of a project");
                return;
            }
        };
        let before = self.state().disk_usage.bytes.lock().insert(project, bytes);
        let was_within_limit = before.is_none_or(|before| before <= limit_bytes);
        if bytes > limit_bytes && was_within_limit {
            let (used_mb, limit_mb) = (bytes >> 20, limit_bytes >> 20);
            tracing::warn!(%project, used_mb, limit_mb, "a project exceeds its disk limit");
        }
    }
}
