//! The files of projects: the one module that touches them.
//!
//! Everything is below `DIR/projects`. What an agent may have written is never followed through a
//! symlink and never executed. Removal is two steps, so that a crash leaves either all or nothing:
//! a rename into `.deleted`, then the slow part, which the next start finishes.

mod size;
mod tree;

use std::collections::HashSet;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oubliette_model::{ProjectId, WorkspaceId};
use tokio::sync::Semaphore;
use uuid::Uuid;

pub(crate) use tree::{Bounds, Entry, Found, Kind, Lost, Tree};

use crate::workspaces::path_in_container;
use crate::{EngineError, Result};

const DELETED: &str = ".deleted";
/// How the directories of workspaces begin that are being made.
const DRAFT: &str = ".new-";
/// Each may hold a file in memory.
const MOST_LOOKS: usize = 8;

#[derive(Debug, Clone)]
pub(crate) struct Files {
    root: PathBuf,
    /// Drafts that somebody works on; others were left by a server that died.
    drafts: Arc<Mutex<HashSet<String>>>,
    /// How many may look at what is in workspaces at the same time.
    looks: Arc<Semaphore>,
}

/// The name of a workspace that is being made, until it gets its own.
#[derive(Debug)]
pub(crate) struct Draft {
    name: String,
    drafts: Arc<Mutex<HashSet<String>>>,
}

impl Draft {
    /// What the directory is called, beside the other workspaces.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        lock(&self.drafts).remove(&self.name);
    }
}

impl Files {
    pub(crate) fn open(data_dir: &Path) -> Result<Self> {
        let root = data_dir.join("projects");
        make_private_dir(&root.join(DELETED))?;
        Ok(Self {
            root,
            drafts: Arc::default(),
            looks: Arc::new(Semaphore::new(MOST_LOOKS)),
        })
    }

    pub(crate) fn project_dir(&self, project: ProjectId) -> PathBuf {
        self.root.join(project.to_string())
    }

    pub(crate) fn workspace_dir(&self, project: ProjectId, workspace: &WorkspaceId) -> PathBuf {
        let project = self.project_dir(project);
        if workspace.is_default() {
            project.join("workspace")
        } else {
            project.join("workspaces").join(workspace.as_str())
        }
    }

    /// Makes a project's directories, with an empty default workspace; its path.
    pub(crate) async fn create_project(&self, project: ProjectId) -> Result<PathBuf> {
        let workspace = self.workspace_dir(project, &WorkspaceId::default_one());
        let workspaces = self.project_dir(project).join("workspaces");
        blocking(move || {
            make_private_dir(&workspaces)?;
            make_private_dir(&workspace)?;
            Ok(workspace)
        })
        .await
    }

    /// The home directory that a container gives its processes; kept between its lives. A workspace
    /// that has a container of its own has a home of its own.
    pub(crate) async fn home_dir(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
    ) -> Result<PathBuf> {
        let home = self.home_of(project, workspace);
        blocking(move || make_private_dir(&home).map(|()| home)).await
    }

    fn home_of(&self, project: ProjectId, workspace: &WorkspaceId) -> PathBuf {
        let project = self.project_dir(project);
        match workspace.is_default() {
            true => project.join("home"),
            false => project.join("homes").join(workspace.as_str()),
        }
    }

    /// How many bytes a project takes on the disk, as far as they are its files.
    pub(crate) async fn size(&self, project: ProjectId) -> Result<u64> {
        let directory = self.project_dir(project);
        blocking(move || size::of_tree(&directory)).await
    }

    /// Removes all files of a project.
    pub(crate) async fn discard_project(&self, project: ProjectId) -> Result<()> {
        self.discard(self.project_dir(project)).await
    }

    pub(crate) async fn discard_workspace(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
    ) -> Result<()> {
        self.discard(self.workspace_dir(project, workspace)).await?;
        self.discard(self.home_of(project, workspace)).await
    }

    /// Removes a directory below the root, if it is there.
    async fn discard(&self, directory: PathBuf) -> Result<()> {
        let condemned = self.condemn(directory).await?;
        blocking(move || condemned.map_or(Ok(()), |condemned| remove_tree(&condemned))).await
    }

    /// The first step of a removal; the second is for the next sweep.
    pub(crate) async fn condemn_project(&self, project: ProjectId) -> Result<()> {
        self.condemn(self.project_dir(project)).await.map(drop)
    }

    /// Moves a directory to where things wait for their removal, if it is there.
    async fn condemn(&self, directory: PathBuf) -> Result<Option<PathBuf>> {
        let condemned = self.root.join(DELETED).join(Uuid::new_v4().to_string());
        blocking(move || match fs::rename(&directory, &condemned) {
            Ok(()) => Ok(Some(condemned)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    /// What waits for its removal now.
    pub(crate) async fn condemned(&self) -> Result<Vec<PathBuf>> {
        let deleted = self.root.join(DELETED);
        blocking(move || {
            let entries = fs::read_dir(&deleted)?;
            entries.map(|entry| Ok(entry?.path())).collect()
        })
        .await
    }

    /// Finishes what a crash cut off: removals, and drafts of workspaces. What cannot be removed,
    /// because a container writes to it for one, stays for the next start.
    pub(crate) async fn sweep(&self, condemned: Vec<PathBuf>) {
        let files = self.clone();
        let swept = blocking(move || {
            condemned.iter().for_each(|path| sweep_away(path));
            for project in fs::read_dir(&files.root)? {
                let workspaces = project?.path().join("workspaces");
                for entry in fs::read_dir(workspaces).into_iter().flatten().flatten() {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if name.starts_with(DRAFT) && !lock(&files.drafts).contains(&name) {
                        let condemned = files.root.join(DELETED).join(&name);
                        fs::rename(entry.path(), &condemned)?;
                        sweep_away(&condemned);
                    }
                }
            }
            Ok(())
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "what was left could not be swept away");
        }
    }

    /// A name to make a workspace under.
    pub(crate) fn draft(&self) -> Draft {
        let name = format!("{DRAFT}{}", Uuid::new_v4());
        lock(&self.drafts).insert(name.clone());
        Draft {
            name,
            drafts: self.drafts.clone(),
        }
    }

    fn draft_dir(&self, project: ProjectId, draft: &Draft) -> PathBuf {
        let workspaces = self.project_dir(project).join("workspaces");
        workspaces.join(&draft.name)
    }

    /// Makes the empty directory of a draft.
    pub(crate) async fn make_draft(&self, project: ProjectId, draft: &Draft) -> Result<PathBuf> {
        let directory = self.draft_dir(project, draft);
        blocking(move || {
            DirBuilder::new().mode(0o700).create(&directory)?;
            Ok(directory)
        })
        .await
    }

    pub(crate) async fn discard_draft(&self, project: ProjectId, draft: &Draft) -> Result<()> {
        self.discard(self.draft_dir(project, draft)).await
    }

    /// Gives a draft its name. If another draft was faster, that one stays.
    pub(crate) async fn adopt_draft(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
        draft: &Draft,
    ) -> Result<()> {
        let target = self.workspace_dir(project, workspace);
        let from = self.draft_dir(project, draft);
        let adopted = tokio::task::spawn_blocking(move || rename_new(&from, &target)).await;
        match adopted.map_err(EngineError::fault)? {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.discard_draft(project, draft).await
            }
            other => Ok(other?),
        }
    }

    pub(crate) fn has_workspace(&self, project: ProjectId, workspace: &WorkspaceId) -> bool {
        self.workspace_dir(project, workspace).is_dir()
    }

    /// Looks at what is in a workspace, away from everybody else's tasks.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
        bounds: Bounds,
        look: impl FnOnce(&Tree) -> T + Send + 'static,
    ) -> Result<T> {
        let directory = self.workspace_dir(project, workspace);
        let seen_as = path_in_container(workspace);
        let turn = Arc::clone(&self.looks).acquire_owned().await;
        let turn = turn.map_err(EngineError::fault)?;
        blocking(move || {
            // Ends with the work, not with the call: a call that is given up leaves its thread at it.
            let _turn = turn;
            match Tree::open(&directory, seen_as, bounds) {
                Ok(tree) => Ok(look(&tree)),
                Err(lost) => Err(io::Error::other(lost)),
            }
        })
        .await
    }

    /// Whether a workspace is a git repository; a link to one elsewhere is not.
    pub(crate) fn is_repository(&self, workspace: &Path) -> bool {
        fs::symlink_metadata(workspace.join(".git")).is_ok_and(|meta| meta.is_dir())
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    Ok(tokio::task::spawn_blocking(work)
        .await
        .map_err(EngineError::fault)??)
}

fn lock(drafts: &Mutex<HashSet<String>>) -> MutexGuard<'_, HashSet<String>> {
    drafts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sweep_away(path: &Path) {
    if let Err(error) = remove_tree(path) {
        tracing::warn!(path = %path.display(), %error, "could not be removed");
    }
}

fn make_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(target_os = "linux")]
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(not(target_os = "linux"))]
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

/// Removes a tree that may contain anything: directories without write permission, for one, which
/// package managers like to leave.
fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            unlock(path)?;
            fs::remove_dir_all(path)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => fs::remove_file(path),
        other => other,
    }
}

/// Gives the owner write permission on every directory of a tree.
fn unlock(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            unlock(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn removal_survives_a_crash_and_takes_locked_directories() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        let project = ProjectId::new(Uuid::from_u128(1));
        let workspace = files.create_project(project).await.unwrap();
        let locked = workspace.join("mod/cache");
        fs::create_dir_all(&locked).unwrap();
        fs::write(locked.join("file"), "x").unwrap();
        fs::set_permissions(&locked, Permissions::from_mode(0o555)).unwrap();

        // As if the server had died between the two steps.
        let condemned = home.path().join("projects/.deleted/abc");
        fs::rename(files.project_dir(project), &condemned).unwrap();
        // And in the midst of making a workspace.
        files.create_project(project).await.unwrap();
        let workspaces = files.project_dir(project).join("workspaces");
        fs::create_dir_all(workspaces.join(".new-x/y")).unwrap();
        let draft = files.draft();
        let live = files.make_draft(project, &draft).await.unwrap();
        files.sweep(files.condemned().await.unwrap()).await;
        assert!(!condemned.exists());
        assert!(!workspaces.join(".new-x").exists());
        assert!(live.exists(), "it is being worked on");
        files.discard_project(project).await.unwrap();
    }

    #[tokio::test]
    async fn a_look_that_was_given_up_keeps_its_turn_until_its_thread_is_done() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        let project = ProjectId::new(Uuid::from_u128(1));
        files.create_project(project).await.unwrap();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let looking = files.clone();
        let call = tokio::spawn(async move {
            let look = move |_: &Tree| {
                begin.send(()).unwrap();
                ended.recv().unwrap();
            };
            let workspace = WorkspaceId::default_one();
            let bounds = crate::openspec::OF_ALL;
            looking.look(project, &workspace, bounds, look).await
        });
        begun.await.unwrap();
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(files.looks.available_permits(), MOST_LOOKS - 1);
        end.send(()).unwrap();
        let all = u32::try_from(MOST_LOOKS).unwrap();
        drop(files.looks.acquire_many(all).await.unwrap());
    }

    #[tokio::test]
    async fn removal_never_follows_a_link() {
        let home = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("precious"), "x").unwrap();
        let files = Files::open(home.path()).unwrap();
        let project = ProjectId::new(Uuid::from_u128(1));
        let workspace = files.create_project(project).await.unwrap();
        std::os::unix::fs::symlink(outside.path(), workspace.join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path(), workspace.join(".git")).unwrap();
        assert!(!files.is_repository(&workspace));
        files.discard_project(project).await.unwrap();
        assert!(outside.path().join("precious").exists());
    }
}
