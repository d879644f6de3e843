//! Directories of people that are the default workspace of a project, instead of one of the server's own.
//!
//! A link in the project's directory, which no container sees, leads there. The server reads such a directory
//! and mounts it into containers; it never removes, moves or gives away anything in it. Its path has no links:
//! an agent that works in a directory above it could have made them.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use oubliette_model::{ProjectId, WorkspaceId, quoted};
use oubliette_trees::{open_dir, open_without_links};
use rustix::fs::CWD;

use super::{Files, blocking};
use crate::{EngineError, Result};

/// The name of the link. Backups leave it out: on another machine the path is another directory.
pub const MOUNT_LINK: &str = "mount";
const MAX_PATH_BYTES: usize = 4096;

/// Directories of the system: neither they nor anything in them is mounted.
const SYSTEM_DIRS: [&str; 20] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/spool",
    "/Library",
    "/System",
    "/private/etc",
];
/// Directories that are shared by many, or have the homes of users: only what is in them is mounted.
const SHARED_DIRS: [&str; 12] = [
    "/", "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var", "/var/tmp", "/Users",
    "/private",
];

/// A person's directory that a project works in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountedDir {
    pub(crate) path: PathBuf,
    /// Its user and group.
    pub(crate) owner: (u32, u32),
}

impl Files {
    /// The directory that is the default workspace of a project, if that is a person's. It may be gone.
    pub(crate) fn mounted_path(&self, project: ProjectId) -> Option<PathBuf> {
        fs::read_link(self.project_dir(project).join(MOUNT_LINK)).ok()
    }

    /// The same, if a container can mount it now; an error says why not.
    pub(crate) async fn mounted_dir(&self, project: ProjectId) -> Result<Option<MountedDir>> {
        let Some(path) = self.mounted_path(project) else {
            return Ok(None);
        };
        let data_dir = self.data_dir();
        let checked = blocking(move || Ok(check(&path, &data_dir)));
        let checked = checked.await?.map_err(|reason| {
            EngineError::Failed(format!("the project works in a directory that {reason}"))
        });
        checked.map(Some)
    }

    /// The directory that a caller wants a project to work in.
    pub(crate) async fn find_mountable(&self, given: &str) -> Result<PathBuf> {
        let invalid =
            |reason: String| EngineError::invalid(format!("`mount`: {} {reason}", quoted(given)));
        if !given.starts_with('/') || given.len() > MAX_PATH_BYTES || given.contains('\0') {
            return Err(invalid(
                "must be the absolute path of a directory on the server's machine".to_owned(),
            ));
        }
        let (path, data_dir) = (PathBuf::from(given), self.data_dir());
        let found = blocking(move || {
            let path = match fs::canonicalize(&path) {
                Ok(path) => path,
                Err(error) => return Ok(Err(format!("cannot be used: {error}"))),
            };
            Ok(check(&path, &data_dir).map(|found| found.path))
        });
        found.await?.map_err(invalid)
    }

    /// Makes a person's directory the default workspace of a project that is being created.
    pub(crate) async fn set_mount(&self, project: ProjectId, path: PathBuf) -> Result<()> {
        let directory = self.project_dir(project);
        blocking(move || {
            symlink(path, directory.join(MOUNT_LINK))?;
            // Without the link the project would work in an empty directory.
            File::open(directory)?.sync_all()
        })
        .await
    }

    /// Opens the directory of a workspace to read it.
    pub(crate) fn open_workspace(
        &self,
        project: ProjectId,
        workspace: &WorkspaceId,
    ) -> io::Result<OwnedFd> {
        let mounted = self
            .mounted_path(project)
            .filter(|_| workspace.is_default());
        Ok(match mounted {
            Some(path) => open_without_links(&path)?,
            None => open_dir(CWD, self.own_workspace_dir(project, workspace))?,
        })
    }

    fn data_dir(&self) -> PathBuf {
        self.root.parent().unwrap_or(&self.root).to_owned()
    }
}

/// Checks a path without links. The error is the end of a sentence about it.
fn check(path: &Path, data_dir: &Path) -> Result<MountedDir, String> {
    match fs::canonicalize(path) {
        Ok(found) if found == path => {}
        Ok(_) => {
            return Err(format!(
                "is reached through a link by now: {}; put the directory back",
                path.display()
            ));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(format!("does not exist: {}", path.display()));
        }
        Err(error) => return Err(format!("cannot be used: {}: {error}", path.display())),
    }
    let about = fs::metadata(path).map_err(|error| format!("cannot be used: {error}"))?;
    if !about.is_dir() {
        return Err("is not a directory".to_owned());
    }
    if path.to_str().is_none() {
        return Err("has a name that is not UTF-8".to_owned());
    }
    let data_dir = fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    if path.starts_with(&data_dir) || data_dir.starts_with(path) {
        return Err(format!(
            "has files of the server in it, or is one of them ({})",
            data_dir.display()
        ));
    }
    let is_system = SYSTEM_DIRS.iter().any(|system| path.starts_with(system));
    if is_system || SHARED_DIRS.iter().any(|shared| path == Path::new(shared)) {
        return Err("is a directory of the system; name a directory of your own work".to_owned());
    }
    if has_home(path) {
        return Err(
            "has the home directory of a user in it, with keys and settings; name a directory of your own work"
                .to_owned(),
        );
    }
    let server = rustix::process::geteuid();
    if !server.is_root() && about.uid() != server.as_raw() {
        return Err(format!(
            "belongs to user {}, and files made in it would belong to user {}, who runs the server",
            about.uid(),
            server.as_raw()
        ));
    }
    Ok(MountedDir {
        path: path.to_owned(),
        owner: (about.uid(), about.gid()),
    })
}

/// Whether a directory is, or has in it, the home of a user.
fn has_home(path: &Path) -> bool {
    let accounts = fs::read("/etc/passwd").unwrap_or_default();
    let accounts = String::from_utf8_lossy(&accounts);
    let listed = accounts
        .lines()
        .filter_map(|line| line.split(':').nth(5))
        .map(PathBuf::from);
    let mut homes = listed
        .chain(std::env::home_dir())
        .filter(|home| home.is_absolute());
    let usual = ["/home", "/Users"].map(Path::new);
    path.parent().is_some_and(|above| usual.contains(&above))
        || homes.any(|home| fs::canonicalize(&home).unwrap_or(home).starts_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_directories_of_work_are_mounted() {
        let data = tempfile::tempdir().unwrap();
        let files = Files::open(data.path()).unwrap();
        let place = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(place.path()).unwrap();
        let work = place.join("work");
        fs::create_dir_all(work.join("deep")).unwrap();
        fs::write(place.join("file"), "").unwrap();
        symlink(&work, place.join("link")).unwrap();
        symlink("/etc", place.join("system")).unwrap();
        symlink(data.path(), place.join("data")).unwrap();
        for found in ["work", "link", "work/deep/..", "link/../work"] {
            let given = place.join(found).display().to_string();
            assert_eq!(files.find_mountable(&given).await.unwrap(), work, "{given}");
        }
        let projects = data.path().join("projects").display().to_string();
        let above = data.path().parent().unwrap().display().to_string();
        let at = |name: &str| place.join(name).display().to_string();
        let refused = [
            "work".to_owned(),
            String::new(),
            "/".to_owned(),
            "/etc".to_owned(),
            "/usr/local".to_owned(),
            "/root".to_owned(),
            "/home".to_owned(),
            at("file"),
            at("missing"),
            at("system"),
            at("data"),
            projects,
            above,
        ];
        for given in refused {
            let error = files.find_mountable(&given).await.unwrap_err();
            assert!(matches!(error, EngineError::Invalid(_)), "{given}: {error}");
        }
    }

    #[tokio::test]
    async fn a_directory_that_was_replaced_by_a_link_is_not_used() {
        let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = Files::open(data.path()).unwrap();
        let project = ProjectId::new(uuid::Uuid::new_v4());
        let default = WorkspaceId::default();
        files.create_project_dirs(project).await.unwrap();
        assert_eq!(files.mounted_dir(project).await.unwrap(), None);
        let place = fs::canonicalize(place.path()).unwrap();
        let (work, above) = (place.join("above/work"), place.join("above"));
        fs::create_dir_all(&work).unwrap();
        files.set_mount(project, work.clone()).await.unwrap();
        assert_eq!(files.workspace_dir(project, &default), work);
        let found = files.mounted_dir(project).await.unwrap().unwrap();
        assert_eq!(found.path, work);
        files.open_workspace(project, &default).unwrap();
        // Other workspaces are the server's.
        let other = files.workspace_dir(project, &"other".parse().unwrap());
        assert!(other.starts_with(data.path()));

        fs::rename(&above, place.join("moved")).unwrap();
        symlink(place.join("moved"), &above).unwrap();
        let error = files.mounted_dir(project).await.unwrap_err().to_string();
        assert!(error.contains("link"), "{error}");
        assert!(files.open_workspace(project, &default).is_err());
        fs::remove_file(&above).unwrap();
        let error = files.mounted_dir(project).await.unwrap_err().to_string();
        assert!(error.contains("does not exist"), "{error}");

        // Neither a workspace nor the project takes the directory along.
        fs::rename(place.join("moved"), &above).unwrap();
        fs::write(work.join("kept"), "").unwrap();
        files.remove_workspace(project, &default).await.unwrap();
        files.remove_project(project).await.unwrap();
        assert!(work.join("kept").exists());
    }
}
