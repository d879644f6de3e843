//! The homes of agents: a directory per session, in the home of the project's container.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use oubliette_model::{ProjectId, SessionId, WorkspaceId};
use oubliette_trees::{open_dir, open_file};
use rustix::fs::{CWD, Dir, renameat};
use rustix::io::Errno;
use uuid::Uuid;

use super::{Files, TRASH_DIR, blocking, create_private_dir, remove_or_warn};
use crate::Result;

/// The directory of the sessions' homes, in the home of the container.
pub const SESSION_HOMES_DIR: &str = ".sessions";
/// A process in the container can make any number of entries.
const MAX_LISTED_HOMES: usize = 100_000;

/// The home of a session's agent, on the host.
#[derive(Debug, Clone)]
pub(crate) struct SessionHome {
    pub(crate) session: SessionId,
    /// The home of the container.
    container_home: PathBuf,
}

impl Files {
    /// The homes of agents in a project.
    pub(crate) async fn session_homes(&self, project: ProjectId) -> Result<Vec<SessionHome>> {
        let default = self.home_path(project, &WorkspaceId::default());
        let others = self.project_dir(project).join("homes");
        blocking(move || {
            let mut homes = list(&default);
            for entry in fs::read_dir(others).into_iter().flatten().flatten() {
                homes.extend(list(&entry.path()));
            }
            Ok(homes)
        })
        .await
    }

    /// Reads a file in the home of a session's agent; none if there is none. No link is followed.
    pub(crate) async fn read_session_file(
        &self,
        project: ProjectId,
        workspace: Option<&WorkspaceId>,
        session: SessionId,
        path: &'static str,
        max_bytes: usize,
    ) -> Result<Option<String>> {
        let home = self.home_path(project, workspace.unwrap_or(&WorkspaceId::default()));
        blocking(move || match read_file(&home, session, path, max_bytes) {
            Err(error) if is_absent(&error) => Ok(None),
            read => read,
        })
        .await
    }

    /// Removes the home of an agent.
    pub(crate) async fn remove_session_home(&self, home: SessionHome) -> Result<()> {
        let files = self.clone();
        blocking(move || {
            let trash = files.root.join(TRASH_DIR);
            let in_trash = Uuid::new_v4().to_string();
            {
                let _held = files.trash.lock();
                create_private_dir(&trash)?;
                let trash = open_dir(CWD, &trash)?;
                let homes = open_homes(&home.container_home)?;
                renameat(homes, home.session.to_string(), trash, in_trash.as_str())?;
            }
            remove_or_warn(&trash.join(in_trash));
            files.remove_empty_trash();
            Ok(())
        })
        .await
    }
}

/// A process in the container can replace the directory by a link, which is not followed.
fn open_homes(container_home: &Path) -> io::Result<OwnedFd> {
    let home = open_dir(CWD, container_home)?;
    Ok(open_dir(home, SESSION_HOMES_DIR)?)
}

fn read_file(
    container_home: &Path,
    session: SessionId,
    path: &str,
    max_bytes: usize,
) -> io::Result<Option<String>> {
    let homes = open_homes(container_home)?;
    let mut directory = open_dir(homes, session.to_string())?;
    let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
    for parent in parents.split('/').filter(|parent| !parent.is_empty()) {
        directory = open_dir(&directory, parent)?;
    }
    let Some((file, _)) = open_file(&directory, &CString::new(name)?)? else {
        return Ok(None);
    };
    let mut text = Vec::new();
    file.take(max_bytes as u64 + 1).read_to_end(&mut text)?;
    let is_whole = text.len() <= max_bytes;
    Ok(String::from_utf8(text).ok().filter(|_| is_whole))
}

/// Whether a name does not exist, or is a link or something else.
fn is_absent(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

fn list(container_home: &Path) -> Vec<SessionHome> {
    let entries = open_homes(container_home).and_then(|homes| Ok(Dir::read_from(homes)?));
    let entries = entries.into_iter().flatten().flatten();
    let session = |name: &[u8]| OsStr::from_bytes(name).to_str()?.parse().ok();
    let homes = entries.filter_map(|entry| {
        Some(SessionHome {
            session: session(entry.file_name().to_bytes())?,
            container_home: container_home.to_owned(),
        })
    });
    homes.take(MAX_LISTED_HOMES).collect()
}
