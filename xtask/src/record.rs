//! `cargo xtask record NAME`: runs the commands of `docs/recordings/NAME.txt` in a real terminal, with a new data
//! directory and the release binary, or that of a given directory, and draws what it shows as
//! `docs/recordings/NAME.svg`.
//!
//! The first line of a recording says how wide the terminal is; with several widths, as in `80, 120 columns`, there is a
//! picture for each, `NAME-80.svg` and so on. `$ COMMAND` is shown with its output and its time, `> COMMAND` only
//! prepares, and `cd DIRECTORY` is for the commands after it. After `$ COMMAND`, `? TEXT` waits until the terminal shows
//! the text, and `< KEYS` types: `^C` and other letters after `^` are control keys, `\r` is Enter. Other lines are
//! comments.

mod picture;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

/// How long a text that a recording waits for may take.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A step in the dialogue with a command.
#[derive(Debug, PartialEq)]
enum Step {
    WaitFor(String),
    Type(Vec<u8>),
}

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
    let (first, rest) = script.split_once('\n').unwrap_or_default();
    let widths = first.strip_suffix(" columns").unwrap_or_default();
    let widths: Result<Vec<NonZeroU16>, _> = widths.split(", ").map(str::parse).collect();
    let widths = widths.map_err(|_| "the first line must be, for example, `80, 120 columns`")?;
    let binaries = match binaries {
        Some(given) => PathBuf::from(given),
        None => build_binaries()?,
    };
    for columns in &widths {
        let picture = play(rest, *columns, &binaries)?;
        let file = match widths.len() {
            1 => format!("{name}.svg"),
            _ => format!("{name}-{columns}.svg"),
        };
        let path = recordings.join(file);
        fs::write(&path, picture).map_err(|error| io_message(&path, &error))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Runs the commands of a recording and draws the terminal.
fn play(script: &str, columns: NonZeroU16, binaries: &Path) -> Result<String, String> {
    let scratch = tempfile::tempdir().map_err(|error| format!("a directory: {error}"))?;
    let mut recording = Recording {
        screen: Parser::new(ROWS, columns, 0),
        columns,
        directory: scratch.path().to_owned(),
        home: scratch.path().to_owned(),
        binaries: binaries.to_owned(),
    };
    let mut lines = script.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(directory) = line.strip_prefix("cd ") {
            recording.directory.push(directory);
        } else if let Some(command) = line.strip_prefix("> ") {
            recording.prepare(command)?;
        } else if let Some(command) = line.strip_prefix("$ ") {
            let mut steps = Vec::new();
            while let Some(step) = lines.peek().and_then(|line| Step::parse(line)) {
                steps.push(step);
                lines.next();
            }
            let shown = recording.show(command, steps);
            if shown.is_err() {
                recording.prepare("oubliette down --remove --yes || true")?;
            }
            shown?;
        }
    }
    recording.prepare("oubliette down --remove --yes || true")?;
    Ok(picture::draw(recording.screen.screen()))
}

impl Step {
    fn parse(line: &str) -> Option<Self> {
        if let Some(text) = line.strip_prefix("? ") {
            return Some(Self::WaitFor(text.to_owned()));
        }
        let keys = line.strip_prefix("< ")?.replace("\\r", "\r");
        let mut bytes = Vec::new();
        let mut is_control = false;
        for byte in keys.bytes() {
            if std::mem::take(&mut is_control) {
                bytes.push(byte & 0x1f);
            } else if byte == b'^' {
                is_control = true;
            } else {
                bytes.push(byte);
            }
        }
        Some(Self::Type(bytes))
    }
}

impl Step {
    /// Whether it can be done now.
    fn is_due(&self, shown: &[u8]) -> bool {
        match self {
            Self::WaitFor(text) => shown
                .windows(text.len())
                .any(|window| window == text.as_bytes()),
            Self::Type(_) => true,
        }
    }
}

impl Recording {
    /// A command with these words before it.
    fn command(&self, before: &[&str], command: &str) -> Command {
        let words: Vec<&str> = [before, &["sh", "-c", command]].concat();
        let mut shell = Command::new(words[0]);
        let path = std::env::var("PATH").unwrap_or_default();
        shell
            .args(&words[1..])
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
        let output = self.command(&[], command).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("`{command}`: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{command}` failed: {errors}"))
    }

    fn show(&mut self, command: &str, steps: Vec<Step>) -> Result<(), String> {
        println!("$ {command}");
        self.screen
            .process(format!("\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m\r\n").as_bytes());
        let started = Instant::now();
        self.run_in_terminal(command, steps)
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
    fn run_in_terminal(&mut self, command: &str, steps: Vec<Step>) -> Result<(), std::io::Error> {
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
            // The terminal is its controlling one, so that Ctrl-C works.
            .command(&["setsid", "--ctty", "--wait"], command)
            .stdin(slave.try_clone()?)
            .stdout(slave.try_clone()?)
            .stderr(slave)
            .spawn()?;
        let mut master = File::from(master);
        let mut bytes = [0; 4096];
        let mut steps = steps.into_iter().peekable();
        // What was shown since the last step.
        let mut shown = Vec::new();
        let mut deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            match master.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => {
                    self.screen.process(&bytes[..count]);
                    shown.extend(&bytes[..count]);
                    while let Some(step) = steps.next_if(|step| step.is_due(&shown)) {
                        if let Step::Type(keys) = step {
                            master.write_all(&keys)?;
                        }
                        shown.clear();
                        deadline = Instant::now() + WAIT_TIMEOUT;
                    }
                    if steps.peek().is_some() && Instant::now() > deadline {
                        child.kill()?;
                        let what = format!("waited in vain for {:?}", steps.peek());
                        return Err(std::io::Error::new(ErrorKind::TimedOut, what));
                    }
                }
                // What a terminal says when no process has it open.
                Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        child.wait().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::Step;

    #[test]
    fn steps_wait_and_type() {
        assert_eq!(
            Step::parse("? Allow"),
            Some(Step::WaitFor("Allow".to_owned()))
        );
        let keys = Step::parse("< y\\r^C");
        assert_eq!(keys, Some(Step::Type(b"y\r\x03".to_vec())));
        assert_eq!(Step::parse("a comment"), None);
        assert!(Step::WaitFor("b c".to_owned()).is_due(b"a b c d"));
        assert!(!Step::WaitFor("b c".to_owned()).is_due(b"a b  c"));
    }
}
