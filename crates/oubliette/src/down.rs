//! `oubliette down`: stops the server of a data directory and all its containers.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use oubliette_runtime::{RunState, RuntimeError};
use rustix::process::{Signal, kill_process};

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
    let (_lock, stopped_server) = stop_server_and_lock(home)?;
    let config = Config::load(&home.config_file(), std::env::vars())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let stopped = runtime.block_on(async {
        let runtime =
            match containers::open(&config.runtime, home.path(), &config.docker, None).await {
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
    let stopped =
        stopped.map_err(|error| Failure::with_cause("cannot stop a container", &error))?;
    print_line(&summary(stopped_server, stopped));
    Ok(())
}

fn summary(stopped_server: bool, containers: usize) -> String {
    let containers = match containers {
        0 => None,
        1 => Some("one container".to_owned()),
        count => Some(format!("{count} containers")),
    };
    let server = stopped_server.then(|| "the server".to_owned());
    let stopped: Vec<String> = server.into_iter().chain(containers).collect();
    if stopped.is_empty() {
        return "Nothing was running.".to_owned();
    }
    format!(
        "Stopped {}; nothing is running any more.",
        stopped.join(" and ")
    )
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
        oubliette_trees::remove_tree(&entry?.path())?;
    }
    Ok(())
}

/// Stops the server that uses the directory, if any, and locks the directory; whether there was one.
fn stop_server_and_lock(home: &Home) -> Result<(DirectoryLock, bool), Failure> {
    let deadline = Instant::now() + SERVER_STOP_TIMEOUT;
    let mut signalled = false;
    loop {
        let error = match home.lock() {
            Ok(lock) => return Ok((lock, signalled)),
            Err(error) => error,
        };
        if let Some(pid) = home.lock_holder()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_what_was_stopped() {
        assert_eq!(summary(false, 0), "Nothing was running.");
        assert_eq!(
            summary(true, 2),
            "Stopped the server and 2 containers; nothing is running any more."
        );
    }
}
