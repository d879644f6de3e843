//! `oubliette down`: stops the server of a data directory and all its containers. It works with a full disk and
//! a broken configuration, too.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use oubliette_engine::ContainerSettings;
use oubliette_runtime::{DockerSettings, RunState, RuntimeError};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::config::Config;
use crate::containers;
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::{DirectoryLock, Home, ServerMode};
use crate::terminal::{output, print_json, print_line, printable};

/// How long a server may take to stop before it is killed. It is longer than `server.drain_seconds` usually is.
const SERVER_STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a killed server may hold the lock.
const SERVER_KILL_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The `runtime` of a configuration that names none.
const AUTO: &str = "auto";

/// What becomes of the agents when their server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agents {
    KeepWorking,
    /// Their turns are ended with a reason, as far as the server can do that.
    End,
}

/// Stops all containers. With `remove`, also removes them and the images built for them. Projects' files
/// stay. `working` are the ids of the sessions at work.
pub(crate) fn run(home: &Home, remove: bool, working: &[String]) -> Result<(), Failure> {
    let Some(stopped_server) = stop_server(home, Agents::End)? else {
        report(home, false, 0, remove, &[]);
        return Ok(());
    };
    let config = Config::load(&home.config_file(), std::env::vars());
    let config = config.inspect_err(|failure| {
        if let Failure::Failed(sentence) = failure {
            let sentence = printable(sentence);
            eprintln!(
                "warning: {sentence}; stopping the containers of every runtime of this machine"
            );
        }
    });
    let config = config.ok();
    let stopped = block_on(stop_containers(home, config.as_ref(), remove))?;
    let stopped =
        stopped.map_err(|error| Failure::with_cause("cannot stop a container", &error))?;
    // After the containers: their last connections end with them.
    let gate = block_on(oubliette_gate::stop(home.path()))?;
    gate.map_err(|error| Failure::with_cause("cannot stop the gate", &error))?;
    report(home, stopped_server.was_running, stopped, remove, working);
    Ok(())
}

fn report(home: &Home, stopped_server: bool, stopped: usize, remove: bool, working: &[String]) {
    if output::is_json() {
        print_json(&json!({
            "stopped_server": stopped_server, "stopped_containers": stopped, "removed": remove,
            "ended_sessions": working,
        }));
        return;
    }
    print_line(&summary(stopped_server, stopped));
    if let Some(first) = working.first() {
        let sessions = if working.len() == 1 {
            "the session"
        } else {
            "the sessions"
        };
        print_line(&format!(
            "That ended {sessions} at work: {}. A message resumes one, for example `{} session message {first} 'go on'`.",
            working.join(", "),
            home.command()
        ));
    }
}

async fn stop_containers(
    home: &Home,
    config: Option<&Config>,
    remove: bool,
) -> Result<usize, RuntimeError> {
    let docker = config.map_or_else(DockerSettings::default, |it| it.docker.clone());
    let name = config.map(|config| config.runtime.as_str());
    let (runtimes, refusal) = containers::open_to_stop(name, home.path(), &docker).await;
    let grace = config.map_or_else(ContainerSettings::default, |it| it.containers.clone());
    let grace = Duration::from_secs(grace.stop_grace_seconds);
    let (mut stopped, mut found) = (0, HashSet::new());
    for runtime in runtimes {
        for status in runtime.list().await? {
            if status.state == RunState::Running {
                runtime.stop(&status.id, grace).await?;
                stopped += 1;
            }
            if remove {
                runtime.remove(&status.id).await?;
            }
            found.insert(status.id.to_string());
        }
        if remove {
            runtime.remove_images().await?;
        }
    }
    // Without an unknown container there is nothing to stop, so the other runtime is not needed.
    if let Some(why) = refusal
        && container_names(home).any(|name| !found.contains(&name))
    {
        let is_configured = config.is_some_and(|config| config.runtime != AUTO);
        if is_configured {
            return Err(RuntimeError::Unavailable(why));
        }
        let why = printable(&why);
        eprintln!(
            "warning: containers of another runtime, if there are any, were not stopped: {why}"
        );
    }
    if remove {
        clear(&home.relay_dir())?;
    }
    Ok(stopped)
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

/// The names of the containers that the data directory has files of.
fn container_names(home: &Home) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(home.relay_dir()).into_iter().flatten();
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
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

/// A directory without a server; none is started while this lives.
#[derive(Debug)]
pub(crate) struct StoppedServer {
    _lock: DirectoryLock,
    /// Whether there was a server.
    was_running: bool,
}

/// Stops the server that uses the directory, if any, and locks the directory. Containers keep running. None
/// if no server has ever used the directory.
pub(crate) fn stop_server(home: &Home, agents: Agents) -> Result<Option<StoppedServer>, Failure> {
    let mut stopping: Option<(Pid, Instant)> = None;
    let mut is_killed = false;
    loop {
        // Also if the directory cannot be written to.
        match home.try_lock_unrecorded() {
            Ok(Some(lock)) => {
                let was_running = stopping.is_some();
                if was_running {
                    // A killed server leaves it.
                    home.remove_server_info();
                }
                return Ok(Some(StoppedServer {
                    _lock: lock,
                    was_running,
                }));
            }
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let what = format!("cannot stop the server of {}", home.path().display());
                return Err(Failure::with_cause(what, &error));
            }
        }
        let holder = home.lock_holder();
        match (holder, stopping) {
            (Some(holder), Some((pid, since))) if holder == pid => {
                if since.elapsed() > SERVER_STOP_TIMEOUT && !is_killed {
                    is_killed = true;
                    let _ = kill_process(pid, Signal::KILL);
                    eprintln!("The server did not stop in time and was killed.");
                }
                if since.elapsed() > SERVER_STOP_TIMEOUT + SERVER_KILL_TIMEOUT {
                    return lock_after_kill(home).map(Some);
                }
            }
            (Some(holder), _) => {
                match kill_process(holder, stop_signal(home, holder, agents)) {
                    // It has just ended.
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(cannot_stop(home, holder, error)),
                }
                (stopping, is_killed) = (Some((holder, Instant::now())), false);
            }
            // Another command has just taken the lock, and ends soon.
            (None, _) => {}
        }
        std::thread::sleep(LOCK_RETRY_INTERVAL);
    }
}

/// Older servers do not know the signal that ends turns.
fn stop_signal(home: &Home, server: Pid, agents: Agents) -> Signal {
    let id = server.as_raw_nonzero().get().cast_unsigned();
    let ends_turns = home
        .server_info()
        .is_some_and(|info| info.pid == id && info.ends_turns);
    if agents == Agents::End && ends_turns {
        Signal::USR1
    } else {
        Signal::TERM
    }
}

/// Locks the directory of a server that was killed, or fails with the process that still has the lock.
fn lock_after_kill(home: &Home) -> Result<StoppedServer, Failure> {
    let lock = home.lock()?;
    home.remove_server_info();
    Ok(StoppedServer {
        _lock: lock,
        was_running: true,
    })
}

/// Locks the directory, and stops a server before that a command had started: the next command starts another.
pub(crate) fn lock_without_server(home: &Home) -> Result<DirectoryLock, Failure> {
    let is_replaceable = home
        .server_info()
        .is_some_and(|info| info.mode == ServerMode::UntilIdle);
    if is_replaceable {
        // Locked again, with the id of this process.
        drop(stop_server(home, Agents::KeepWorking)?);
    }
    home.lock()
}

fn cannot_stop(home: &Home, pid: Pid, error: Errno) -> Failure {
    let what = format!(
        "cannot stop process {}, which uses {}",
        pid.as_raw_nonzero(),
        home.path().display()
    );
    Failure::with_cause(what, &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_free_after_a_kill_had_a_server() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::find(Some(directory.path())).unwrap();
        let held = home.lock().unwrap();
        lock_after_kill(&home).unwrap_err();
        drop(held);
        assert!(lock_after_kill(&home).unwrap().was_running);
    }

    #[test]
    fn the_summary_names_what_was_stopped() {
        assert_eq!(summary(false, 0), "Nothing was running.");
        assert_eq!(
            summary(true, 2),
            "Stopped the server and 2 containers; nothing is running any more."
        );
    }
}
