//! The step between fork and exec for a process with a terminal: a session of its own, with the
//! terminal as its controlling one. A process of its own, because there the calls are safe.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::fs::{Mode, OFlags};

pub(crate) const ROLE: &str = "stage";

/// `stage TERMINAL PROGRAM ARGUMENTS…`
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(terminal), Some(program)) = (arguments.next(), arguments.next()) else {
        return ExitCode::from(2);
    };
    let prepared = || -> rustix::io::Result<()> {
        rustix::process::setsid()?;
        // The first terminal that a session leader opens becomes its controlling one.
        let terminal = rustix::fs::open(terminal, OFlags::RDWR, Mode::empty())?;
        rustix::stdio::dup2_stdin(&terminal)?;
        rustix::stdio::dup2_stdout(&terminal)?;
        rustix::stdio::dup2_stderr(&terminal)
    };
    if let Err(error) = prepared() {
        eprintln!("cannot open the terminal: {error}");
        return ExitCode::from(126);
    }
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("{}: {error}", program.to_string_lossy());
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    ExitCode::from(if missing { 127 } else { 126 })
}
