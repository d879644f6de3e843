//! What projects take on the disk, measured where somebody set a limit. Nothing is stopped for it:
//! only the filesystem could do that in time.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use oubliette_model::ProjectId;

use super::lock;
use crate::Engine;

const ROUND: Duration = Duration::from_secs(20);

/// The last measure of each project.
#[derive(Debug, Default)]
pub(super) struct Disk {
    used: Mutex<HashMap<ProjectId, u64>>,
}

impl Engine {
    /// What a project took on the disk when it was last measured.
    pub(crate) fn disk_used(&self, project: ProjectId) -> Option<u64> {
        lock(&self.containers().disk.used).get(&project).copied()
    }

    /// Measures, now and then, the projects whose containers are in use.
    pub(super) async fn measure_disks(&self) {
        loop {
            for project in self.limited_ones().await {
                tokio::select! {
                    () = self.measure_disk(project.0, project.1) => {}
                    () = self.stopping() => return,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(ROUND) => {}
                () = self.stopping() => return,
            }
        }
    }

    /// Projects with a limit of the disk and a container that is or was lately in use, and the
    /// limit in bytes.
    async fn limited_ones(&self) -> Vec<(ProjectId, u64)> {
        let used: Vec<String> = {
            let used = lock(&self.containers().used);
            used.keys().map(|id| id.as_str().to_owned()).collect()
        };
        let mut limited = HashMap::new();
        for id in used {
            let Ok(Some(container)) = self.store().container(&id).await else {
                continue;
            };
            let Ok(Some(project)) = self.store().get(container.project_id).await else {
                continue;
            };
            let limit = self.settings().limits.disk_of(&project.settings.limits);
            limited.extend(limit.map(|mb| (project.id, u64::from(mb) << 20)));
        }
        limited.into_iter().collect()
    }

    async fn measure_disk(&self, project: ProjectId, limit: u64) {
        let size = match self.files().disk_usage(project).await {
            Ok(size) => size,
            Err(error) => {
                tracing::warn!(%project, %error, "its files could not be measured");
                return;
            }
        };
        let before = lock(&self.containers().disk.used).insert(project, size);
        let is_news = before.is_none_or(|before| before <= limit);
        if size > limit && is_news {
            let (used_mb, limit_mb) = (size >> 20, limit >> 20);
            tracing::warn!(%project, used_mb, limit_mb, "takes more of the disk than it may");
        }
    }
}
