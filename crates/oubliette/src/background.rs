//! A server in the background: a command starts it in a process and a session of its own, and waits until
//! it answers.
//!
//! The two processes talk over a pipe, the standard output of the server: it reports once, that it is ready
//! or why it is not. It holds no other descriptor of the command, so a pipeline that the command is part of
//! ends with the command.

mod log_file;
mod report;

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use clap::ValueEnum;

pub(crate) use self::log_file::LogFile;
pub(crate) use self::report::{Report, Starter};
use crate::failure::Failure;
use crate::home::Home;

/// After this time the user is told what the command waits for.
const NOTICE_DELAY: Duration = Duration::from_secs(5);
/// Variables of commands that mean nothing to a server.
const VARIABLES_OF_COMMANDS: [&str; 2] = ["OUBLIETTE_URL", "OUBLIETTE_TOKEN"];

/// How long a server in the background runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lifetime {
    /// Until it is stopped.
    Kept,
    /// Until nothing is at work for a while: a command needed it. It has only its socket if its port is taken.
    UntilIdle,
}

/// How a server ended that was not ready, and did not say why.
fn unexplained_end(status: io::Result<ExitStatus>, log: &str) -> Failure {
    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    Failure::new(format!(
        "the server ended before it was ready ({status}); its log is {log}"
    ))
}

/// Starts a server in the background with more options of `serve`, and waits until it is ready. If another
/// process starts one at the same time, waits for that one.
pub(crate) fn start(
    home: &Home,
    lifetime: Lifetime,
    options: &[OsString],
) -> Result<Report, Failure> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::with_cause("cannot find oubliette", &error))?;
    oubliette_sandbox::close_descriptors_on_exec();
    let lifetime = match lifetime {
        Lifetime::Kept => "kept",
        Lifetime::UntilIdle => "until-idle",
    };
    let mut command = Command::new(program);
    for name in VARIABLES_OF_COMMANDS {
        command.env_remove(name);
    }
    let child = command
        .arg("--data-dir")
        .arg(home.path())
        .args(["serve", "--background", lifetime])
        .args(options)
        // It must not keep the directory of the command from being unmounted.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let child = child.map_err(|error| Failure::with_cause("cannot start a server", &error))?;
    wait_until_ready(home, child)
}

fn wait_until_ready(home: &Home, mut child: Child) -> Result<Report, Failure> {
    let (sender, lines) = mpsc::sync_channel(1);
    if let Some(pipe) = child.stdout.take() {
        std::thread::spawn(move || sender.send(read_report(pipe)));
    }
    let log = home.log_file().display().to_string();
    let line = match lines.recv_timeout(NOTICE_DELAY) {
        Err(RecvTimeoutError::Timeout) => {
            eprintln!("The server is still starting; its log is {log}.");
            lines.recv().unwrap_or_default()
        }
        line => line.unwrap_or_default(),
    };
    match Report::parse(&line) {
        Some(report) => report,
        None => Err(unexplained_end(child.wait(), &log)),
    }
}

fn read_report(pipe: ChildStdout) -> String {
    let mut line = String::new();
    let _ = BufReader::new(pipe).read_line(&mut line);
    line
}
