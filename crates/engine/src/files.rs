//! The files of projects: the one module that touches them.
//!
//! Everything is below `DIR/projects`. What an agent may have written is never followed through a
//! symlink and never executed. Removal is two steps, so that a crash leaves either all or nothing:
//! a rename into `.deleted`, then the slow part, which the next start finishes.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use oubliette_model::{ProjectId, WorkspaceId};
use uuid::Uuid;

use crate::Result;

const DELETED: &str = ".deleted";

#[derive(Debug, Clone)]
pub(crate) struct Files {
    root: PathBuf,
}

impl Files {
    pub(crate) fn open(data_dir: &Path) -> Result<Self> {
        let root = data_dir.join("projects");
        make_private_dir(&root.join(DELETED))?;
        Ok(Self { root })
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

    /// The home directory that a project's container gives its processes; kept between its lives.
    pub(crate) async fn home_dir(&self, project: ProjectId) -> Result<PathBuf> {
        let home = self.project_dir(project).join("home");
        blocking(move || make_private_dir(&home).map(|()| home)).await
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
        self.discard(self.workspace_dir(project, workspace)).await
    }

    /// Removes a directory below the root, if it is there.
    pub(crate) async fn discard(&self, directory: PathBuf) -> Result<()> {
        let condemned = self.root.join(DELETED).join(Uuid::new_v4().to_string());
        blocking(move || match fs::rename(&directory, &condemned) {
            Ok(()) => remove_tree(&condemned),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        })
        .await
    }

    /// Finishes removals that a crash cut off.
    pub(crate) async fn sweep(&self) -> Result<()> {
        let deleted = self.root.join(DELETED);
        blocking(move || {
            for entry in fs::read_dir(&deleted)? {
                remove_tree(&entry?.path())?;
            }
            Ok(())
        })
        .await
    }

    /// An empty directory to make a workspace in before it gets its name.
    pub(crate) async fn draft_workspace(&self, project: ProjectId) -> Result<PathBuf> {
        let draft = self
            .project_dir(project)
            .join("workspaces")
            .join(format!(".new-{}", Uuid::new_v4()));
        blocking(move || {
            DirBuilder::new().mode(0o700).create(&draft)?;
            Ok(draft)
        })
        .await
    }

    /// Gives a draft its name. If another draft was faster, that one stays.
    pub(crate) async fn adopt_workspace(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
        draft: PathBuf,
    ) -> Result<()> {
        let target = self.workspace_dir(project, workspace);
        let from = draft.clone();
        let adopted = tokio::task::spawn_blocking(move || rename_new(&from, &target)).await;
        match adopted.map_err(crate::EngineError::fault)? {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.discard(draft).await,
            other => Ok(other?),
        }
    }

    pub(crate) fn has_workspace(&self, project: ProjectId, workspace: &WorkspaceId) -> bool {
        self.workspace_dir(project, workspace).is_dir()
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
        .map_err(crate::EngineError::fault)??)
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
        files.sweep().await.unwrap();
        assert!(!condemned.exists());
        files.discard_project(project).await.unwrap();
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
