//! The limits of what a project's files, and what the store has of it, take on the disk.
//!
//! Only a filesystem quota could refuse a write in time. Without one, the server measures projects
//! while their containers are in use: a project over a limit gets no new messages, and one that is
//! far over it no new commands, and its containers are stopped.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use oubliette_model::ProjectId;
use oubliette_runtime::ContainerId;
use oubliette_store::Project;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use super::Containers;
use crate::files::ProjectUsage;
use crate::{EngineError, Result};

const MEASURE_INTERVAL: Duration = Duration::from_secs(20);
/// How long the size of a project on a full disk is not measured again.
const FULL_DISK_MEASURE_INTERVAL: Duration = Duration::from_secs(20);

/// What a project used when it was last measured.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Its files and what the store has of it, if it has a disk limit.
    disk: Option<Amount>,
    /// What the store has of it.
    log: Amount,
    files: ProjectUsage,
}

/// What a project with a disk limit used when it was last measured.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct DiskUsageView {
    /// The files of its workspaces.
    workspaces_mb: u64,
    /// The home directories of its containers, `/root`.
    homes_mb: u64,
    /// What is kept of its workspaces for `session_diff` and `session_rewind`.
    checkpoints_mb: u64,
    /// Software installed in its containers; 0 with a container engine, which keeps that itself.
    installed_mb: u64,
    /// Event logs, waiting messages, schedules and results of commands.
    logs_mb: u64,
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

    fn view(self) -> DiskUsageView {
        DiskUsageView {
            workspaces_mb: self.files.workspaces >> 20,
            homes_mb: self.files.homes >> 20,
            checkpoints_mb: self.files.checkpoints >> 20,
            installed_mb: self.files.installed >> 20,
            logs_mb: self.log.bytes >> 20,
        }
    }

    /// Which limit is reached, by what, and what to do; none if it is within its limits.
    fn limit_reached(self) -> Option<String> {
        if self.log.is_over_limit() {
            return Some(format!(
                "what the server stores for the project (event logs, waiting messages, schedules and results \
                 of commands) takes {}; remove ended sessions with `session_cleanup` or schedules with \
                 `schedule_delete`, or raise `log_mb` in the server's configuration",
                self.log.describe()
            ));
        }
        let disk = self.disk.filter(|disk| disk.is_over_limit())?;
        let DiskUsageView {
            workspaces_mb,
            homes_mb,
            checkpoints_mb,
            installed_mb,
            logs_mb,
        } = self.view();
        let remedy = if disk.is_far_over_limit() {
            // Commands do not run, so files cannot be removed with them.
            "delete a workspace with `workspace_delete` or ended sessions with `session_cleanup`; to remove \
             files of the default workspace, of /root or installed software, raise `disk_mb` with \
             `project_update` first (an admin token can), remove them with `container_exec`, and lower it again"
        } else {
            "remove files with `container_exec` (`du -xm -d 2 /workspace /root | sort -n` shows the largest), \
             ended sessions with `session_cleanup`, or a workspace with `workspace_delete`, or raise `disk_mb` \
             with `project_update`"
        };
        Some(format!(
            "the disk limit of the project (`disk_mb`) was reached: it takes {} of disk space (workspaces \
             {workspaces_mb} MB, home directories {homes_mb} MB, checkpoints {checkpoints_mb} MB, installed \
             software {installed_mb} MB, event logs {logs_mb} MB); {remedy}",
            disk.describe()
        ))
    }
}

#[derive(Debug, Default)]
pub(super) struct DiskUsage {
    measured: Mutex<HashMap<ProjectId, Measured>>,
    /// The bytes that the files of projects took on a full disk, and when.
    on_full_disk: Mutex<HashMap<ProjectId, (Instant, u64)>>,
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

    /// What the parts of a project with a disk limit used when it was last measured.
    pub(crate) fn disk_usage_view(self, project: ProjectId) -> Option<DiskUsageView> {
        let measured = self.state().disk_usage.measured.lock();
        let measured = measured.get(&project)?;
        measured.disk.map(|_| measured.view())
    }

    /// Which limit of a project was reached when it was last measured, by what, and what to do.
    pub(crate) fn disk_limit_reached(self, project: ProjectId) -> Option<String> {
        let measured = self.state().disk_usage.measured.lock();
        measured.get(&project)?.limit_reached()
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
        measured
            .limit_reached()
            .map_or(Ok(()), |reason| Err(EngineError::Failed(reason)))
    }

    /// The name of a project and the megabytes that its files take, for people who have to free space.
    pub(crate) async fn measure_on_full_disk(self, id: ProjectId) -> Option<(String, u64)> {
        let project = self.engine.store().project(id).await.ok()??;
        let known = self
            .state()
            .disk_usage
            .on_full_disk
            .lock()
            .get(&id)
            .copied();
        let recent = known.filter(|(at, _)| at.elapsed() < FULL_DISK_MEASURE_INTERVAL);
        if let Some((_, bytes)) = recent {
            return Some((project.name.to_string(), bytes >> 20));
        }
        let containers = self.of_project(id).await.unwrap_or_default();
        let ids: Vec<_> = containers.iter().map(ContainerId::as_str).collect();
        let files = self.engine.files().disk_usage(id, &ids).await.ok()?;
        let bytes = files.total();
        let mut all = self.state().disk_usage.on_full_disk.lock();
        all.retain(|_, (at, _)| at.elapsed() < FULL_DISK_MEASURE_INTERVAL);
        all.insert(id, (Instant::now(), bytes));
        Some((project.name.to_string(), bytes >> 20))
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
        let reason = measured.limit_reached().unwrap_or_default();
        for id in self.of_project(project.id).await.unwrap_or_default() {
            // Before the stop: commands and agents that end with it say why.
            self.state().set_stop_reason(&id, reason.clone());
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
        let mut measured = Measured {
            disk: None,
            log,
            files: ProjectUsage::default(),
        };
        if let Some(limit_mb) = limits.disk_of(&project.settings.limits) {
            let containers = self.of_project(project.id).await.unwrap_or_default();
            let ids: Vec<_> = containers.iter().map(ContainerId::as_str).collect();
            let files = self.engine.files().disk_usage(project.id, &ids).await;
            let files = files.inspect_err(|error| {
                tracing::warn!(project = %project.id, %error, "could not measure the files of a project");
            });
            measured.files = files.ok()?;
            measured.disk = Some(Amount {
                bytes: measured.files.total().saturating_add(stored),
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
