//! What the command line remembers about a checkout: its project on a server, and the sessions that worked
//! on copies of it. It is a file in the data directory of this machine, so that it works with a remote
//! server, and nothing is written into the checkout.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::apply::ApplyPaths;
use super::remote::Place;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::output::note;

/// Older sessions are forgotten; the server still has them.
const MAX_SESSIONS: usize = 100;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// The directory, for people who read the file.
    directory: String,
    server: String,
    pub(super) project_id: Option<String>,
    /// Oldest first.
    pub(super) sessions: Vec<SentSession>,
}

/// A session with a copy of the checkout, or in the checkout itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct SentSession {
    pub(super) session_id: String,
    pub(super) workspace_id: String,
    /// The project that works in the checkout itself; then nothing was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mounted_project: Option<String>,
    /// The commit with the files that were sent.
    pub(super) sent: String,
    /// The commit of HEAD when they were sent.
    pub(super) head: Option<String>,
    /// The commit with the work that was applied or fetched, or that has no changes. Then the workspace
    /// can be used for another copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) taken: Option<String>,
    /// Whether it had changed nothing when its last turn ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_unchanged: bool,
    /// The commit of the branch that was fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fetched: Option<String>,
    /// The commit that a fetch gives the branch next: if it is killed, the branch may have it already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fetching: Option<String>,
    /// The tree that `diff` showed last. What `apply` takes must be the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) seen: Option<String>,
}

/// The file of a checkout, locked against other commands. The lock ends when it is dropped.
#[derive(Debug)]
pub(super) struct RecordFile {
    path: PathBuf,
    pub(super) record: Record,
    _lock: File,
}

impl RecordFile {
    /// Waits until no other command uses the file, and reads it.
    pub(super) fn open(home: &Home, server: &str, checkout: &Path) -> Result<Self, Failure> {
        let directory = home.checkouts_dir();
        let failed =
            |error| Failure::with_cause(format!("cannot use {}", directory.display()), &error);
        home.require_no_links(&["checkouts"]).map_err(failed)?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(failed)?;
        let mut hash = Sha256::new();
        hash.update(server.as_bytes());
        hash.update([0]);
        hash.update(checkout.as_os_str().as_bytes());
        let name: String = hash.finalize()[..12]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(directory.join(format!("{name}.lock")))
            .map_err(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            note!("Waiting for another command that uses this checkout …");
            flock(&lock, FlockOperation::LockExclusive)
                .map_err(|error| failed(std::io::Error::from(error)))?;
        }
        let path = directory.join(format!("{name}.json"));
        let record = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                Failure::with_cause(format!("{} is damaged; remove it", path.display()), &error)
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Record {
                directory: checkout.to_string_lossy().into_owned(),
                server: server.to_owned(),
                ..Record::default()
            },
            Err(error) => return Err(failed(error)),
        };
        Ok(Self {
            path,
            record,
            _lock: lock,
        })
    }

    /// The directories for an `apply` of this checkout.
    pub(super) fn apply_paths(&self) -> ApplyPaths {
        ApplyPaths {
            stage: self.path.with_extension("apply"),
            undo: self.path.with_extension("undo"),
        }
    }

    /// The file with what git ignored at the last copy.
    pub(super) fn ignored_path(&self) -> PathBuf {
        self.path.with_extension("ignored")
    }

    /// Replaces the file.
    pub(super) fn save(&mut self) -> Result<(), Failure> {
        let sessions = &mut self.record.sessions;
        let excess = sessions.len().saturating_sub(MAX_SESSIONS);
        sessions.drain(..excess);
        let text = serde_json::to_vec_pretty(&self.record).unwrap_or_default();
        self.replace(&self.path, &text)
    }

    /// Replaces one of the files of this checkout.
    pub(super) fn replace(&self, path: &Path, text: &[u8]) -> Result<(), Failure> {
        let new = self.path.with_extension("new");
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
            let mut file = options.open(&new)?;
            file.write_all(text)?;
            file.sync_all()?;
            fs::rename(&new, path)
        };
        write().map_err(|error| {
            Failure::with_cause(format!("cannot write {}", path.display()), &error)
        })
    }
}

impl SentSession {
    /// Whether it works on the files here, not on a copy.
    pub(super) fn is_mounted(&self) -> bool {
        self.mounted_project.is_some()
    }
}

impl Record {
    /// The newest session.
    pub(super) fn latest(&self) -> Option<&SentSession> {
        self.sessions.last()
    }

    /// The newest session that has changed something; the newest one if there is none.
    pub(super) fn latest_with_changes(&self) -> Option<&SentSession> {
        let mut newest_first = self.sessions.iter().rev();
        newest_first
            .find(|session| !session.is_unchanged)
            .or(self.latest())
    }

    /// The session with an id that starts with `prefix`; an error if there are several.
    pub(super) fn find(&self, prefix: &str) -> Result<Option<&SentSession>, Failure> {
        let mut found = self
            .sessions
            .iter()
            .filter(|session| session.session_id.starts_with(prefix));
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(Some(one)),
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(Failure::new(format!(
                "several sessions start with {prefix}; give more of the id"
            ))),
        }
    }

    pub(super) fn place(&self, session: &SentSession) -> Option<Place> {
        let mounted = session.mounted_project.clone();
        Some(Place {
            project_id: mounted.or_else(|| self.project_id.clone())?,
            workspace_id: session.workspace_id.clone(),
        })
    }

    /// Adds a session, or updates the one with its id.
    pub(super) fn put(&mut self, session: SentSession) {
        self.sessions
            .retain(|other| other.session_id != session.session_id);
        self.sessions.push(session);
    }

    /// Records what the user has seen of a session; nothing after a new turn.
    pub(super) fn set_seen(&mut self, session_id: &str, tree: Option<&str>) {
        for session in &mut self.sessions {
            if session.session_id == session_id {
                session.seen = tree.map(str::to_owned);
            }
        }
    }

    pub(super) fn set_unchanged(&mut self, session_id: &str, is_unchanged: bool) {
        let mut sessions = self.sessions.iter_mut();
        if let Some(session) = sessions.find(|session| session.session_id == session_id) {
            session.is_unchanged = is_unchanged;
        }
    }

    /// Records that the user has the work of a session.
    pub(super) fn set_taken(&mut self, session_id: &str, work: Option<&str>) {
        for session in &mut self.sessions {
            if session.session_id == session_id {
                session.taken = work.map(str::to_owned);
            }
        }
    }
}
