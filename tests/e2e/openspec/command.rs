//! Runs the real `openspec` command.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use support::{clients, process};
use tokio::process::Command;

const COMMAND_TIMEOUT: Duration = Duration::from_secs(180);

/// An installed command with an empty home directory.
pub(crate) struct OpenSpec {
    install_dir: PathBuf,
    home: tempfile::TempDir,
}

impl OpenSpec {
    pub(crate) fn find() -> Self {
        let install_dir = clients::client("openspec");
        let home = tempfile::tempdir().unwrap();
        Self { install_dir, home }
    }

    fn node(&self) -> Command {
        let mut command = Command::new(self.install_dir.join("node_modules/.bin/node"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("OPENSPEC_TELEMETRY", "0")
            .env("TZ", "UTC");
        command
    }

    /// Inspects many directories, each with some of its changes, in one process.
    pub(crate) async fn inspect(&self, directories: &[(PathBuf, Vec<String>)]) -> Vec<Value> {
        let requests: Vec<Value> = directories
            .iter()
            .map(|(directory, changes)| json!({ "directory": directory, "changes": changes }))
            .collect();
        let (request_file, response_file) = (
            self.home.path().join("requests.json"),
            self.home.path().join("responses.json"),
        );
        std::fs::write(&request_file, serde_json::to_vec(&requests).unwrap()).unwrap();
        let code = std::fs::read_to_string(clients::source("typescript/openspec.mjs")).unwrap();
        let mut command = self.node();
        command
            .current_dir(&self.install_dir)
            .args(["--input-type=module", "--eval", &code, "--"])
            .args([&request_file, &response_file]);
        let ended = process::run(&mut command, COMMAND_TIMEOUT).await;
        assert!(ended.status.success(), "{}", ended.stderr);
        let responses: Vec<Value> =
            serde_json::from_slice(&std::fs::read(response_file).unwrap()).unwrap();
        assert_eq!(responses.len(), directories.len());
        responses
    }

    /// Runs the command line and returns its output.
    pub(crate) async fn run(&self, directory: &Path, arguments: &[&str]) -> Value {
        let program = self
            .install_dir
            .join("node_modules/@fission-ai/openspec/bin/openspec.js");
        let mut command = self.node();
        command.current_dir(directory).arg(program).args(arguments);
        let ended = process::run(&mut command, COMMAND_TIMEOUT).await;
        serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: {} {}", ended.stdout, ended.stderr))
    }
}
