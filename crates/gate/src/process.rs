//! The gate as a process: `oubliette gate DIR`, one per data directory.
//!
//! It ends when the server or `oubliette down` says so, and when it has had no container for a while.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use crate::container::Gate;
use crate::limits::Limits;
use crate::{control, socket};

/// The subcommand of the binary.
pub const SUBCOMMAND: &str = "gate";
pub(crate) const CONTROL_SOCKET_NAME: &str = "gate.sock";
pub(crate) const LOG_NAME: &str = "gate.log";
const LOCK_NAME: &str = "gate.lock";

/// For a gate that is ending to release the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Without a container, the gate ends after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Servers and commands that are connected.
const MAX_CONTROL_CONNECTIONS: usize = 32;
const MAX_OPEN_FILES: u64 = 65_536;
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The directory of sockets and locks in a data directory.
pub(crate) fn run_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("run")
}

/// Runs the gate of the data directory that the argument names.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(data_dir) = arguments.next().map(PathBuf::from) else {
        eprintln!(
            "usage: oubliette gate DIR\n\nConnects containers to other hosts. The server starts it."
        );
        return ExitCode::from(2);
    };
    // No terminal ends it with the server. It fails only for the first process of a group.
    let _ = rustix::process::setsid();
    // Other processes of the user must not read what passes through it.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let limits = Limits::for_open_files(raise_open_file_limit());
    let served = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .and_then(|runtime| {
            let served = runtime.block_on(serve(&data_dir, limits));
            // Lookups in threads cannot be stopped.
            runtime.shutdown_background();
            served
        });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the gate of {}: {error}", data_dir.display());
            ExitCode::FAILURE
        }
    }
}

async fn serve(data_dir: &Path, limits: Limits) -> io::Result<()> {
    let run_dir = run_dir(data_dir);
    let Some(_lock) = lock(&run_dir.join(LOCK_NAME)).await? else {
        return Err(io::Error::other("another gate is running"));
    };
    socket::remove_drafts(&run_dir);
    let gate = Arc::new(Gate::new(data_dir, limits)?);
    let listener = socket::bind(&run_dir, CONTROL_SOCKET_NAME, &run_dir, 0o600)?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        () = accept(&gate, listener) => {}
        () = until_unused(&gate) => {}
        () = gate.stopping.cancelled() => {}
        _ = terminate.recv() => {}
    }
    gate.stopping.cancel();
    gate.keep(&[]);
    // While the lock is held: the socket of the next gate is not removed.
    let _ = std::fs::remove_file(run_dir.join(CONTROL_SOCKET_NAME));
    Ok(())
}

/// A lock that ends with the process; None if another process keeps it.
async fn lock(path: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    let file = options
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(error) if error != rustix::io::Errno::WOULDBLOCK => return Err(error.into()),
            Err(_) if Instant::now() > deadline => return Ok(None),
            Err(_) => tokio::time::sleep(LOCK_RETRY_INTERVAL).await,
        }
    }
}

async fn accept(gate: &Arc<Gate>, listener: UnixListener) {
    let places = Arc::new(Semaphore::new(MAX_CONTROL_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            continue;
        };
        let gate = gate.clone();
        tokio::spawn(async move {
            control::serve(gate, stream).await;
            drop(place);
        });
    }
}

/// Returns when there was no container for a while.
async fn until_unused(gate: &Gate) {
    loop {
        let changed = gate.containers_changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if gate.has_containers() {
            changed.await;
            continue;
        }
        let waited = tokio::time::timeout(IDLE_TIMEOUT, changed).await;
        if waited.is_err() && !gate.has_containers() {
            return;
        }
    }
}

/// Each connection needs two. Returns how many there may be.
fn raise_open_file_limit() -> u64 {
    let now = getrlimit(Resource::Nofile);
    let target = now
        .maximum
        .map_or(MAX_OPEN_FILES, |target| target.min(MAX_OPEN_FILES));
    let wanted = Rlimit {
        current: Some(target),
        ..now
    };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        eprintln!("cannot raise the limit of open files: {error}");
    }
    let current = getrlimit(Resource::Nofile).current;
    current.unwrap_or(MAX_OPEN_FILES)
}
