//! `oubliette down`: ends the server of a data directory and everything it left running.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use oubliette_runtime::{RunState, RuntimeError};
use rustix::process::{Pid, Signal, kill_process};

use crate::config::Config;
use crate::containers;
use crate::failure::Failure;
use crate::home::{Hold, Home};
use crate::terminal::say;

const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// Stops all containers; with `remove` they are removed too, and the images built for them. Files of
/// projects stay.
pub(crate) fn run(home: &Home, remove: bool) -> Result<(), Failure> {
    if !home.database().exists() {
        return Err(Failure::new(format!(
            "there is nothing in {}",
            home.path().display()
        )));
    }
    let _hold = take_over(home)?;
    let config = Config::load(&home.config_file(), std::env::vars())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::of("cannot start", &error))?;
    let ended = runtime.block_on(async {
        let runtime = match containers::open(&config.runtime, home.path(), &config.docker).await {
            Ok(runtime) => runtime,
            // Where none was ever made, none is left.
            Err(_) if !has_containers(home) => return Ok(0),
            Err(why) => return Err(RuntimeError::Unavailable(why)),
        };
        let grace = Duration::from_secs(config.containers.stop_grace_seconds);
        let mut ended = 0;
        for status in runtime.list().await? {
            if status.state == RunState::Running {
                runtime.stop(&status.id, grace).await?;
                ended += 1;
            }
            if remove {
                runtime.remove(&status.id).await?;
            }
        }
        if remove {
            runtime.remove_images().await?;
            clear(&home.doors())?;
        }
        Ok::<_, RuntimeError>(ended)
    });
    match ended.map_err(|error| Failure::of("a container could not be ended", &error))? {
        0 => say("Nothing runs any more."),
        1 => say("One container was stopped; nothing runs any more."),
        ended => say(&format!(
            "{ended} containers were stopped; nothing runs any more."
        )),
    }
    Ok(())
}

/// Whether containers were made that nobody has removed.
fn has_containers(home: &Home) -> bool {
    fs::read_dir(home.doors()).is_ok_and(|mut doors| doors.next().is_some())
}

/// Removes what is in a directory.
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

/// Ends a server that uses the directory, and takes its place.
fn take_over(home: &Home) -> Result<Hold, Failure> {
    let deadline = Instant::now() + PATIENCE;
    let mut told = false;
    loop {
        let refused = match home.hold() {
            Ok(hold) => return Ok(hold),
            Err(refused) => refused,
        };
        let pid = home
            .running()
            .and_then(|running| i32::try_from(running.pid).ok());
        match pid.and_then(Pid::from_raw) {
            Some(pid) if !told => {
                told = kill_process(pid, Signal::TERM).is_ok();
            }
            _ => {}
        }
        if !told || Instant::now() > deadline {
            return Err(refused);
        }
        std::thread::sleep(PAUSE);
    }
}
