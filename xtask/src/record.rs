//! `cargo xtask record NAME`: runs the commands of `docs/recordings/NAME.txt` in a real terminal, with a new data
//! directory and the release binary, or that of a given directory, and draws what it shows as
//! `docs/recordings/NAME.svg`.
//!
//! The first line of a recording says how wide the terminal is. `$ COMMAND` is shown with its output and its time,
//! `> COMMAND` only prepares, and `cd DIRECTORY` is for the commands after it. Other lines are comments.

mod picture;

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use vt100::Parser;

use crate::dist::{build_binaries, io_message};
use crate::root;

/// More than any recording shows.
const ROWS: NonZeroU16 = NonZeroU16::new(400).unwrap();
/// As many rows as programs are told that the terminal has.
const VISIBLE_ROWS: u16 = 24;

/// A terminal into which commands are typed one after another.
struct Recording {
    screen: Parser,
    columns: NonZeroU16,
    directory: PathBuf,
    home: PathBuf,
    binaries: PathBuf,
}

pub(crate) fn run(name: &str, binaries: Option<&str>) -> Result<(), String> {
    let recordings = root().join("docs/recordings");
    let script = recordings.join(format!("{name}.txt"));
    let script = fs::read_to_string(&script).map_err(|error| io_message(&script, &error))?;
    let mut lines = script.lines();
    let columns = lines.next().and_then(|line| line.strip_suffix(" columns"));
    let columns = columns.and_then(|number| number.parse().ok());
    let columns = columns.ok_or("the first line must be, for example, `80 columns`")?;
    let scratch = tempfile::tempdir().map_err(|error| format!("a directory: {error}"))?;
    let mut recording = Recording {
        screen: Parser::new(ROWS, columns, 0),
        columns,
        directory: scratch.path().to_owned(),
        home: scratch.path().to_owned(),
        binaries: match binaries {
            Some(given) => PathBuf::from(given),
            None => build_binaries()?,
        },
    };
    for line in lines {
        if let Some(directory) = line.strip_prefix("cd ") {
            recording.directory.push(directory);
        } else if let Some(command) = line.strip_prefix("> ") {
            recording.prepare(command)?;
        } else if let Some(command) = line.strip_prefix("$ ") {
            recording.show(command)?;
        }
    }
    recording.prepare("oubliette down --yes || true")?;
    let picture = picture::draw(recording.screen.screen());
    let path = recordings.join(format!("{name}.svg"));
    fs::write(&path, picture).map_err(|error| io_message(&path, &error))?;
    println!("{}", path.display());
    Ok(())
}

impl Recording {
    fn command(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        shell
            .args(["-c", command])
            .current_dir(&self.directory)
            .env("PATH", format!("{}:{path}", self.binaries.display()))
            .env("HOME", &self.home)
            .env_remove("OUBLIETTE_HOME")
            .env("TERM", "xterm-256color")
            .env("PAGER", "cat")
            .env("RECORDINGS", root().join("docs/recordings"))
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        shell
    }

    fn prepare(&self, command: &str) -> Result<(), String> {
        let output = self.command(command).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("`{command}`: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{command}` failed: {errors}"))
    }

    fn show(&mut self, command: &str) -> Result<(), String> {
        println!("$ {command}");
        self.screen
            .process(format!("\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m\r\n").as_bytes());
        let started = Instant::now();
        self.run_in_terminal(command)
            .map_err(|error| format!("`{command}`: {error}"))?;
        let time = format!("{:.1} s", started.elapsed().as_secs_f64());
        let (_, column) = self.screen.screen().cursor_position();
        if column > 0 {
            self.screen.process(b"\r\n");
        }
        let indent = usize::from(self.columns.get()).saturating_sub(time.len() + 1);
        self.screen
            .process(format!("\x1b[0m{:indent$}\x1b[2m{time}\x1b[0m\r\n", "").as_bytes());
        Ok(())
    }

    /// Ends when the command and everything that it left in the terminal has ended.
    fn run_in_terminal(&mut self, command: &str) -> Result<(), std::io::Error> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let size = Winsize {
            ws_row: VISIBLE_ROWS,
            ws_col: self.columns.get(),
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size)?;
        let path = ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&path, flags, Mode::empty())?;
        let mut child = self
            .command(command)
            .stdin(slave.try_clone()?)
            .stdout(slave.try_clone()?)
            .stderr(slave)
            .spawn()?;
        let mut master = File::from(master);
        let mut bytes = [0; 4096];
        loop {
            match master.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => self.screen.process(&bytes[..count]),
                // What a terminal says when no process has it open.
                Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        child.wait().map(drop)
    }
}
