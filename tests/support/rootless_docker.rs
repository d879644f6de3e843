//! A Docker engine of an ordinary user, in a user namespace of its own. It makes no networks and no control groups.

use std::fs;
use std::io::Write;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::RunAs;
use crate::docker::request_at;

/// The ids of the machine that are the user's other ids in its containers.
const FIRST_OTHER_ID: u32 = 200_000;
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A running engine, which ends with this.
#[derive(Debug)]
pub struct RootlessDocker {
    directory: TempDir,
    process: Child,
}

impl RootlessDocker {
    /// Starts one as this user. The test must be root.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(user: RunAs) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path();
        chown(home, Some(user.uid), Some(user.gid)).unwrap();
        let log = fs::File::create(home.join("log")).unwrap();
        // The first line is sent when the ids are mapped. The engine has a `/run` of its own.
        let script = "read -r line && mount -t tmpfs none /run && exec dockerd --rootless \
                      --host \"unix://$HOME/docker.sock\" --data-root \"$HOME/data\" \
                      --exec-root \"$HOME/exec\" --pidfile \"$HOME/pid\" \
                      --storage-driver vfs --iptables=false --bridge=none";
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &user.uid.to_string()])
            .args(["--regid", &user.gid.to_string()])
            .args(["--clear-groups", "unshare", "--user", "--mount"])
            .args(["sh", "-c", script])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", home)
            .env("XDG_RUNTIME_DIR", home)
            .env("ROOTLESSKIT_STATE_DIR", home)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0);
        let process = command.spawn().unwrap();
        let mut engine = Self { directory, process };
        engine.map_ids(user);
        engine.wait_until_ready();
        engine
    }

    /// The address of the engine.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("docker.sock")
    }

    /// Root may map any ids of the new namespace, so that no tool and no entry in `/etc/subuid` is needed.
    fn map_ids(&mut self, user: RunAs) {
        let process = PathBuf::from(format!("/proc/{}", self.process.id()));
        let namespace = |process: &Path| fs::read_link(process.join("ns/user"));
        let own = namespace(Path::new("/proc/self")).unwrap();
        self.wait("there is no namespace", || {
            namespace(&process).is_ok_and(|found| found != own)
        });
        for (file, id) in [("uid_map", user.uid), ("gid_map", user.gid)] {
            let map = format!("0 {id} 1\n1 {FIRST_OTHER_ID} 65536\n");
            fs::write(process.join(file), map).unwrap();
        }
        let mut line = self.process.stdin.take().unwrap();
        line.write_all(b"mapped\n").unwrap();
    }

    fn wait_until_ready(&mut self) {
        let socket = self.socket();
        self.wait("the engine does not answer", || {
            request_at(&socket, "GET", "/info").is_some()
        });
    }

    fn wait(&mut self, what: &str, mut is_met: impl FnMut() -> bool) {
        let deadline = Instant::now() + scaled(START_TIMEOUT);
        while !is_met() {
            let ended = self.process.try_wait().unwrap();
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.path().join("log"));
                panic!("{what}: {}", log.unwrap_or_default());
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}

impl Drop for RootlessDocker {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.process);
        let _ = kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + scaled(STOP_TIMEOUT);
        while self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > deadline {
                let _ = kill_process_group(pid, Signal::KILL);
                break;
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        let _ = self.process.wait();
    }
}
