//! The files of projects: the only module that reads and writes them.
//!
//! Everything is below `DIR/projects`, but for directories of people (`mount.rs`). Files that an agent may
//! have written are never followed through a symlink and never executed. A removal has two steps, so that a crash leaves either all
//! files or none: a rename into `.deleted`, then the deletion, which the next start finishes.

mod mount;
mod session_homes;
mod tree;

use std::collections::HashSet;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oubliette_model::{ProjectId, WorkspaceId};
use oubliette_trees::{disk_usage, move_tree, remove_tree};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use uuid::Uuid;

pub use mount::MOUNT_LINK;
pub use session_homes::SESSION_HOMES_DIR;
pub(crate) use tree::{ListRequest, ListedEntry, ReadLimits, WorkspaceTree};

use crate::checkpoints::OBJECTS_DIR;
use crate::workspaces::path_in_container;
use crate::{EngineError, Result};

const TRASH_DIR: &str = ".deleted";
/// The prefix of directories of workspaces that are being created.
const DRAFT_PREFIX: &str = ".new-";
/// A disk with less free space counts as full.
const MIN_FREE_DISK_BYTES: u64 = 1 << 20;
/// Each read may hold a file in memory.
const MAX_CONCURRENT_READS: usize = 8;

#[derive(Debug, Clone)]
pub(crate) struct Files {
    root: PathBuf,
    /// Drafts in use by this server; a server that died left the others.
    drafts: Arc<Mutex<HashSet<String>>>,
    /// Held while something is moved into the trash, which exists only while it has entries.
    trash: Arc<Mutex<()>>,
    /// Limits concurrent reads of workspaces.
    read_permits: Arc<Semaphore>,
}

/// The temporary directory name of a workspace that is being created.
#[derive(Debug)]
pub(crate) struct Draft {
    name: String,
    drafts: Arc<Mutex<HashSet<String>>>,
}

impl Draft {
    /// The name of the directory, a sibling of the other workspaces.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.drafts.lock().remove(&self.name);
    }
}

/// What the parts of a project take on the disk, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ProjectUsage {
    pub(crate) workspaces: u64,
    /// The home directories of its containers.
    pub(crate) homes: u64,
    /// The objects of its checkpoints.
    pub(crate) checkpoints: u64,
    /// What the embedded sandbox keeps of its containers: installed software, above all.
    pub(crate) installed: u64,
}

impl ProjectUsage {
    pub(crate) fn total(self) -> u64 {
        let parts = [
            self.workspaces,
            self.homes,
            self.checkpoints,
            self.installed,
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl Files {
    pub(crate) fn open(data_dir: &Path) -> Result<Self> {
        let root = data_dir.join("projects");
        create_private_dir(&root)?;
        let files = Self {
            root,
            drafts: Arc::default(),
            trash: Arc::default(),
            read_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_READS)),
        };
        files.remove_empty_trash();
        Ok(files)
    }

    pub(crate) fn project_dir(&self, project: ProjectId) -> PathBuf {
        self.root.join(project.to_string())
    }

    /// The directory of a workspace, which for the default one can be a person's own.
    pub(crate) fn workspace_dir(&self, project: ProjectId, workspace: &WorkspaceId) -> PathBuf {
        let mounted = self
            .mounted_path(project)
            .filter(|_| workspace.is_default());
        mounted.unwrap_or_else(|| self.own_workspace_dir(project, workspace))
    }

    /// The server's own directory of a workspace: what is made, moved and removed.
    fn own_workspace_dir(&self, project: ProjectId, workspace: &WorkspaceId) -> PathBuf {
        let project = self.project_dir(project);
        if workspace.is_default() {
            project.join("workspace")
        } else {
            project.join("workspaces").join(workspace.as_str())
        }
    }

    /// The directory of the configuration of git that the project's containers see.
    pub(crate) fn git_config_dir(&self, project: ProjectId) -> PathBuf {
        self.project_dir(project).join("git")
    }

    /// Creates a project's directories. Returns the path of the empty default workspace.
    pub(crate) async fn create_project_dirs(&self, project: ProjectId) -> Result<PathBuf> {
        let workspace = self.own_workspace_dir(project, &WorkspaceId::default());
        let workspaces = self.project_dir(project).join("workspaces");
        blocking(move || {
            create_private_dir(&workspaces)?;
            create_private_dir(&workspace)?;
            Ok(workspace)
        })
        .await
    }

    /// Creates the home directory of the processes of a container, if it does not exist. It is kept
    /// when the container is replaced. A workspace with its own container has its own home.
    pub(crate) async fn create_home_dir(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
    ) -> Result<PathBuf> {
        let home = self.home_path(project, workspace);
        blocking(move || create_private_dir(&home).map(|()| home)).await
    }

    fn home_path(&self, project: ProjectId, workspace: &WorkspaceId) -> PathBuf {
        let project = self.project_dir(project);
        if workspace.is_default() {
            project.join("home")
        } else {
            project.join("homes").join(workspace.as_str())
        }
    }

    /// The projects that have a directory with this name.
    pub(crate) async fn projects_with(&self, name: &'static str) -> Result<Vec<ProjectId>> {
        let root = self.root.clone();
        blocking(move || {
            let mut found = Vec::new();
            for entry in fs::read_dir(root)? {
                let entry = entry?;
                let id = entry.file_name().to_str().and_then(|id| id.parse().ok());
                if let Some(id) = id.filter(|_| entry.path().join(name).is_dir()) {
                    found.push(id);
                }
            }
            Ok(found)
        })
        .await
    }

    /// What a project takes on the disk: its files, and the layers that the embedded sandbox keeps for its
    /// containers.
    pub(crate) async fn disk_usage(
        &self,
        project: ProjectId,
        containers: &[&str],
    ) -> Result<ProjectUsage> {
        let layers = self.root.with_file_name("layers");
        let layers: Vec<PathBuf> = containers.iter().map(|id| layers.join(id)).collect();
        let project = self.project_dir(project);
        blocking(move || {
            let sum = |directories: &[PathBuf]| {
                let sizes = directories.iter().map(|directory| disk_usage(directory));
                sizes
                    .map(|usage| usage.map(|usage| usage.bytes))
                    .sum::<io::Result<u64>>()
            };
            let below = |names: &[&str]| -> Vec<PathBuf> {
                names.iter().map(|name| project.join(name)).collect()
            };
            Ok(ProjectUsage {
                workspaces: sum(&below(&["workspace", "workspaces"]))?,
                homes: sum(&below(&["home", "homes"]))?,
                checkpoints: sum(&below(&[OBJECTS_DIR]))?,
                installed: sum(&layers)?,
            })
        })
        .await
    }

    /// Removes all files of a project. After an error it can be repeated.
    pub(crate) async fn remove_project(&self, project: ProjectId) -> Result<()> {
        let in_trash = project.to_string();
        self.remove(self.project_dir(project), in_trash).await
    }

    pub(crate) async fn remove_workspace(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
    ) -> Result<()> {
        for directory in [
            self.own_workspace_dir(project, workspace),
            self.home_path(project, workspace),
        ] {
            self.remove(directory, Uuid::new_v4().to_string()).await?;
        }
        Ok(())
    }

    /// Removes a directory below the root, if it exists, under a name of the trash.
    async fn remove(&self, directory: PathBuf, in_trash: String) -> Result<()> {
        let files = self.clone();
        blocking(move || {
            files.move_to_trash(&directory, &in_trash)?;
            let removed = remove_tree(&files.root.join(TRASH_DIR).join(in_trash));
            files.remove_empty_trash();
            removed
        })
        .await
    }

    /// The first step of a removal; [`Files::purge_trash`] does the second.
    pub(crate) async fn move_project_to_trash(&self, project: ProjectId) -> Result<()> {
        let (files, directory) = (self.clone(), self.project_dir(project));
        blocking(move || files.move_to_trash(&directory, &project.to_string())).await
    }

    /// Moves a directory into the trash, if it exists.
    fn move_to_trash(&self, directory: &Path, name: &str) -> io::Result<()> {
        let trash = self.root.join(TRASH_DIR);
        let _held = self.trash.lock();
        if fs::symlink_metadata(directory).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(());
        }
        create_private_dir(&trash)?;
        match move_tree(directory, &trash.join(name)) {
            // An earlier removal under this name was not finished.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                move_tree(directory, &trash.join(Uuid::new_v4().to_string()))
            }
            moved => moved,
        }
    }

    fn remove_empty_trash(&self) {
        let _held = self.trash.lock();
        // It fails while there are entries.
        let _ = fs::remove_dir(self.root.join(TRASH_DIR));
    }

    pub(crate) fn trash_dir(&self) -> PathBuf {
        self.root.join(TRASH_DIR)
    }

    pub(crate) async fn trash_entries(&self) -> Result<Vec<PathBuf>> {
        let trash = self.root.join(TRASH_DIR);
        blocking(move || match fs::read_dir(&trash) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        })
        .await
    }

    /// Removes entries of the trash, and drafts that a crash left. What cannot be removed, for
    /// example because a container writes to it, stays until the next start.
    pub(crate) async fn purge_trash(&self, entries: Vec<PathBuf>) {
        let files = self.clone();
        let purged = blocking(move || {
            entries.iter().for_each(|path| remove_or_warn(path));
            for project in fs::read_dir(&files.root)?.flatten() {
                files.purge_drafts(&project.path().join("workspaces"));
            }
            files.remove_empty_trash();
            Ok(())
        });
        if let Err(error) = purged.await {
            tracing::warn!(%error, "could not remove leftover files");
        }
    }

    fn purge_drafts(&self, workspaces: &Path) {
        for entry in fs::read_dir(workspaces).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !is_draft_name(&name) || self.drafts.lock().contains(&name) {
                continue;
            }
            match self.move_to_trash(&entry.path(), &name) {
                Ok(()) => remove_or_warn(&self.root.join(TRASH_DIR).join(&name)),
                Err(error) => {
                    let path = entry.path();
                    tracing::warn!(path = %path.display(), %error, "could not remove a draft");
                }
            }
        }
    }

    /// Reserves a temporary name for a workspace that is being created.
    pub(crate) fn new_draft(&self) -> Draft {
        let name = format!("{DRAFT_PREFIX}{}", Uuid::new_v4());
        self.drafts.lock().insert(name.clone());
        Draft {
            name,
            drafts: self.drafts.clone(),
        }
    }

    fn draft_dir(&self, project: ProjectId, draft: &Draft) -> PathBuf {
        let workspaces = self.project_dir(project).join("workspaces");
        workspaces.join(&draft.name)
    }

    pub(crate) async fn create_draft_dir(
        &self,
        project: ProjectId,
        draft: &Draft,
    ) -> Result<PathBuf> {
        let directory = self.draft_dir(project, draft);
        blocking(move || {
            DirBuilder::new().mode(0o700).create(&directory)?;
            Ok(directory)
        })
        .await
    }

    pub(crate) async fn remove_draft(&self, project: ProjectId, draft: &Draft) -> Result<()> {
        let in_trash = draft.name.clone();
        self.remove(self.draft_dir(project, draft), in_trash).await
    }

    /// Renames a draft to its workspace. If the workspace exists already, the draft is removed.
    pub(crate) async fn publish_draft(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
        draft: &Draft,
    ) -> Result<()> {
        let target = self.own_workspace_dir(project, workspace);
        let from = self.draft_dir(project, draft);
        let renamed = tokio::task::spawn_blocking(move || rename_noreplace(&from, &target)).await;
        match renamed.map_err(EngineError::fault)? {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.remove_draft(project, draft).await
            }
            other => Ok(other?),
        }
    }

    pub(crate) fn has_workspace(&self, project: ProjectId, workspace: &WorkspaceId) -> bool {
        // A process in the container can replace it by a link, which must not be followed.
        fs::symlink_metadata(self.own_workspace_dir(project, workspace)).is_ok()
    }

    /// Whether one of these paths of a workspace leads through a link, or cannot be examined.
    pub(crate) async fn leads_through_link(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
        paths: Vec<String>,
    ) -> bool {
        let directory = self.workspace_dir(project, workspace);
        let examined = blocking(move || {
            Ok(paths.iter().any(|path| {
                let mut current = directory.clone();
                let mut names = Path::new(path).iter();
                loop {
                    match fs::symlink_metadata(&current) {
                        Ok(meta) if meta.is_symlink() => return true,
                        Ok(_) => {}
                        Err(error) => return error.kind() != ErrorKind::NotFound,
                    }
                    match names.next() {
                        Some(name) => current.push(name),
                        None => return false,
                    }
                }
            }))
        });
        examined.await.unwrap_or(true)
    }

    /// Runs `read` on the files of a workspace in a blocking thread, within limits.
    pub(crate) async fn read_workspace<T: Send + 'static>(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
        limits: ReadLimits,
        read: impl FnOnce(&WorkspaceTree) -> T + Send + 'static,
    ) -> Result<T> {
        let (files, id) = (self.clone(), workspace.clone());
        let container_root = path_in_container(workspace);
        let permit = Arc::clone(&self.read_permits)
            .acquire_owned()
            .await
            .map_err(EngineError::fault)?;
        let result = blocking(move || {
            // Held until the thread ends: it goes on when the call is cancelled.
            let _permit = permit;
            let tree = files
                .open_workspace(project, &id)
                .map(|root| WorkspaceTree::new(root, container_root, limits));
            Ok(tree.map(|tree| read(&tree)))
        });
        result.await?.map_err(|error| {
            EngineError::Failed(format!(
                "the directory of the workspace `{workspace}` cannot be opened: {error}; a process in \
                 the container may have replaced it: put the directory back, or delete the workspace \
                 with `workspace_delete`"
            ))
        })
    }

    /// Whether a workspace is a git repository; a linked `.git` does not count.
    pub(crate) fn is_git_repository(&self, workspace: &Path) -> bool {
        fs::symlink_metadata(workspace.join(".git")).is_ok_and(|meta| meta.is_dir())
    }
}

/// Whether the disk of a path has room for that many bytes; true if that cannot be found out.
pub(crate) async fn has_space_for(path: PathBuf, bytes: u64) -> bool {
    let checked = blocking(move || {
        let disk = rustix::fs::statvfs(&path)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        Ok(free >= bytes.saturating_add(MIN_FREE_DISK_BYTES))
    });
    checked.await.unwrap_or(true)
}

/// Whether the disk of a path has no space to speak of; false if that cannot be found out.
pub(crate) async fn is_disk_full(path: PathBuf) -> bool {
    let checked = blocking(move || {
        let disk = rustix::fs::statvfs(&path)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_FREE_DISK_BYTES)
    });
    checked.await.unwrap_or(false)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    Ok(tokio::task::spawn_blocking(work)
        .await
        .map_err(EngineError::fault)??)
}

fn remove_or_warn(path: &Path) {
    if let Err(error) = remove_tree(path) {
        tracing::warn!(path = %path.display(), %error, "could not remove a deleted directory");
    }
}

fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(target_os = "linux")]
fn rename_noreplace(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(not(target_os = "linux"))]
fn rename_noreplace(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

/// Whether a server chose this name; containers may use other names with the prefix.
fn is_draft_name(name: &str) -> bool {
    let id = name.strip_prefix(DRAFT_PREFIX);
    id.is_some_and(|id| Uuid::try_parse(id).is_ok_and(|parsed| parsed.to_string() == id))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn the_next_start_finishes_a_removal_and_removes_read_only_directories() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        let project = ProjectId::new(Uuid::from_u128(1));
        let workspace = files.create_project_dirs(project).await.unwrap();
        let locked = workspace.join("mod/cache");
        fs::create_dir_all(&locked).unwrap();
        fs::write(locked.join("file"), "x").unwrap();
        fs::set_permissions(&locked, Permissions::from_mode(0o555)).unwrap();

        // The state after a crash between the two steps.
        let in_trash = home.path().join("projects/.deleted/abc");
        fs::create_dir(home.path().join("projects/.deleted")).unwrap();
        fs::rename(files.project_dir(project), &in_trash).unwrap();
        // The state after a crash while a workspace was created.
        files.create_project_dirs(project).await.unwrap();
        let workspaces = files.project_dir(project).join("workspaces");
        let left = workspaces.join(format!(".new-{}", Uuid::new_v4()));
        fs::create_dir_all(left.join("y")).unwrap();
        fs::create_dir(workspaces.join(".new-x")).unwrap();
        let draft = files.new_draft();
        let in_use = files.create_draft_dir(project, &draft).await.unwrap();
        files
            .purge_trash(files.trash_entries().await.unwrap())
            .await;
        assert!(!in_trash.exists());
        assert!(!left.exists());
        assert!(
            workspaces.join(".new-x").exists(),
            "no server chose this name"
        );
        assert!(in_use.exists(), "the draft is in use");
        files.remove_project(project).await.unwrap();
        let left = fs::read_dir(home.path().join("projects")).unwrap().count();
        assert_eq!(left, 0, "nothing stays, not even the trash");
    }

    #[tokio::test]
    async fn a_cancelled_read_keeps_its_permit_until_its_thread_ends() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        let project = ProjectId::new(Uuid::from_u128(1));
        files.create_project_dirs(project).await.unwrap();
        let (start, started) = tokio::sync::oneshot::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let reader = files.clone();
        let call = tokio::spawn(async move {
            let read = move |_: &WorkspaceTree| {
                start.send(()).unwrap();
                ended.recv().unwrap();
            };
            let limits = ReadLimits {
                max_entries: 1,
                max_lookups: 1,
                max_time: std::time::Duration::from_secs(10),
                max_total_bytes: 1,
                max_file_bytes: 1,
            };
            let workspace = WorkspaceId::default();
            reader
                .read_workspace(project, &workspace, limits, read)
                .await
        });
        started.await.unwrap();
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(
            files.read_permits.available_permits(),
            MAX_CONCURRENT_READS - 1
        );
        end.send(()).unwrap();
        let all = u32::try_from(MAX_CONCURRENT_READS).unwrap();
        drop(files.read_permits.acquire_many(all).await.unwrap());
    }

    #[tokio::test]
    async fn removal_does_not_follow_links() {
        let home = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("precious"), "x").unwrap();
        let files = Files::open(home.path()).unwrap();
        let project = ProjectId::new(Uuid::from_u128(1));
        let workspace = files.create_project_dirs(project).await.unwrap();
        std::os::unix::fs::symlink(outside.path(), workspace.join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path(), workspace.join(".git")).unwrap();
        assert!(!files.is_git_repository(&workspace));
        files.remove_project(project).await.unwrap();
        assert!(outside.path().join("precious").exists());
    }
}
