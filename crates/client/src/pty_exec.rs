//! `stage`: the step between fork and exec of a process with a terminal. It starts a new session, makes
//! the terminal its controlling terminal and executes the program. It is a program of its own because
//! `CommandExt::pre_exec` is unsafe.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::fs::{Mode, OFlags};

pub(crate) const SUBCOMMAND: &str = "stage";

/// `stage TERMINAL PROGRAM ARGUMENTS…`
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(terminal), Some(program)) = (arguments.next(), arguments.next()) else {
        return ExitCode::from(2);
    };
    let open_terminal = || -> rustix::io::Result<()> {
        rustix::process::setsid()?;
        // The first terminal that a session leader opens becomes its controlling terminal.
        let terminal = rustix::fs::open(terminal, OFlags::RDWR, Mode::empty())?;
        rustix::stdio::dup2_stdin(&terminal)?;
        rustix::stdio::dup2_stdout(&terminal)?;
        rustix::stdio::dup2_stderr(&terminal)
    };
    if let Err(error) = open_terminal() {
        eprintln!("cannot open the terminal: {error}");
        return ExitCode::from(126);
    }
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("{}: {error}", program.to_string_lossy());
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    ExitCode::from(if is_missing { 127 } else { 126 })
}
