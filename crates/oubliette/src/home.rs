//! The data directory: its paths, its lock, the server's socket, and the small files that commands and the server
//! read there.

mod owned_files;
mod privacy;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use oubliette_model::ApiKey;
use oubliette_server::LocalSocket;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// How long a killed server's child process may still hold the lock.
const STALE_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const STALE_LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A data directory.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    path: PathBuf,
}

/// The directory of what the command line remembers.
pub(crate) const CLI_DIRECTORY: &str = "cli";
/// The directory of the keys of MCP clients.
pub(crate) const MCP_CLIENTS_DIRECTORY: &str = "mcp-clients";
/// Enough for `server.json`.
const SPARE_FILE_BYTES: usize = 4096;
/// Enough for a process id.
const HOLDER_BYTES: usize = 10;

/// The name of the server's socket in the directory `run`.
const SOCKET_NAME: &str = "server.sock";

/// The contents of `run/server.json`. A server that was killed leaves it, so it alone shows nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServerInfo {
    /// None if it listens only on its socket.
    #[serde(default)]
    pub(crate) url: Option<String>,
    pub(crate) pid: u32,
    pub(crate) version: String,
    /// Absent in the files of older versions, as are the following.
    #[serde(default)]
    pub(crate) started_at: Option<Timestamp>,
    #[serde(default)]
    pub(crate) mode: ServerMode,
    /// Why it has no URL.
    #[serde(default)]
    pub(crate) no_url_reason: Option<String>,
    /// Whether the signal USR1 makes it end the turns of agents before it stops.
    #[serde(default)]
    pub(crate) ends_turns: bool,
}

/// How a server was started, and when it ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServerMode {
    /// At a terminal, or by a service manager.
    #[default]
    #[value(skip)]
    Foreground,
    /// In the background, until it is stopped.
    #[value(name = "kept")]
    Background,
    /// In the background by a command that needed it, until nothing is at work for a while. It has only its socket if
    /// its port is taken.
    UntilIdle,
}

/// The exclusive lock of a data directory; released when dropped or when the process ends.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _file: File,
}

/// Takes the lock of an open file, if no live process has it.
fn acquire(file: &mut File) -> bool {
    let deadline = Instant::now() + STALE_LOCK_TIMEOUT;
    while flock(&*file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        let _ = file.rewind();
        let _ = file.read_to_string(&mut holder);
        // A server was killed between fork and exec of a child process: the child has
        // inherited the lock and releases it on exec.
        if is_alive(holder.trim()) || Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(STALE_LOCK_RETRY_INTERVAL);
    }
    true
}

/// Whether a process exists. An unreadable id counts as alive.
fn is_alive(pid: &str) -> bool {
    let pid = pid.parse().ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

impl Home {
    /// What the variable `OUBLIETTE_HOME` names; an empty one counts as unset.
    pub(crate) fn from_variable() -> Option<PathBuf> {
        let value = std::env::var_os("OUBLIETTE_HOME");
        value.filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// The directory given, or `~/.oubliette`.
    pub(crate) fn find(given: Option<&Path>) -> Result<Self, Failure> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => std::env::home_dir()
                .filter(|home| !home.as_os_str().is_empty())
                .map(|home| home.join(".oubliette"))
                .ok_or_else(|| {
                    Failure::new("the home directory is unknown; choose a data directory with --data-dir DIR")
                })?,
        };
        let path = std::path::absolute(&path).map_err(|error| {
            Failure::with_cause(format!("cannot use {}", path.display()), &error)
        })?;
        if fs::metadata(&path).is_ok_and(|meta| !meta.is_dir()) {
            return Err(Failure::new(format!(
                "the data directory {} is a file; choose another with --data-dir or OUBLIETTE_HOME",
                path.display()
            )));
        }
        Ok(Self { path })
    }

    /// The command, with the option that makes it use this directory, if the user needs one.
    pub(crate) fn command(&self) -> String {
        let default = Self::find(Self::from_variable().as_deref());
        if default.is_ok_and(|default| default.path == self.path) {
            return "oubliette".to_owned();
        }
        let path = self.path.display().to_string();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if path.chars().all(is_plain) {
            format!("oubliette --data-dir {path}")
        } else {
            format!("oubliette --data-dir '{}'", path.replace('\'', "'\\''"))
        }
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

    /// The log of a server in the background.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.path.join("server.log")
    }

    /// What the command line remembers.
    pub(crate) fn cli_dir(&self) -> PathBuf {
        self.path.join(CLI_DIRECTORY)
    }

    /// The keys of MCP clients that start `oubliette mcp stdio`.
    pub(crate) fn mcp_clients_dir(&self) -> PathBuf {
        self.path.join(MCP_CLIENTS_DIRECTORY)
    }

    /// What is known about directories that sessions have worked on.
    pub(crate) fn checkouts_dir(&self) -> PathBuf {
        self.path.join("checkouts")
    }

    /// The installed agents.
    pub(crate) fn agents_dir(&self) -> PathBuf {
        self.path.join("agents")
    }

    fn run_dir(&self) -> PathBuf {
        self.path.join("run")
    }

    /// The parent of each container's directory with its relay socket.
    pub(crate) fn relay_dir(&self) -> PathBuf {
        self.run_dir().join("c")
    }

    /// The socket by which commands reach the server. It is in a directory that only its owner can use.
    pub(crate) fn socket(&self) -> io::Result<LocalSocket> {
        LocalSocket::new(&self.run_dir(), SOCKET_NAME)
    }

    fn server_info_file(&self) -> PathBuf {
        self.run_dir().join("server.json")
    }

    /// Creates the directory, readable only by its owner.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(self.run_dir())
            .map_err(|error| {
                Failure::with_cause(format!("cannot create {}", self.path.display()), &error)
            })
    }

    /// Locks the directory; the error names the process that has the lock.
    pub(crate) fn lock(&self) -> Result<DirectoryLock, Failure> {
        if let Some(lock) = self.try_lock()? {
            return Ok(lock);
        }
        let holder = self.lock_holder();
        let who = holder.map_or(String::new(), |pid| {
            format!(" (process {})", pid.as_raw_nonzero())
        });
        Err(Failure::new(format!(
            "another Oubliette server{who} is using {}; stop it first with `{} down`, or choose another \
             directory with --data-dir",
            self.path.display(),
            self.command()
        )))
    }

    /// Locks the directory; none if another process has the lock.
    pub(crate) fn try_lock(&self) -> Result<Option<DirectoryLock>, Failure> {
        self.prepare()?;
        let path = self.lock_file();
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let mut file = options.open(&path).map_err(|error| {
            Failure::with_cause(format!("cannot open {}", path.display()), &error)
        })?;
        if !acquire(&mut file) {
            return Ok(None);
        }
        let holder = std::process::id().to_string();
        write_holder(&mut file, &holder).map_err(|error| {
            Failure::with_cause(format!("cannot write {}", path.display()), &error)
        })?;
        Ok(Some(DirectoryLock { _file: file }))
    }

    /// Locks a directory to which nothing can be written, for example because the disk is full; none if another
    /// process has the lock. The directory must have been used by a server.
    pub(crate) fn try_lock_unrecorded(&self) -> io::Result<Option<DirectoryLock>> {
        let path = self.lock_file();
        let writable = OpenOptions::new().read(true).write(true).open(&path);
        let mut file = match writable {
            Ok(file) => file,
            Err(_) => File::open(&path)?,
        };
        if !acquire(&mut file) {
            return Ok(None);
        }
        // The id in the file is not this process's.
        let _ = write_holder(&mut file, "");
        Ok(Some(DirectoryLock { _file: file }))
    }

    fn lock_file(&self) -> PathBuf {
        self.run_dir().join("lock")
    }

    pub(crate) fn write_server_info(&self, info: &ServerInfo) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(info)
            .map_err(|error| Failure::with_cause("cannot encode the server's address", &error))?;
        // As long as the spare file, in whose place it is put back when the server stops.
        let text = format!("{text:<SPARE_FILE_BYTES$}");
        let (path, spare) = (self.server_info_file(), self.spare_file());
        let written = match self.write_private(&path, &text) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                if !spare.exists() {
                    // A killed server has left its own.
                    fs::rename(&path, &spare).map_err(|_| Failure::new(no_space(&path)))?;
                }
                write_into_spare(&spare, &text).and_then(|()| fs::rename(&spare, &path))
            }
            written => written,
        };
        written.map_err(|error| {
            Failure::with_cause(format!("cannot write {}", path.display()), &error)
        })?;
        if !spare.exists() {
            // For a start on a full disk; without it the start works where there is space.
            let _ = self.write_private(&spare, &" ".repeat(SPARE_FILE_BYTES));
        }
        Ok(())
    }

    pub(crate) fn remove_server_info(&self) {
        let (path, spare) = (self.server_info_file(), self.spare_file());
        let is_kept = !spare.exists() && fs::rename(&path, &spare).is_ok();
        if !is_kept {
            let _ = fs::remove_file(&path);
        }
        let _ = fs::remove_file(self.run_dir().join(SOCKET_NAME));
    }

    /// A file whose space `server.json` takes on a full disk.
    fn spare_file(&self) -> PathBuf {
        self.run_dir().join("server.json.spare")
    }

    /// What the last server wrote that was not stopped.
    pub(crate) fn server_info(&self) -> Option<ServerInfo> {
        let text = fs::read_to_string(self.server_info_file()).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Whether the last server was started by a command and died without being stopped.
    pub(crate) fn has_crashed_server(&self) -> bool {
        let info = self.server_info();
        info.is_some_and(|info| info.mode == ServerMode::UntilIdle) && !self.is_locked()
    }

    fn is_locked(&self) -> bool {
        File::open(self.lock_file())
            .is_ok_and(|file| flock(file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// The server that is running on the directory: the one that listens at its socket.
    pub(crate) async fn running_server(&self) -> Option<ServerInfo> {
        let info = self.server_info()?;
        let owner = self.owner().ok()??;
        let listener = self.socket().ok()?.listener(owner).await.ok()??;
        // A server in another process namespace has an unknown id here.
        let is_same = listener == 0 || u32::try_from(listener) == Ok(info.pid);
        is_same.then_some(info)
    }

    /// The process of a server that wrote its address and has no socket, as those of older versions.
    pub(crate) fn older_server(&self) -> Option<u32> {
        let info = self.server_info()?;
        let has_socket = self.run_dir().join(SOCKET_NAME).exists();
        (!has_socket && is_alive(&info.pid.to_string())).then_some(info.pid)
    }

    /// The process that has or had the lock.
    pub(crate) fn lock_holder(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.lock_file()).ok()?;
        text.trim().parse().ok().and_then(Pid::from_raw)
    }

    /// The admin key. It and the keys in `mcp-clients` are the only ones of callers that are stored in plain text.
    pub(crate) fn admin_key(&self) -> Option<ApiKey> {
        self.read_owned(&self.admin_token_file())
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    pub(crate) fn write_admin_key(&self, key: &ApiKey) -> Result<(), Failure> {
        let path = self.admin_token_file();
        let text = format!("{}\n", key.reveal());
        self.write_private(&path, &text).map_err(|error| {
            Failure::with_cause(format!("cannot write {}", path.display()), &error)
        })
    }

    /// Writes a file of the server atomically, readable only by its owner, who is that of the data directory, also
    /// with `sudo`. Commands use [`Home::write_owned`].
    fn write_private(&self, path: &Path, text: &str) -> io::Result<()> {
        let is_root = rustix::process::geteuid().is_root();
        let owner = fs::metadata(&self.path).ok().filter(|_| is_root);
        let owner = owner.map(|meta| (meta.uid(), meta.gid()));
        let directory = path.parent().unwrap_or(&self.path);
        let mut draft = tempfile::NamedTempFile::new_in(directory)?;
        if let Some((user, group)) = owner {
            std::os::unix::fs::fchown(draft.as_file(), Some(user), Some(group))?;
        }
        draft.write_all(text.as_bytes())?;
        draft.as_file().sync_all()?;
        draft.persist(path).map_err(|error| error.error)?;
        File::open(directory)?.sync_all()
    }
}

fn no_space(path: &Path) -> String {
    format!(
        "cannot write {}: the disk is full, and this server has kept no space on it; free some space",
        path.display()
    )
}

/// Writes who has the lock over what is there: a file that keeps its space can be written on a full disk.
fn write_holder(file: &mut File, holder: &str) -> io::Result<()> {
    file.rewind()?;
    file.write_all(format!("{holder:<HOLDER_BYTES$}\n").as_bytes())
}

/// Writes a text over a file that is at least as long.
fn write_into_spare(spare: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(spare)?;
    let space = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    if space < text.len() {
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_second_server_is_refused_with_the_first_ones_process_id() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::find(Some(directory.path())).unwrap();
        let first = home.lock().unwrap();
        let Err(Failure::Failed(sentence)) = home.lock() else {
            panic!("locked twice")
        };
        assert!(
            sentence.contains(&std::process::id().to_string()),
            "{sentence}"
        );
        drop(first);
        home.lock().unwrap();
    }

    #[test]
    fn a_file_is_no_data_directory_and_is_not_to_be_removed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let Err(Failure::Failed(sentence)) = Home::find(Some(file.path())) else {
            panic!("a file was taken for a directory")
        };
        assert!(sentence.contains("is a file"), "{sentence}");
        assert!(sentence.contains("--data-dir"), "{sentence}");
        assert!(!sentence.contains("remove"), "{sentence}");
    }

    #[test]
    fn the_space_of_the_address_and_of_the_lock_is_kept_for_a_start_on_a_full_disk() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::find(Some(directory.path())).unwrap();
        drop(home.lock().unwrap());
        let lock_bytes = fs::metadata(home.lock_file()).unwrap().len();
        drop(home.try_lock_unrecorded().unwrap().unwrap());
        assert_eq!(fs::metadata(home.lock_file()).unwrap().len(), lock_bytes);
        assert_eq!(home.lock_holder(), None);

        let info = ServerInfo {
            url: Some("http://127.0.0.1:1/mcp".to_owned()),
            pid: 7,
            version: "1".to_owned(),
            started_at: None,
            mode: ServerMode::Foreground,
            ends_turns: true,
            no_url_reason: None,
        };
        home.write_server_info(&info).unwrap();
        assert!(home.spare_file().exists());
        // As a write that found no space does it.
        let text = fs::read_to_string(home.server_info_file()).unwrap();
        write_into_spare(&home.spare_file(), &text).unwrap();
        fs::rename(home.spare_file(), home.server_info_file()).unwrap();
        assert_eq!(home.server_info().unwrap().pid, 7);
        // A server that was killed leaves it, and the next start on a full disk takes its space.
        assert!(!home.spare_file().exists());
        fs::rename(home.server_info_file(), home.spare_file()).unwrap();
        write_into_spare(&home.spare_file(), &text).unwrap();
        fs::rename(home.spare_file(), home.server_info_file()).unwrap();
        // One that was stopped keeps it, too.
        home.remove_server_info();
        assert!(home.server_info().is_none());
        assert!(fs::metadata(home.spare_file()).unwrap().len() >= text.len() as u64);
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
