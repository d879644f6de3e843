//! `oubliette down`: stops the server of a data directory and all its containers.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use oubliette_runtime::{RunState, RuntimeError};
use rustix::process::{Pid, Signal, kill_process};

use crate::config::Config;
use crate::containers;
use crate::failure::Failure;
use crate::home::{DirectoryLock, Home};
use crate::terminal::print_line;

const SERVER_STOP_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Stops all containers. With `remove`, also removes them and the images built for them. Projects' files
/// stay.
pub(crate) fn run(home: &Home, remove: bool) -> Result<(), Failure> {
    if !home.database().exists() {
        return Err(Failure::new(format!(
            "there is no database in {}, so there is nothing to stop",
            home.path().display()
        )));
    }
    let _lock = stop_server_and_lock(home)?;
    let config = Config::load(&home.config_file(), std::env::vars())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let stopped = runtime.block_on(async {
        let runtime = match containers::open(&config.runtime, home.path(), &config.docker).await {
            Ok(runtime) => runtime,
            // Without a container there is nothing to stop, so the runtime is not needed.
            Err(_) if !has_containers(home) => return Ok(0),
            Err(why) => return Err(RuntimeError::Unavailable(why)),
        };
        let grace = Duration::from_secs(config.containers.stop_grace_seconds);
        let mut stopped = 0;
        for status in runtime.list().await? {
            if status.state == RunState::Running {
                runtime.stop(&status.id, grace).await?;
                stopped += 1;
            }
            if remove {
                runtime.remove(&status.id).await?;
            }
        }
        if remove {
            runtime.remove_images().await?;
            clear(&home.relay_dir())?;
        }
        Ok::<_, RuntimeError>(stopped)
    });
    match stopped.map_err(|error| Failure::with_cause("cannot stop a container", &error))? {
        0 => print_line("Nothing is running any more."),
        1 => print_line("Stopped one container; nothing is running any more."),
        stopped => print_line(&format!(
            "Stopped {stopped} containers; nothing is running any more."
        )),
    }
    Ok(())
}

/// Whether the data directory has containers.
fn has_containers(home: &Home) -> bool {
    fs::read_dir(home.relay_dir()).is_ok_and(|mut entries| entries.next().is_some())
}

/// Removes the contents of a directory.
fn clear(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        fs::remove_dir_all(entry?.path())?;
    }
    Ok(())
}

/// Stops the server that uses the directory, if any, and locks the directory.
fn stop_server_and_lock(home: &Home) -> Result<DirectoryLock, Failure> {
    let deadline = Instant::now() + SERVER_STOP_TIMEOUT;
    let mut signalled = false;
    loop {
        let error = match home.lock() {
            Ok(lock) => return Ok(lock),
            Err(error) => error,
        };
        let pid = home
            .server_info()
            .and_then(|info| i32::try_from(info.pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw)
            && !signalled
        {
            signalled = kill_process(pid, Signal::TERM).is_ok();
        }
        if !signalled || Instant::now() > deadline {
            return Err(error);
        }
        std::thread::sleep(LOCK_RETRY_INTERVAL);
    }
}
