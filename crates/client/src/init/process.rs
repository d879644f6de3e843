//! One process: how it is started, its input, its output, its end.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;

use oubliette_wire::{Ended, Exited, FaultKind, ProcessReport, Size, Start};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use super::brand::Brand;
use super::spool::Spool;
use crate::stage;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: String,
    pub(super) pid: u32,
    pub(super) brand: Brand,
    pub(super) stdout: Spool,
    pub(super) stderr: Spool,
    pub(super) stdin: Stdin,
    terminal: Option<OwnedFd>,
    ended: Cell<Option<Ended>>,
    has_ended: Cell<bool>,
    told: Notify,
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
pub(super) struct StartFault {
    pub(super) kind: FaultKind,
    pub(super) why: String,
}

impl Process {
    /// Starts a process; its output is read from now on.
    pub(super) fn start(
        start: &Start,
        spools: &Path,
        brand: Brand,
    ) -> Result<Rc<Self>, StartFault> {
        let other = |what: &str, error: io::Error| StartFault {
            kind: FaultKind::Other,
            why: format!("{what}: {error}"),
        };
        if !Path::new(&start.cwd).is_dir() {
            return Err(StartFault {
                kind: FaultKind::Other,
                why: format!("there is no directory {}", start.cwd),
            });
        }
        let spool = || {
            Spool::new(spools, start.spool_limit)
                .map_err(|error| other("cannot keep output", error))
        };
        let (stdout, stderr) = (spool()?, spool()?);
        let ends = match start.pty {
            Some(size) => Ends::terminal(size),
            None => Ends::pipes(),
        };
        let ends = ends.map_err(|error| other("cannot make pipes", error))?;
        let pid = brand
            .mark(|| ends.spawn(start))
            .map_err(|error| other("cannot mark what is started", error))??;
        let (input, output, errors, terminal) = ends
            .keep()
            .map_err(|error| other("cannot read output", error))?;
        let process = Rc::new(Self {
            id: start.process_id.clone(),
            pid,
            brand,
            stdout,
            stderr,
            stdin: Stdin {
                pipe: RefCell::new(input.map(Rc::new)),
                ..Stdin::default()
            },
            terminal,
            ended: Cell::new(None),
            has_ended: Cell::new(false),
            told: Notify::new(),
        });
        process.clone().follow(output, errors);
        Ok(process)
    }

    fn follow(self: Rc<Self>, output: pipe::Receiver, errors: Option<pipe::Receiver>) {
        let other = self.clone();
        tokio::task::spawn_local(async move {
            other
                .stdout
                .fill(output, &other.told, &other.has_ended)
                .await;
        });
        tokio::task::spawn_local(async move {
            match errors {
                Some(errors) => self.stderr.fill(errors, &self.told, &self.has_ended).await,
                None => self.stderr.close(),
            }
        });
    }

    /// The reaper has found it.
    pub(super) fn end(&self, ended: Ended) {
        self.ended.set(Some(ended));
        self.has_ended.set(true);
        self.told.notify_waiters();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// How it ended, once all it wrote until then is here.
    pub(super) fn exited(&self) -> Option<Exited> {
        let ended = self.ended.get()?;
        let complete = self.stdout.is_drained() && self.stderr.is_drained();
        complete.then(|| Exited {
            process_id: self.id.clone(),
            ended,
            stdout_end: self.stdout.held().end,
            stderr_end: self.stderr.held().end,
        })
    }

    /// Whether it has ended and some of its output is still in the pipe.
    pub(super) fn is_draining(&self) -> bool {
        self.has_ended.get() && self.exited().is_none()
    }

    /// Returns when all that it wrote before its end is here.
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
            stdout: self.stdout.held(),
            stderr: self.stderr.held(),
            stdin_received: self.stdin.received.get(),
            exited: self.exited(),
        }
    }

    pub(super) fn resize(&self, size: Size) -> io::Result<()> {
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

    /// Writes what came at `offset`; what is there already is skipped. False if bytes before it are
    /// missing.
    pub(super) async fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        loop {
            // Looked at anew each time: another connection may bring the same bytes.
            let Some(done) = self.received.get().checked_sub(offset) else {
                return false;
            };
            let rest = usize::try_from(done)
                .ok()
                .and_then(|done| bytes.get(done..));
            let rest = rest.unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let Some(pipe) = self.pipe.borrow().clone() else {
                // Nobody reads any more; the bytes count as taken.
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

    /// No more comes after `offset`.
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

/// Both ends of what connects a process to us.
enum Ends {
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
type Kept = (
    Option<pipe::Sender>,
    Reader,
    Option<Reader>,
    Option<OwnedFd>,
);

impl Ends {
    fn pipes() -> io::Result<Self> {
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        Ok(Self::Pipes {
            stdin: pipe()?,
            stdout: pipe()?,
            stderr: pipe()?,
        })
    }

    fn terminal(size: Size) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&master)?;
        rustix::pty::unlockpt(&master)?;
        rustix::termios::tcsetwinsize(&master, winsize(size))?;
        let path = rustix::pty::ptsname(&master, Vec::new())?;
        let path = std::os::unix::ffi::OsStringExt::from_vec(path.into_bytes());
        Ok(Self::Terminal { master, path })
    }

    fn spawn(&self, start: &Start) -> Result<u32, StartFault> {
        let [program, arguments @ ..] = start.argv.as_slice() else {
            return Err(StartFault {
                kind: FaultKind::Other,
                why: "no command was given".into(),
            });
        };
        let fault = |error: io::Error| start_fault(program, &error);
        let mut command = match self {
            Self::Pipes {
                stdin,
                stdout,
                stderr,
            } => {
                let given = |end: &OwnedFd| end.try_clone().map(Stdio::from);
                let mut command = Command::new(program);
                command
                    .args(arguments)
                    .stdin(given(&stdin.0).map_err(fault)?)
                    .stdout(given(&stdout.1).map_err(fault)?)
                    .stderr(given(&stderr.1).map_err(fault)?)
                    .process_group(0);
                command
            }
            Self::Terminal { path, .. } => {
                let mut command = Command::new("/proc/self/exe");
                command
                    // The file may be the server's own, which goes by its name.
                    .arg0("oubliette-client")
                    .arg(stage::ROLE)
                    .arg(path)
                    .arg(program)
                    .args(arguments);
                command
            }
        };
        if let Some(user) = start.user {
            command.gid(user.gid).uid(user.uid);
        }
        command.env_clear().envs(&start.env).current_dir(&start.cwd);
        // Not waited for here: the one reaper finds it by its pid.
        command.spawn().map(|child| child.id()).map_err(fault)
    }

    /// Our ends, ready to be waited on.
    fn keep(self) -> io::Result<Kept> {
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

/// Why a program was not started, and what to do about it where something can be done.
fn start_fault(program: &str, error: &io::Error) -> StartFault {
    use rustix::io::Errno;
    let kind = match error.kind() {
        io::ErrorKind::NotFound => FaultKind::NotFound,
        io::ErrorKind::PermissionDenied => FaultKind::Denied,
        _ if Errno::from_io_error(error) == Some(Errno::NOEXEC) => FaultKind::Denied,
        _ => FaultKind::Other,
    };
    let advice = match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => {
            "; the container has as many processes as it may (`max_processes`): \
             `container_stop` ends them all"
        }
        Some(Errno::NOMEM) => {
            "; the container has no memory left (`memory_mb`): `container_stop` ends all that runs"
        }
        Some(Errno::TOOBIG) => "; give what is so long through `stdin` or a file",
        _ => "",
    };
    StartFault {
        kind,
        why: format!("{program}: {error}{advice}"),
    }
}

fn nonblocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
    rustix::fs::fcntl_setfl(fd.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(fd)
}

fn winsize(size: Size) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
