//! The data directory: where everything is, who holds it, and the two small files beside the store.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oubliette_model::ApiKey;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// What a server leaves that was killed is gone after so long.
const LEFTOVER: Duration = Duration::from_secs(5);

/// A data directory.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    path: PathBuf,
}

/// What a running server leaves for those who look for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) url: String,
    pub(crate) pid: u32,
    pub(crate) version: String,
}

/// Holds a data directory against a second server; released when dropped, or when we die.
#[derive(Debug)]
pub(crate) struct Hold {
    _file: File,
}

/// Whether a process is there, whosever it is. One that nobody names might be.
fn is_alive(pid: &str) -> bool {
    let pid = pid.parse().ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

impl Home {
    /// The directory given, or `OUBLIETTE_HOME`, or `~/.oubliette`.
    pub(crate) fn find(given: Option<&Path>) -> Result<Self, Failure> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => std::env::home_dir()
                .filter(|home| !home.as_os_str().is_empty())
                .map(|home| home.join(".oubliette"))
                .ok_or_else(|| {
                    Failure::new("there is no home directory; name one with --data-dir DIR")
                })?,
        };
        let path = std::path::absolute(&path)
            .map_err(|error| Failure::of(format!("cannot use {}", path.display()), &error))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path.join("oubliette.db")
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        self.path.join("oubliette.toml")
    }

    pub(crate) fn admin_token_file(&self) -> PathBuf {
        self.path.join("admin.token")
    }

    fn run_dir(&self) -> PathBuf {
        self.path.join("run")
    }

    /// Where each container has the directory with its socket.
    pub(crate) fn doors(&self) -> PathBuf {
        self.run_dir().join("c")
    }

    fn running_file(&self) -> PathBuf {
        self.run_dir().join("server.json")
    }

    /// Makes the directory, readable by its owner alone.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(self.run_dir())
            .map_err(|error| Failure::of(format!("cannot make {}", self.path.display()), &error))
    }

    /// Takes the directory for this process, or says who has it.
    pub(crate) fn hold(&self) -> Result<Hold, Failure> {
        self.prepare()?;
        let path = self.run_dir().join("lock");
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let mut file = options
            .open(&path)
            .map_err(|error| Failure::of(format!("cannot open {}", path.display()), &error))?;
        let deadline = Instant::now() + LEFTOVER;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = file.rewind();
            let _ = file.read_to_string(&mut holder);
            let holder = holder.trim();
            // A server that was killed while it started a process: until that has become another
            // program, it holds what the server held.
            if !is_alive(holder) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            let who = if holder.is_empty() {
                String::new()
            } else {
                format!(" (process {holder})")
            };
            return Err(Failure::new(format!(
                "another Oubliette server{who} uses {}; stop it first, or choose another \
                 directory with --data-dir",
                self.path.display()
            )));
        }
        let written = file
            .rewind()
            .and_then(|()| file.set_len(0))
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(|error| Failure::of(format!("cannot write {}", path.display()), &error))?;
        Ok(Hold { _file: file })
    }

    /// Leaves word of a running server.
    pub(crate) fn announce(&self, running: &Running) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(running)
            .map_err(|error| Failure::of("cannot describe the server", &error))?;
        let path = self.running_file();
        write_private(&path, &text)
            .map_err(|error| Failure::of(format!("cannot write {}", path.display()), &error))
    }

    pub(crate) fn withdraw(&self) {
        let _ = fs::remove_file(self.running_file());
    }

    /// The server that left word, whether or not it still runs.
    pub(crate) fn running(&self) -> Option<Running> {
        let text = fs::read_to_string(self.running_file()).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The one key that is kept in clear.
    pub(crate) fn admin_key(&self) -> Option<ApiKey> {
        fs::read_to_string(self.admin_token_file())
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    pub(crate) fn write_admin_key(&self, key: &ApiKey) -> Result<(), Failure> {
        let path = self.admin_token_file();
        write_private(&path, &format!("{}\n", key.reveal()))
            .map_err(|error| Failure::of(format!("cannot write {}", path.display()), &error))
    }
}

/// Writes a file that only its owner can read, all of it or nothing.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut draft = tempfile::NamedTempFile::new_in(directory)?;
    draft.write_all(text.as_bytes())?;
    draft.as_file().sync_all()?;
    draft.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_second_server_is_refused_and_told_who_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::find(Some(directory.path())).unwrap();
        let first = home.hold().unwrap();
        let Err(Failure::Failed(sentence)) = home.hold() else {
            panic!("held twice")
        };
        assert!(
            sentence.contains(&std::process::id().to_string()),
            "{sentence}"
        );
        drop(first);
        home.hold().unwrap();
    }

    #[test]
    fn secrets_are_private() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::find(Some(&directory.path().join("new"))).unwrap();
        home.prepare().unwrap();
        let key = ApiKey::from_random([1; 32]);
        home.write_admin_key(&key).unwrap();
        assert_eq!(home.admin_key(), Some(key));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&home.admin_token_file()), 0o600);
        assert_eq!(mode(home.path()), 0o700);
    }
}
