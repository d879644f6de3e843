//! Starting a process: fork, a few system calls that need no memory, execute. The step that failed
//! comes back with its error, so that "not found" and "not allowed" can be told apart.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

use rustix::pipe::{PipeFlags, pipe_with};

use super::child;

/// What is searched for a program without a slash when the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A process to start.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// The program and its arguments. A name without a slash is searched in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    /// Whom it runs as; the caller's ids if none.
    pub user: Option<User>,
    /// A terminal instead of pipes; always leads a session then.
    pub pty: Option<TerminalSize>,
    /// Leads a session of its own; otherwise only a process group.
    pub session_leader: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// A started process. Its exit comes from the reaper.
#[derive(Debug)]
pub struct Spawned {
    pub pid: i32,
    pub streams: Streams,
}

#[derive(Debug)]
pub enum Streams {
    Pipes {
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// The controlling side of the terminal.
    Terminal(OwnedFd),
}

#[derive(Debug, thiserror::Error)]
#[error("process could not be started: {step:?}")]
pub struct SpawnError {
    pub step: SpawnStep,
    #[source]
    pub source: io::Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnStep {
    /// An argument or a name that cannot be passed on.
    Prepare,
    Terminal,
    Fork,
    Session,
    Streams,
    User,
    WorkingDirectory,
    Execute,
}

impl SpawnStep {
    const ALL: [Self; 8] = [
        Self::Prepare,
        Self::Terminal,
        Self::Fork,
        Self::Session,
        Self::Streams,
        Self::User,
        Self::WorkingDirectory,
        Self::Execute,
    ];

    fn failed(self, source: impl Into<io::Error>) -> SpawnError {
        SpawnError {
            step: self,
            source: source.into(),
        }
    }
}

/// Starts a process and returns once it executes its program.
pub fn spawn(spec: &ProcessSpec) -> Result<Spawned, SpawnError> {
    let plan = Plan::of(spec).map_err(|error| SpawnStep::Prepare.failed(error))?;
    let (ours, theirs) = streams(spec)?;
    let (mut reports, report_to) = pipe().map_err(|error| SpawnStep::Fork.failed(error))?;
    let child_fds = theirs.descriptors();

    // A handler of ours that ran in the child would write to pipes of ours.
    let mask = block_signals();
    // SAFETY: until it executes or exits, the child makes only system calls on memory that was
    // laid out before.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: this is the forked child.
        unsafe { child::become_process(&plan, child_fds, report_to.as_raw_fd()) }
    }
    let fork_error = io::Error::last_os_error();
    restore_signals(&mask);
    if pid < 0 {
        return Err(SpawnStep::Fork.failed(fork_error));
    }
    drop(theirs);
    drop(report_to);

    let mut report = [0_u8; 5];
    match reports.read_exact(&mut report) {
        // Closed by the execution.
        Err(_) => Ok(Spawned { pid, streams: ours }),
        Ok(()) => {
            // The reaper may have been faster.
            // SAFETY: a null status is allowed.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            let [step, errno @ ..] = report;
            let step = SpawnStep::ALL.get(usize::from(step)).copied();
            let source = io::Error::from_raw_os_error(i32::from_le_bytes(errno));
            Err(step.unwrap_or(SpawnStep::Execute).failed(source))
        }
    }
}

/// Everything the child needs, in memory that it only reads.
pub(super) struct Plan {
    pub(super) programs: Vec<CString>,
    pub(super) argv: Vec<*const libc::c_char>,
    pub(super) env: Vec<*const libc::c_char>,
    pub(super) cwd: CString,
    pub(super) user: Option<User>,
    pub(super) terminal: bool,
    pub(super) session_leader: bool,
    /// Owns what the pointers lead to.
    _strings: Vec<CString>,
}

impl Plan {
    fn of(spec: &ProcessSpec) -> io::Result<Self> {
        let name = spec.argv.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut strings = Vec::new();
        let mut pointers = |texts: Vec<String>| -> io::Result<Vec<*const libc::c_char>> {
            let mut all = Vec::new();
            for text in texts {
                let string = CString::new(text)?;
                all.push(string.as_ptr());
                strings.push(string);
            }
            all.push(std::ptr::null());
            Ok(all)
        };
        let argv = pointers(spec.argv.clone())?;
        let env = pointers(
            spec.env
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect(),
        )?;
        let cwd = CString::new(spec.cwd.to_string_lossy().as_bytes())?;
        Ok(Self {
            programs: candidates(name, &spec.env)?,
            argv,
            env,
            cwd,
            user: spec.user.clone(),
            terminal: spec.pty.is_some(),
            session_leader: spec.session_leader || spec.pty.is_some(),
            _strings: strings,
        })
    }
}

fn candidates(name: &str, env: &[(String, String)]) -> io::Result<Vec<CString>> {
    if name.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if name.contains('/') {
        return Ok(vec![CString::new(name)?]);
    }
    let path = env.iter().find(|(key, _)| key == "PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, value)| value);
    path.split(':')
        .filter(|dir| !dir.is_empty())
        .map(|dir| Ok(CString::new(format!("{dir}/{name}"))?))
        .collect()
}

/// The child's side of its streams.
enum Theirs {
    Pipes([OwnedFd; 3]),
    Terminal(OwnedFd),
}

impl Theirs {
    fn descriptors(&self) -> [RawFd; 3] {
        match self {
            Self::Pipes(pipes) => [
                pipes[0].as_raw_fd(),
                pipes[1].as_raw_fd(),
                pipes[2].as_raw_fd(),
            ],
            Self::Terminal(terminal) => [terminal.as_raw_fd(); 3],
        }
    }
}

fn streams(spec: &ProcessSpec) -> Result<(Streams, Theirs), SpawnError> {
    if let Some(size) = spec.pty {
        return terminal(size).map_err(|error| SpawnStep::Terminal.failed(error));
    }
    let pipes = || -> io::Result<_> {
        let (stdin_read, stdin) = pipe()?;
        let (stdout, stdout_write) = pipe()?;
        let (stderr, stderr_write) = pipe()?;
        let ours = Streams::Pipes {
            stdin,
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        Ok((
            ours,
            Theirs::Pipes([stdin_read.into(), stdout_write, stderr_write]),
        ))
    };
    pipes().map_err(|error| SpawnStep::Streams.failed(error))
}

fn terminal(size: TerminalSize) -> io::Result<(Streams, Theirs)> {
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let control = above_standard(openpt(flags)?)?;
    unlockpt(&control)?;
    let peer = above_standard(ioctl_tiocgptpeer(&control, flags)?)?;
    let size = rustix::termios::Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&control, size)?;
    Ok((Streams::Terminal(control), Theirs::Terminal(peer)))
}

fn pipe() -> io::Result<(File, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((above_standard(read)?.into(), above_standard(write)?))
}

/// Out of the way of the child's standard streams, should this process have closed its own.
fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, 3)?)
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are initialised by the calls before they are read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: the set came from `block_signals`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

impl Spawned {
    /// The descriptor to write input to.
    pub fn input(&self) -> BorrowedFd<'_> {
        match &self.streams {
            Streams::Pipes { stdin, .. } => stdin.as_fd(),
            Streams::Terminal(control) => control.as_fd(),
        }
    }
}
