//! Checkpoints: what the workspace of a session contained before and after each turn.
//!
//! The server walks the workspace itself, by descriptors: its files are on the server's disk in every
//! runtime, and that takes no process in the container. Objects are in the project's own directory, so that
//! they count for its disk limit and go with it. What is written to a workspace is written in the container.

mod restore;
#[cfg(test)]
mod tests;
mod turn_trees;
mod unfinished;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oubliette_checkpoints::{
    Hash, ObjectStore, ScanError, ScanLimits, StatCache, changes, count_lines,
};
use oubliette_model::{Changed, ProjectId, WorkspaceId};
use oubliette_store::Project;
use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, Semaphore};

use crate::{Engine, EngineError, Result};
pub(crate) use restore::Restored;
pub(crate) use unfinished::{Unfinished, UnfinishedRewind};

/// The directory of a project's objects, in that of the project.
pub(crate) const OBJECTS_DIR: &str = "checkpoints";
/// Scans read from the disk and hold files in memory.
const MAX_CONCURRENT_SCANS: usize = 4;
const MAX_SCANNED_FILES: u64 = 500_000;
const MAX_SCAN_TIME: Duration = Duration::from_secs(120);
/// How many files of workspaces are remembered between scans, in all projects.
const MAX_CACHED_FILES: usize = 2_000_000;
/// The number of hexadecimal digits of a tree's hash that callers see.
const CHECKPOINT_ID_CHARS: usize = 32;

/// What this server knows about the checkpoints of projects.
#[derive(Debug)]
pub(crate) struct CheckpointState {
    projects: Mutex<HashMap<ProjectId, Arc<ProjectCheckpoints>>>,
    permits: Arc<Semaphore>,
}

impl Default for CheckpointState {
    fn default() -> Self {
        Self {
            projects: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_SCANS)),
        }
    }
}

#[derive(Debug, Default)]
struct ProjectCheckpoints {
    /// Opened when it is first used.
    objects: Mutex<Option<Arc<ObjectStore>>>,
    /// Held shared from a scan until its tree is in the store, and exclusively to remove objects.
    collection: Arc<RwLock<()>>,
    workspaces: Mutex<HashMap<WorkspaceId, Arc<WorkspaceState>>>,
}

#[derive(Debug)]
struct WorkspaceState {
    cache: Mutex<StatCache>,
    cached_files: Mutex<(usize, Instant)>,
    /// Held shared while a turn starts, and exclusively while the workspace is set back.
    rewinding: Arc<RwLock<()>>,
}

impl Default for WorkspaceState {
    fn default() -> Self {
        Self {
            cache: Mutex::default(),
            cached_files: Mutex::new((0, Instant::now())),
            rewinding: Arc::default(),
        }
    }
}

/// The tree of a workspace. The guard keeps its objects until the tree is in the store.
#[derive(Debug)]
pub(crate) struct ScannedTree {
    pub(crate) tree: Hash,
    pub(crate) guard: OwnedRwLockReadGuard<()>,
}

/// Handle for the verbs of checkpoints.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checkpoints<'a> {
    engine: &'a Engine,
}

impl Engine {
    pub(crate) fn checkpoints(&self) -> Checkpoints<'_> {
        Checkpoints { engine: self }
    }
}

/// What callers call a tree. Equal trees have equal ids.
pub(crate) fn checkpoint_id(tree: Hash) -> String {
    let mut id = tree.to_string();
    id.truncate(CHECKPOINT_ID_CHARS);
    id
}

impl Checkpoints<'_> {
    fn state(&self) -> &CheckpointState {
        &self.engine.parts.checkpoints
    }

    pub(crate) fn is_enabled(self) -> bool {
        self.engine.settings().limits.checkpoint_mb > 0
    }

    fn project(self, id: ProjectId) -> Arc<ProjectCheckpoints> {
        self.state().projects.lock().entry(id).or_default().clone()
    }

    fn workspace(self, project: ProjectId, id: &WorkspaceId) -> Arc<WorkspaceState> {
        let project = self.project(project);
        let mut workspaces = project.workspaces.lock();
        workspaces.entry(id.clone()).or_default().clone()
    }

    /// Forgets what is in memory about a project whose files are gone.
    pub(crate) fn forget_project(self, id: ProjectId) {
        self.state().projects.lock().remove(&id);
    }

    pub(crate) fn forget_workspace(self, project: ProjectId, id: &WorkspaceId) {
        self.project(project).workspaces.lock().remove(id);
    }

    /// Keeps a workspace from being set back until the guard is dropped.
    pub(crate) async fn block_rewind(
        self,
        project: ProjectId,
        workspace: &WorkspaceId,
    ) -> OwnedRwLockReadGuard<()> {
        let state = self.workspace(project, workspace);
        state.rewinding.clone().read_owned().await
    }

    /// Keeps turns from starting in a workspace until the guard is dropped.
    pub(crate) async fn block_turns(
        self,
        project: ProjectId,
        workspace: &WorkspaceId,
    ) -> OwnedRwLockWriteGuard<()> {
        let state = self.workspace(project, workspace);
        state.rewinding.clone().write_owned().await
    }

    /// The objects of a project.
    pub(crate) async fn objects(self, project: ProjectId) -> Result<Arc<ObjectStore>> {
        let state = self.project(project);
        let directory = self.engine.files().project_dir(project).join(OBJECTS_DIR);
        let opened = tokio::task::spawn_blocking(move || {
            let mut objects = state.objects.lock();
            if let Some(objects) = &*objects {
                return Ok(objects.clone());
            }
            let opened = Arc::new(ObjectStore::open(&directory)?);
            Ok::<_, std::io::Error>(objects.insert(opened).clone())
        });
        Ok(opened.await.map_err(EngineError::fault)??)
    }

    /// Scans a workspace. When it returns, the tree is on the disk. The error is a sentence for people.
    pub(crate) async fn scan(
        self,
        project: &Project,
        workspace: &WorkspaceId,
    ) -> Result<ScannedTree, String> {
        let failed = |error: EngineError| error.to_string();
        let objects = self.objects(project.id).await.map_err(failed)?;
        let guard = self
            .project(project.id)
            .collection
            .clone()
            .read_owned()
            .await;
        let permit = self.state().permits.clone().acquire_owned().await;
        let permit = permit.map_err(|error| error.to_string())?;
        let state = self.workspace(project.id, workspace);
        let (files, id) = (self.engine.files().clone(), (project.id, workspace.clone()));
        let limits = self.engine.settings().limits.clone();
        let used_state = state.clone();
        let scanned = tokio::task::spawn_blocking(move || {
            // Held until the thread ends: it goes on when the session's actor is dropped.
            let _permit = permit;
            let root = files.open_workspace(id.0, &id.1).map_err(ScanError::Io)?;
            let quota = u64::from(limits.checkpoint_mb) << 20;
            let limits = ScanLimits {
                max_files: MAX_SCANNED_FILES,
                max_time: MAX_SCAN_TIME,
                max_new_bytes: quota.saturating_sub(objects.bytes()),
            };
            let mut cache = state.cache.lock();
            let scanned = oubliette_checkpoints::scan(root, &objects, &mut cache, &limits);
            *state.cached_files.lock() = (cache.weight(), Instant::now());
            scanned
        });
        let scanned = scanned.await.map_err(|error| error.to_string())?;
        self.trim_caches(&used_state);
        let scan = scanned.map_err(|error| match error {
            ScanError::TooLarge(_) => format!(
                "{error} (`checkpoint_mb`); `session_cleanup` removes the checkpoints of ended sessions"
            ),
            error => error.to_string(),
        })?;
        Ok(ScannedTree {
            tree: scan.root,
            guard,
        })
    }

    /// Forgets the workspaces that were scanned longest ago if too many files are remembered.
    fn trim_caches(self, used: &Arc<WorkspaceState>) {
        let projects: Vec<_> = self.state().projects.lock().values().cloned().collect();
        let workspaces = projects.iter().flat_map(|project| {
            let workspaces = project.workspaces.lock();
            workspaces.values().cloned().collect::<Vec<_>>()
        });
        let mut by_use: Vec<_> = workspaces
            .map(|state| {
                let (files, at) = *state.cached_files.lock();
                (at, files, state)
            })
            .collect();
        let mut total: usize = by_use.iter().map(|(_, files, _)| files).sum();
        if total <= MAX_CACHED_FILES {
            return;
        }
        by_use.sort_by_key(|(at, ..)| *at);
        for (_, files, state) in by_use {
            if total <= MAX_CACHED_FILES || Arc::ptr_eq(&state, used) {
                return;
            }
            // One that is being scanned is in use.
            if let Some(mut cache) = state.cache.try_lock() {
                *cache = StatCache::default();
                state.cached_files.lock().0 = 0;
                total -= files;
            }
        }
    }

    /// Counts what changed from one tree to another.
    pub(crate) async fn count_changes(
        self,
        project: ProjectId,
        from: Hash,
        to: Hash,
    ) -> Result<Changed> {
        if from == to {
            return Ok(Changed {
                files: Some(0),
                added: Some(0),
                removed: Some(0),
            });
        }
        let objects = self.objects(project).await?;
        let counted = tokio::task::spawn_blocking(move || {
            let changes = changes(&objects, from, to)?;
            let lines = count_lines(&objects, &changes)?;
            Ok::<_, std::io::Error>(Changed {
                files: Some(changes.len() as u64),
                added: lines.map(|lines| lines.added),
                removed: lines.map(|lines| lines.removed),
            })
        });
        Ok(counted.await.map_err(EngineError::fault)??)
    }

    /// Removes the objects that no session of a project has any more.
    pub(crate) async fn collect_garbage(self, project: ProjectId) -> Result<()> {
        let directory = self.engine.files().project_dir(project).join(OBJECTS_DIR);
        if !directory.exists() {
            return Ok(());
        }
        let objects = self.objects(project).await?;
        let state = self.project(project);
        let guard = state.collection.clone().write_owned().await;
        let trees = self.engine.store().project_trees(project).await?;
        let trees: Vec<Hash> = trees.into_iter().map(Hash::from_bytes).collect();
        let collected = tokio::task::spawn_blocking(move || {
            let _guard = guard;
            objects.collect(&trees)
        });
        let freed = collected.await.map_err(EngineError::fault)??;
        let mut open = state.objects.lock();
        let is_used = open
            .as_ref()
            .is_some_and(|open| Arc::strong_count(open) > 1);
        if !is_used && state.workspaces.lock().is_empty() {
            // Its index would stay in memory; the next use opens it again.
            *open = None;
        }
        drop(open);
        tracing::debug!(%project, freed, "removed objects of checkpoints");
        Ok(())
    }

    /// The projects that have checkpoints.
    pub(crate) async fn projects_with_checkpoints(self) -> Vec<ProjectId> {
        let found = self.engine.files().projects_with(OBJECTS_DIR).await;
        found.unwrap_or_default()
    }

    /// Does what [`Self::collect_garbage`] does in the background.
    pub(crate) fn collect_garbage_in_background(self, projects: Vec<ProjectId>) {
        self.engine.spawn_until_stopping(move |engine| async move {
            for project in projects {
                if let Err(error) = engine.checkpoints().collect_garbage(project).await {
                    tracing::warn!(%project, %error, "could not remove objects of checkpoints");
                }
            }
        });
    }
}
