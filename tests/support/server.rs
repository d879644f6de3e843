//! A real server on a directory of its own and a free port.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{Modern, binary, cli};

/// A server that was asked to stop has ended within this time.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Of a longer log the older half is dropped.
const MAX_LOG_BYTES: usize = 32 << 20;

/// What one server process logged.
type Log = Arc<Mutex<String>>;

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// The text of `oubliette.toml`.
    pub config: String,
    /// Environment variables besides the usual ones.
    pub env: Vec<(String, String)>,
    /// The user whom the server runs as, if it is not that of the test, who must be root.
    pub run_as: Option<RunAs>,
    /// A command that executes the one in its further arguments, for example with limits.
    pub wrapper: Vec<String>,
}

/// A user of the machine.
#[derive(Debug, Clone, Copy)]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
    /// Another group of the user.
    pub group: u32,
}

/// A running server. Dropping it kills the process and removes the directory.
#[derive(Debug)]
pub struct Server {
    home: Arc<TempDir>,
    options: ServerOptions,
    child: Child,
    url: String,
    log: Log,
    /// The logs of the processes before this one.
    earlier_logs: Vec<Log>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(ServerOptions::default())
    }

    pub fn start_with(options: ServerOptions) -> Self {
        let home = Arc::new(tempfile::tempdir().unwrap());
        if !options.config.is_empty() {
            std::fs::write(home.path().join("oubliette.toml"), &options.config).unwrap();
        }
        if let Some(user) = options.run_as {
            std::os::unix::fs::chown(home.path(), Some(user.uid), Some(user.gid)).unwrap();
        }
        let (child, url, log) = spawn(binary(), home.path(), "127.0.0.1:0", &options);
        Self {
            home,
            options,
            child,
            url,
            log,
            earlier_logs: Vec::new(),
        }
    }

    /// The MCP endpoint.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address without a path.
    pub fn base(&self) -> &str {
        self.url.trim_end_matches("/mcp")
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything the server logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The logs of all processes of this server, in the order of their starts.
    pub fn all_logs(&self) -> Vec<String> {
        let logs = self.earlier_logs.iter().chain([&self.log]);
        logs.map(|log| log.lock().unwrap().clone()).collect()
    }

    pub fn admin_key(&self) -> String {
        std::fs::read_to_string(self.home().join("admin.token"))
            .unwrap()
            .trim()
            .to_owned()
    }

    /// A client with the admin key.
    pub fn admin(&self) -> Modern {
        Modern::new(&self.url, &self.admin_key())
    }

    pub fn with_key(&self, key: &str) -> Modern {
        Modern::new(&self.url, key)
    }

    /// Where a project's default workspace is.
    pub fn workspace(&self, project_id: &str) -> PathBuf {
        self.home()
            .join("projects")
            .join(project_id)
            .join("workspace")
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and waits for the end; the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for a server that was asked to stop; the exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + scaled(STOP_TIMEOUT);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the server does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How the server ended, if it did so by itself.
    pub fn has_exited(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Starts the server again on the same directory and, so that clients find it, the same port.
    pub fn start_again(&mut self) {
        self.start_again_as(binary());
    }

    /// Starts the server again with another path of the product's binary.
    pub fn start_again_as(&mut self, program: &Path) {
        let address = self.base().trim_start_matches("http://").to_owned();
        let (child, url, log) = spawn(program, self.home.path(), &address, &self.options);
        self.earlier_logs
            .push(std::mem::replace(&mut self.log, log));
        (self.child, self.url) = (child, url);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Containers outlive their server, as they should, but not their test.
        if ["run/c", "run/probe/probe"]
            .iter()
            .any(|name| self.home().join(name).exists())
        {
            let down = cli(self.home(), ["down", "--remove", "--yes"]);
            if !down.status.success() && !std::thread::panicking() {
                panic!("down failed: {}", String::from_utf8_lossy(&down.stderr));
            }
        }
        if self.options.run_as.is_some() {
            let name = format!("oubliette-test-binary-{}", std::process::id());
            let _ = std::fs::remove_file(std::env::temp_dir().join(name));
        }
        if std::thread::panicking() {
            eprintln!("log of the server:\n{}", self.log());
        }
    }
}

/// A command that runs a copy of a program as another user, whom its own directory may not let in.
fn as_user(program: &Path, user: RunAs) -> Command {
    let copy = std::env::temp_dir().join(format!("oubliette-test-binary-{}", std::process::id()));
    if !copy.exists() {
        std::fs::copy(program, &copy).unwrap();
    }
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={}", user.uid))
        .arg(format!("--regid={}", user.gid))
        .arg(format!("--groups={}", user.group))
        .arg(copy);
    command
}

fn spawn(
    program: &Path,
    home: &Path,
    listen: &str,
    options: &ServerOptions,
) -> (Child, String, Log) {
    let mut command = match options.run_as {
        Some(user) => as_user(program, user),
        None => match options.wrapper.split_first() {
            Some((wrapper, arguments)) => {
                let mut command = Command::new(wrapper);
                command.args(arguments).arg(program);
                command
            }
            None => Command::new(program),
        },
    };
    let mut child = command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .envs(options.env.iter().map(|(name, value)| (name, value)))
        .arg("--data-dir")
        .arg(home)
        .args(["serve", "--log", "json", "--listen", listen])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = Log::default();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let lines = log.clone();
    std::thread::spawn(move || {
        let mut line = String::new();
        while stderr.read_line(&mut line).is_ok_and(|read| read > 0) {
            append_line(&mut lines.lock().unwrap(), &std::mem::take(&mut line));
        }
    });
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let Some((_, url)) = line.trim().split_once(" is ready: ") else {
        let _ = child.wait();
        panic!(
            "the server did not start: {line:?}\n{}",
            log.lock().unwrap()
        );
    };
    // Further output must not fill the pipe.
    std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    (child, url.to_owned(), log)
}

fn append_line(log: &mut String, line: &str) {
    if log.len() + line.len() > MAX_LOG_BYTES {
        let middle = log.floor_char_boundary(log.len() / 2);
        let end = log[middle..]
            .find('\n')
            .map_or(log.len(), |at| middle + at + 1);
        log.drain(..end);
    }
    log.push_str(line);
}
