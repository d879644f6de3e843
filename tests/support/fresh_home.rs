//! A data directory without a server, where commands start one in the background.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::{binary, cli};

/// Dropping it stops the server and all containers, also when the test fails.
#[derive(Debug)]
pub struct FreshHome {
    directory: TempDir,
}

impl Default for FreshHome {
    fn default() -> Self {
        Self::new()
    }
}

impl FreshHome {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The variables of a command that may start a server, on any free port.
    pub fn variables(&self) -> Vec<(String, String)> {
        let home = self.path().display().to_string();
        [
            ("PATH", std::env::var("PATH").unwrap_or_default()),
            ("HOME", home.clone()),
            ("OUBLIETTE_HOME", home),
            ("OUBLIETTE_SERVER__LISTEN", "127.0.0.1:0".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// A command line that may start a server.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .envs(self.variables())
            .current_dir(self.path())
            .args(arguments);
        command
    }

    /// Runs a command line that may start a server.
    pub async fn run(&self, arguments: &[&str]) -> Output {
        run(self.command(arguments)).await
    }

    /// What the running server wrote about itself.
    pub fn server(&self) -> Option<Value> {
        let text = std::fs::read(self.path().join("run/server.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub fn server_pid(&self) -> Option<u32> {
        self.server()?["pid"].as_u64()?.try_into().ok()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn log_file(&self) -> PathBuf {
        self.path().join("server.log")
    }
}

/// Runs a command without blocking the test's other tasks.
pub async fn run(mut command: Command) -> Output {
    let running = tokio::task::spawn_blocking(move || command.output());
    running.await.unwrap().unwrap()
}

impl Drop for FreshHome {
    fn drop(&mut self) {
        let down = cli(self.path(), ["down", "--remove", "--yes"]);
        if std::thread::panicking() {
            eprintln!("log of the server:\n{}", self.log());
        } else if !down.status.success() {
            panic!("down failed: {}", String::from_utf8_lossy(&down.stderr));
        }
    }
}
