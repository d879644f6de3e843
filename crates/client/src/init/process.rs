//! One process: its start, input, output and exit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;

use oubliette_wire::{
    ExitStatus, Exited, ProcessFaultKind, ProcessReport, Start, TerminalSize, User,
};
use rustix::fs::{Gid, Uid};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use super::process_tag::ProcessTag;
use super::spawner::Spawner;
use super::spool::Spool;
use crate::pty_exec;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: String,
    pub(super) pid: u32,
    pub(super) tag: ProcessTag,
    pub(super) stdout: Spool,
    pub(super) stderr: Spool,
    pub(super) stdin: Stdin,
    terminal: Option<OwnedFd>,
    exit_status: Cell<Option<ExitStatus>>,
    has_ended: Cell<bool>,
    ended: Notify,
}

/// The input of a process.
#[derive(Debug, Default)]
pub(super) struct Stdin {
    pipe: RefCell<Option<Rc<pipe::Sender>>>,
    received: Cell<u64>,
    closes_at: Cell<Option<u64>>,
}

/// Why a process could not be started.
#[derive(Debug)]
pub(super) struct StartError {
    pub(super) kind: ProcessFaultKind,
    pub(super) message: String,
}

impl Process {
    /// Starts a process and the tasks that read its output.
    pub(super) fn start(
        start: &Start,
        user: Option<User>,
        environment: &BTreeMap<String, String>,
        spool_directory: &Path,
        tag: ProcessTag,
        spawner: &Spawner,
    ) -> Result<Rc<Self>, StartError> {
        let other = |what: &str, error: io::Error| StartError {
            kind: ProcessFaultKind::Other,
            message: format!("{what}: {error}"),
        };
        if !Path::new(&start.cwd).is_dir() {
            return Err(StartError {
                kind: ProcessFaultKind::Other,
                message: format!("there is no directory {}", start.cwd),
            });
        }
        let spool = || {
            Spool::new(spool_directory, start.spool_limit)
                .map_err(|error| other("cannot create a spool", error))
        };
        let (stdout, stderr) = (spool()?, spool()?);
        let stdio = match start.pty {
            Some(size) => StdioPair::terminal(size),
            None => StdioPair::pipes(),
        }
        .and_then(|stdio| stdio.give_to(user))
        .map_err(|error| other("cannot create pipes", error))?;
        let mut command = stdio.command(start, user)?;
        let missing = |(name, _): &(&String, &String)| !start.env.contains_key(*name);
        command.envs(environment.iter().filter(missing));
        let program = start.argv.first().map_or("", String::as_str);
        let pid = tag
            .apply(|| spawner.spawn(command, start.isolated))
            .map_err(|error| other("cannot set the process tag", error))?
            .map_err(|error| spawn_error(program, &error))?;
        let (input, output, errors, terminal) = stdio
            .into_own_ends()
            .map_err(|error| other("cannot read output", error))?;
        let process = Rc::new(Self {
            id: start.process_id.clone(),
            pid,
            tag,
            stdout,
            stderr,
            stdin: Stdin {
                pipe: RefCell::new(input.map(Rc::new)),
                ..Stdin::default()
            },
            terminal,
            exit_status: Cell::new(None),
            has_ended: Cell::new(false),
            ended: Notify::new(),
        });
        process.clone().spool_output(output, errors);
        Ok(process)
    }

    fn spool_output(self: Rc<Self>, output: pipe::Receiver, errors: Option<pipe::Receiver>) {
        let process = self.clone();
        tokio::task::spawn_local(async move {
            process
                .stdout
                .fill(output, &process.ended, &process.has_ended)
                .await;
        });
        tokio::task::spawn_local(async move {
            match errors {
                Some(errors) => self.stderr.fill(errors, &self.ended, &self.has_ended).await,
                None => self.stderr.close(),
            }
        });
    }

    pub(super) fn record_exit(&self, status: ExitStatus) {
        self.exit_status.set(Some(status));
        self.has_ended.set(true);
        self.ended.notify_waiters();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// How the process ended, once everything that it wrote is in the spools.
    pub(super) fn exited(&self) -> Option<Exited> {
        let ended = self.exit_status.get()?;
        let complete = self.stdout.is_drained() && self.stderr.is_drained();
        complete.then(|| Exited {
            process_id: self.id.clone(),
            ended,
            stdout_end: self.stdout.range().end,
            stderr_end: self.stderr.range().end,
        })
    }

    /// Whether the process has ended and some of its output is still in a pipe.
    pub(super) fn is_draining(&self) -> bool {
        self.has_ended.get() && self.exited().is_none()
    }

    /// Returns when everything that the process wrote before its end is in the spools.
    pub(super) async fn drained(&self) {
        loop {
            let (output, errors) = (self.stdout.changed(), self.stderr.changed());
            if !self.is_draining() {
                return;
            }
            tokio::select! {
                () = output => {}
                () = errors => {}
            }
        }
    }

    pub(super) fn report(&self) -> ProcessReport {
        ProcessReport {
            process_id: self.id.clone(),
            stdout: self.stdout.range(),
            stderr: self.stderr.range(),
            stdin_received: self.stdin.received.get(),
            exited: self.exited(),
        }
    }

    pub(super) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        match &self.terminal {
            Some(terminal) => Ok(rustix::termios::tcsetwinsize(terminal, winsize(size))?),
            None => Ok(()),
        }
    }
}

impl Stdin {
    pub(super) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Writes bytes whose first one has this offset; bytes that were received before are skipped.
    /// False if bytes before `offset` are missing.
    pub(super) async fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        loop {
            // In every round: another connection can bring the same bytes.
            let Some(already_received) = self.received.get().checked_sub(offset) else {
                return false;
            };
            let rest = usize::try_from(already_received)
                .ok()
                .and_then(|skip| bytes.get(skip..))
                .unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let Some(pipe) = self.pipe.borrow().clone() else {
                // The process has closed its input: the bytes are dropped and count as received.
                self.received.set(self.received.get() + rest.len() as u64);
                break;
            };
            match pipe.try_write(rest) {
                Ok(written) => self.received.set(self.received.get() + written as u64),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if pipe.writable().await.is_err() {
                        self.pipe.take();
                    }
                }
                Err(_) => drop(self.pipe.take()),
            }
        }
        self.close_if_done();
        true
    }

    /// Closes the input when everything before `offset` was received.
    pub(super) fn close_at(&self, offset: u64) {
        self.closes_at.set(Some(offset));
        self.close_if_done();
    }

    fn close_if_done(&self) {
        if self
            .closes_at
            .get()
            .is_some_and(|end| self.received.get() >= end)
        {
            self.pipe.take();
        }
    }
}

/// The standard streams of a process: both ends of its pipes, or its terminal.
enum StdioPair {
    Pipes {
        stdin: (OwnedFd, OwnedFd),
        stdout: (OwnedFd, OwnedFd),
        stderr: (OwnedFd, OwnedFd),
    },
    Terminal {
        master: OwnedFd,
        path: OsString,
    },
}

type Reader = pipe::Receiver;
type OwnEnds = (
    Option<pipe::Sender>,
    Reader,
    Option<Reader>,
    Option<OwnedFd>,
);

impl StdioPair {
    fn pipes() -> io::Result<Self> {
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        Ok(Self::Pipes {
            stdin: pipe()?,
            stdout: pipe()?,
            stderr: pipe()?,
        })
    }

    fn terminal(size: TerminalSize) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&master)?;
        rustix::pty::unlockpt(&master)?;
        rustix::termios::tcsetwinsize(&master, winsize(size))?;
        let path = rustix::pty::ptsname(&master, Vec::new())?.into_bytes();
        Ok(Self::Terminal {
            master,
            path: std::os::unix::ffi::OsStringExt::from_vec(path),
        })
    }

    /// Lets a user open the process's ends by name, as `/dev/stdout` or as its terminal.
    fn give_to(self, user: Option<User>) -> io::Result<Self> {
        let Some(user) = user else {
            return Ok(self);
        };
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        match &self {
            Self::Pipes {
                stdin,
                stdout,
                stderr,
            } => {
                for end in [&stdin.0, &stdout.1, &stderr.1] {
                    rustix::fs::fchown(end, Some(uid), Some(gid))?;
                }
            }
            // Its group stays that of terminals.
            Self::Terminal { path, .. } => rustix::fs::chown(path, Some(uid), None)?,
        }
        Ok(self)
    }

    fn command(&self, start: &Start, user: Option<User>) -> Result<Command, StartError> {
        let [program, arguments @ ..] = start.argv.as_slice() else {
            return Err(StartError {
                kind: ProcessFaultKind::Other,
                message: "no command was given".into(),
            });
        };
        let spawn_error = |error: io::Error| spawn_error(program, &error);
        let mut command = match self {
            Self::Pipes {
                stdin,
                stdout,
                stderr,
            } => {
                let stdio = |end: &OwnedFd| end.try_clone().map(Stdio::from);
                let mut command = Command::new(program);
                command
                    .args(arguments)
                    .stdin(stdio(&stdin.0).map_err(spawn_error)?)
                    .stdout(stdio(&stdout.1).map_err(spawn_error)?)
                    .stderr(stdio(&stderr.1).map_err(spawn_error)?)
                    .process_group(0);
                command
            }
            Self::Terminal { path, .. } => {
                let mut command = Command::new("/proc/self/exe");
                command
                    // The executable can be the server's, which acts as the client under this name.
                    .arg0("oubliette-client")
                    .arg(pty_exec::SUBCOMMAND)
                    .arg(path)
                    .arg(program)
                    .args(arguments);
                command
            }
        };
        if let Some(user) = user {
            command.gid(user.gid).uid(user.uid);
        }
        command.env_clear().envs(&start.env).current_dir(&start.cwd);
        Ok(command)
    }

    /// The supervisor's ends, in non-blocking mode.
    fn into_own_ends(self) -> io::Result<OwnEnds> {
        match self {
            Self::Pipes {
                stdin,
                stdout,
                stderr,
            } => Ok((
                Some(pipe::Sender::from_owned_fd(nonblocking(stdin.1)?)?),
                pipe::Receiver::from_owned_fd(nonblocking(stdout.0)?)?,
                Some(pipe::Receiver::from_owned_fd(nonblocking(stderr.0)?)?),
                None,
            )),
            Self::Terminal { master, .. } => {
                let master = nonblocking(master)?;
                let input = pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?;
                let output = pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?;
                Ok((Some(input), output, None, Some(master)))
            }
        }
    }
}

/// Why a program was not started, with advice if there is any.
fn spawn_error(program: &str, error: &io::Error) -> StartError {
    use rustix::io::Errno;
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ProcessFaultKind::NotFound,
        io::ErrorKind::PermissionDenied => ProcessFaultKind::Denied,
        _ if Errno::from_io_error(error) == Some(Errno::NOEXEC) => ProcessFaultKind::Denied,
        _ => ProcessFaultKind::Other,
    };
    let advice = match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => {
            "; the container has reached its limit of processes (`max_processes`): \
             `container_stop` ends them all"
        }
        Some(Errno::NOMEM) => {
            "; the container has no memory left (`memory_mb`): `container_stop` ends all processes"
        }
        Some(Errno::TOOBIG) => "; pass long arguments through `stdin` or a file",
        _ => "",
    };
    StartError {
        kind,
        message: format!("{program}: {error}{advice}"),
    }
}

fn nonblocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
    rustix::fs::fcntl_setfl(fd.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(fd)
}

fn winsize(size: TerminalSize) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
