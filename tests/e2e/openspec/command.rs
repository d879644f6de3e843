//! The real `openspec` command.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use support::{clients, process};
use tokio::process::Command;

const LIMIT: Duration = Duration::from_secs(180);

/// Where it is installed, with a home directory that has nothing in it.
pub(crate) struct OpenSpec {
    place: PathBuf,
    home: tempfile::TempDir,
}

impl OpenSpec {
    pub(crate) fn find() -> Self {
        let place = clients::client("openspec");
        let home = tempfile::tempdir().unwrap();
        Self { place, home }
    }

    fn node(&self) -> Command {
        let mut command = Command::new(self.place.join("node_modules/.bin/node"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("OPENSPEC_TELEMETRY", "0")
            .env("TZ", "UTC");
        command
    }

    /// What it says about many directories, each with some of its changes, in one process.
    pub(crate) async fn ask(&self, directories: &[(PathBuf, Vec<String>)]) -> Vec<Value> {
        let questions: Vec<Value> = directories
            .iter()
            .map(|(directory, changes)| json!({ "directory": directory, "changes": changes }))
            .collect();
        let (asked, answered) = (
            self.home.path().join("questions.json"),
            self.home.path().join("answers.json"),
        );
        std::fs::write(&asked, serde_json::to_vec(&questions).unwrap()).unwrap();
        let code = std::fs::read_to_string(clients::source("typescript/openspec.mjs")).unwrap();
        let mut command = self.node();
        command
            .current_dir(&self.place)
            .args(["--input-type=module", "--eval", &code, "--"])
            .args([&asked, &answered]);
        let ended = process::run(&mut command, LIMIT).await;
        assert!(ended.status.success(), "{}", ended.stderr);
        let answers: Vec<Value> =
            serde_json::from_slice(&std::fs::read(answered).unwrap()).unwrap();
        assert_eq!(answers.len(), directories.len());
        answers
    }

    /// What the command itself prints, started as people start it.
    pub(crate) async fn run(&self, directory: &Path, arguments: &[&str]) -> Value {
        let program = self
            .place
            .join("node_modules/@fission-ai/openspec/bin/openspec.js");
        let mut command = self.node();
        command.current_dir(directory).arg(program).args(arguments);
        let ended = process::run(&mut command, LIMIT).await;
        serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: {} {}", ended.stdout, ended.stderr))
    }
}
