//! The sandboxes of one test, and the check that nothing is left.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oubliette_sandbox::{
    Bind, Init, Method, NetworkNamespace, ResourceLimits, RunningSandbox, Spec, launch, remove,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, WatchFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) use crate::modes::{Mode, in_modes};

pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// For events that take a fraction of a second on an idle machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn init_binary() -> PathBuf {
    let given = std::env::var_os("OUBLIETTE_TEST_INIT").map(PathBuf::from);
    given.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_sandbox-test-init")))
}

/// The directory of a test's sandboxes.
pub(crate) struct Host {
    pub(crate) mode: Mode,
    pub(crate) dir: TempDir,
}

impl Host {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A sandbox with a workspace, a directory for its socket, and no network.
    pub(crate) fn spec(&self, id: &str) -> Spec {
        let make = |name: &str| {
            let path = self.path(id).join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let method = match self.mode {
            Mode::Bwrap => Method::Bwrap {
                program: "/usr/bin/bwrap".into(),
            },
            Mode::Root | Mode::User => Method::Native,
        };
        Spec {
            id: id.to_owned(),
            state_dir: self.path(id).join("state"),
            layers_dir: self.path(id).join("layers"),
            binds: vec![
                writable(make("w"), "/workspace"),
                writable(make("m"), "/mcp"),
            ],
            protected: Vec::new(),
            hostname: "box".to_owned(),
            network: NetworkNamespace::Private,
            refused_ports: Vec::new(),
            limits: ResourceLimits::default(),
            users_of: None,
            nested: false,
            init: Init {
                binary: init_binary(),
                inside: "/usr/local/bin/test-init".into(),
                args: vec!["/mcp/c".to_owned()],
                env: vec![
                    (
                        "PATH".to_owned(),
                        "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".to_owned(),
                    ),
                    ("MARK".to_owned(), "inside".to_owned()),
                ],
            },
            method,
        }
    }

    pub(crate) fn launch(&self, spec: Spec) -> Sandbox {
        let running = launch(&spec, &init_binary()).unwrap_or_else(|error| {
            panic!("{error}: {:?}", std::error::Error::source(&error));
        });
        Sandbox { spec, running }
    }

    pub(crate) fn start(&self, id: &str) -> Sandbox {
        self.launch(self.spec(id))
    }

    /// Fails if a mount, process or cgroup of this test's sandboxes is left on the host.
    pub(crate) fn assert_nothing_left(&self) {
        let dir = self.dir.path().to_str().unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(dir), "mounts were left: {mounts}");
        if self.mode == Mode::Bwrap {
            // The monitor of bwrap exits by itself after PID 1 has.
            self.wait_for_ends();
        }
        let processes = self.processes();
        assert!(processes.is_empty(), "processes were left: {processes:?}");
        let groups = cgroups_of(dir);
        assert!(groups.is_empty(), "{groups:?} were left");
    }

    /// The running processes of this test's sandboxes.
    pub(crate) fn processes(&self) -> BTreeMap<i32, String> {
        let dir = self.dir.path();
        let mut found = BTreeMap::new();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let cwd = fs::read_link(process.path().join("cwd")).unwrap_or_default();
            let command = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            let is_launcher = command.contains("sandbox-launch");
            let is_sandbox = cwd.starts_with(dir) || command.contains("/mcp/c") || is_launcher;
            let pid = process.file_name();
            let number = pid.to_str().and_then(|pid| pid.parse().ok());
            if let Some(number) = number
                && is_sandbox
                && !self.belongs_to_another_test(&pid)
            {
                found.insert(number, command);
            }
        }
        found
    }

    /// Waits until every process of this test's sandboxes has exited by itself.
    pub(crate) fn wait_for_ends(&self) {
        loop {
            let running = self.processes();
            if running.is_empty() {
                return;
            }
            wait_for_ends(running.into_keys());
        }
    }

    /// Whether a process belongs to a sandbox of a test that runs at the same time.
    fn belongs_to_another_test(&self, pid: &std::ffi::OsStr) -> bool {
        let log = Path::new("/proc").join(pid).join("fd/2");
        let log = fs::read_link(log).unwrap_or_default();
        !log.starts_with(self.dir.path())
    }
}

/// The control groups of sandboxes whose state is below a directory. Their names end with a digest of
/// the path.
fn cgroups_of(dir: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut queue = vec![PathBuf::from("/sys/fs/cgroup")];
    let digests = digests(dir);
    while let Some(group) = queue.pop() {
        for entry in fs::read_dir(&group).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("oubliette-") && digests.iter().any(|digest| name.ends_with(digest))
            {
                found.push(entry.path());
            }
            queue.push(entry.path());
        }
    }
    found
}

/// The ends of the names of this test's groups: one digest per sandbox directory.
fn digests(dir: &str) -> Vec<String> {
    let children = fs::read_dir(dir).into_iter().flatten().flatten();
    children
        .map(|child| {
            let state = child.path().join("state");
            let hash = state
                .to_string_lossy()
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
                });
            format!("-{:08x}", hash as u32)
        })
        .collect()
}

pub(crate) fn writable(host: PathBuf, inside: &str) -> Bind {
    Bind {
        host,
        inside: inside.into(),
        read_only: false,
        owner: None,
    }
}

/// A running sandbox.
pub(crate) struct Sandbox {
    pub(crate) spec: Spec,
    pub(crate) running: RunningSandbox,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i64>,
    pub(crate) signal: Option<i64>,
    pub(crate) stdout: String,
    /// The error number if it did not start.
    pub(crate) refused: Option<i64>,
}

impl Sandbox {
    pub(crate) fn request(&self, request: &Value) -> Output {
        request_at(&self.socket(), request)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.spec.state_dir.parent().unwrap().join("m/c")
    }

    /// Runs a line of shell.
    pub(crate) fn sh(&self, line: &str) -> Output {
        self.request(&json!({ "argv": ["sh", "-c", line] }))
    }

    /// The output of a line of shell that must succeed, without the last line's end.
    pub(crate) fn read(&self, line: &str) -> String {
        let output = self.sh(line);
        assert_eq!(output.code, Some(0), "{line}: {output:?}");
        output.stdout.trim_end().to_owned()
    }

    /// Whether a line of shell succeeds.
    pub(crate) fn can(&self, line: &str) -> bool {
        self.sh(line).code == Some(0)
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.spec.state_dir.parent().unwrap().join("w")
    }

    pub(crate) fn stop(&self) {
        self.running.stop(STOP_TIMEOUT).unwrap();
    }

    pub(crate) fn remove(&self) {
        self.stop();
        remove(&self.spec.state_dir, &self.spec.layers_dir).unwrap();
        assert!(!self.spec.state_dir.exists());
        assert!(!self.spec.layers_dir.exists());
    }
}

/// A failed test leaves nothing running either.
impl Drop for Sandbox {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.running.stop(Duration::ZERO);
            let _ = remove(&self.spec.state_dir, &self.spec.layers_dir);
        }
    }
}

pub(crate) fn request_at(socket: &Path, request: &Value) -> Output {
    let mut stream = connect(socket);
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut json = String::new();
    stream.read_to_string(&mut json).unwrap();
    let reply: Value = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{json:?}"));
    Output {
        code: reply["code"].as_i64(),
        signal: reply["signal"].as_i64(),
        stdout: reply["stdout"].as_str().unwrap_or_default().to_owned(),
        refused: reply["refused"].as_i64(),
    }
}

fn connect(socket: &Path) -> UnixStream {
    let dir = socket.parent().unwrap();
    wait_for("the socket of PID 1", dir, || {
        UnixStream::connect(socket).ok()
    })
}

/// Calls `check` after every change in a directory until it returns a value.
pub(crate) fn wait_for<T>(what: &str, dir: &Path, check: impl Fn() -> Option<T>) -> T {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let changes = inotify::init(flags).unwrap();
    let events = WatchFlags::ATTRIB | WatchFlags::CREATE | WatchFlags::MODIFY;
    inotify::add_watch(&changes, dir, events).unwrap();
    let until = Instant::now() + WAIT_TIMEOUT;
    // After the watch was added, so that no change is missed.
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(is_ready(&changes, until), "timed out waiting for {what}");
        while rustix::io::read(&changes, &mut [0; 4096]).is_ok() {}
    }
}

/// Waits until processes have exited.
pub(crate) fn wait_for_ends(pids: impl IntoIterator<Item = i32>) {
    let until = Instant::now() + WAIT_TIMEOUT;
    for pid in pids {
        // A process that has been reaped cannot be opened.
        if let Ok(pidfd) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) {
            assert!(is_ready(&pidfd, until), "process {pid} does not end");
        }
    }
}

fn is_ready(fd: &impl AsFd, until: Instant) -> bool {
    let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}
