//! The limits of what a project's files, and what the store has of it, take on the disk.
//!
//! Only a filesystem quota could refuse a write in time. Without one, the server measures projects
//! while their containers are in use: a project over a limit gets no new messages, and one that is
//! far over it no new commands, and its containers are stopped.

use std::collections::HashMap;
use std::time::Duration;

use oubliette_model::ProjectId;
use oubliette_runtime::ContainerId;
use oubliette_store::Project;
use parking_lot::Mutex;

use super::Containers;
use crate::{EngineError, Result};

const MEASURE_INTERVAL: Duration = Duration::from_secs(20);

/// What a project used when it was last measured.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Its files and what the store has of it, if it has a disk limit.
    disk: Option<Amount>,
    /// What the store has of it.
    log: Amount,
}

#[derive(Debug, Clone, Copy)]
struct Amount {
    bytes: u64,
    limit_bytes: u64,
}

impl Amount {
    fn is_over_limit(self) -> bool {
        self.bytes > self.limit_bytes
    }

    /// Commands still run a little above the limit, so that files can be removed.
    fn is_far_over_limit(self) -> bool {
        self.bytes > self.limit_bytes.saturating_add(self.limit_bytes / 4)
    }

    fn describe(self) -> String {
        let (used, limit) = (self.bytes >> 20, self.limit_bytes >> 20);
        format!("{used} MB, more than its limit of {limit} MB")
    }
}

impl Measured {
    fn is_over_limit(self) -> bool {
        self.log.is_over_limit() || self.disk.is_some_and(Amount::is_over_limit)
    }

    fn is_far_over_limit(self) -> bool {
        self.log.is_far_over_limit() || self.disk.is_some_and(Amount::is_far_over_limit)
    }
}

#[derive(Debug, Default)]
pub(super) struct DiskUsage {
    measured: Mutex<HashMap<ProjectId, Measured>>,
}

impl DiskUsage {
    pub(super) fn count(&self) -> usize {
        self.measured.lock().len()
    }
}

/// What a call would add to a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskUse {
    Message,
    Command,
}

impl Containers<'_> {
    /// The size of a project with a disk limit when it was last measured.
    pub(crate) fn disk_usage_bytes(self, project: ProjectId) -> Option<u64> {
        let measured = self.state().disk_usage.measured.lock();
        measured.get(&project)?.disk.map(|disk| disk.bytes)
    }

    /// Forgets what a deleted project used.
    pub(crate) fn forget_disk_usage(self, project: ProjectId) {
        self.state().disk_usage.measured.lock().remove(&project);
    }

    /// Whether any project was over a limit when it was last measured.
    pub(crate) fn is_any_over_disk_limit(self) -> bool {
        let measured = self.state().disk_usage.measured.lock();
        measured.values().any(|measured| measured.is_over_limit())
    }

    /// Fails if a project is over a limit. A project that was is measured again first: files or
    /// sessions may have been removed, or the limit raised.
    pub(crate) async fn require_disk_space(self, project: &Project, used: DiskUse) -> Result<()> {
        let is_refused = |measured: Measured| match used {
            DiskUse::Message => measured.is_over_limit(),
            DiskUse::Command => measured.is_far_over_limit(),
        };
        let last = self
            .state()
            .disk_usage
            .measured
            .lock()
            .get(&project.id)
            .copied();
        if !last.is_some_and(is_refused) {
            return Ok(());
        }
        let stored = self.engine.store().stored_bytes().await?;
        let stored = stored.get(&project.id).copied().unwrap_or(0);
        let measured = match self.measure_project(project, stored).await {
            Some(measured) if is_refused(measured) => measured,
            _ => return Ok(()),
        };
        if measured.log.is_over_limit() {
            return Err(EngineError::Failed(format!(
                "what the server stores for the project (event logs, waiting messages, schedules and results \
                 of commands) takes {}; remove ended sessions with `session_cleanup` or schedules with \
                 `schedule_delete`, or raise `log_mb` in the server's configuration",
                measured.log.describe()
            )));
        }
        let remedy = match used {
            DiskUse::Message => {
                "remove files with `container_exec`, ended sessions with `session_cleanup`, or delete a \
                 workspace with `workspace_delete`"
            }
            DiskUse::Command => {
                "delete a workspace with `workspace_delete` or remove ended sessions with \
                 `session_cleanup`"
            }
        };
        let disk = measured.disk.unwrap_or(measured.log);
        Err(EngineError::Failed(format!(
            "the project takes {} of disk space; {remedy}, or raise `disk_mb`",
            disk.describe()
        )))
    }

    /// Measures the projects whose containers are in use until the engine ends.
    pub(crate) async fn measure_disk_usage(self) {
        loop {
            let projects = self.projects_in_use().await;
            let stored = if projects.is_empty() {
                HashMap::new()
            } else {
                self.engine.store().stored_bytes().await.unwrap_or_default()
            };
            for project in projects.values() {
                let stored = stored.get(&project.id).copied().unwrap_or(0);
                tokio::select! {
                    () = self.enforce_disk_limit(project, stored) => {}
                    () = self.engine.stopping() => return,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(MEASURE_INTERVAL) => {}
                () = self.engine.stopping() => return,
            }
        }
    }

    /// Projects whose container is or was recently in use.
    async fn projects_in_use(self) -> HashMap<ProjectId, Project> {
        let containers: Vec<String> = {
            let usage = self.state().usage.lock();
            usage.keys().map(|id| id.as_str().to_owned()).collect()
        };
        let store = self.engine.store();
        let mut projects = HashMap::new();
        for id in containers {
            let Ok(Some(container)) = store.container(&id).await else {
                continue;
            };
            if let Ok(Some(project)) = store.project(container.project_id).await {
                projects.insert(project.id, project);
            }
        }
        projects
    }

    async fn enforce_disk_limit(self, project: &Project, stored: u64) {
        let Some(measured) = self.measure_project(project, stored).await else {
            return;
        };
        if !measured.is_far_over_limit() {
            return;
        }
        for id in self.of_project(project.id).await.unwrap_or_default() {
            match self.stop(&id).await {
                Ok(true) => {
                    tracing::warn!(project = %project.id, container = %id, "stopped a container that exceeds its disk limit");
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(project = %project.id, container = %id, %error, "could not stop a container that exceeds its disk limit");
                }
            }
        }
    }

    /// Measures what a project takes; `None` if that fails. `stored` is what its logs take.
    async fn measure_project(self, project: &Project, stored: u64) -> Option<Measured> {
        let limits = &self.engine.settings().limits;
        let log = Amount {
            bytes: stored,
            limit_bytes: u64::from(limits.log_mb) << 20,
        };
        let mut measured = Measured { disk: None, log };
        if let Some(limit_mb) = limits.disk_of(&project.settings.limits) {
            let containers = self.of_project(project.id).await.unwrap_or_default();
            let ids: Vec<_> = containers.iter().map(ContainerId::as_str).collect();
            let files = self.engine.files().disk_usage(project.id, &ids).await;
            let files = files.inspect_err(|error| {
                tracing::warn!(project = %project.id, %error, "could not measure the files of a project");
            });
            measured.disk = Some(Amount {
                bytes: files.ok()?.bytes.saturating_add(stored),
                limit_bytes: u64::from(limit_mb) << 20,
            });
        }
        let before = {
            let mut all = self.state().disk_usage.measured.lock();
            all.insert(project.id, measured)
        };
        if matches!(self.engine.store().project(project.id).await, Ok(None)) {
            // It was deleted meanwhile.
            self.forget_disk_usage(project.id);
            return None;
        }
        let was_within_limit = !before.is_some_and(Measured::is_over_limit);
        if measured.is_over_limit() && was_within_limit {
            tracing::warn!(project = %project.id, ?measured, "a project exceeds its disk limit");
        }
        Some(measured)
    }
}
