//! The suite itself, as `tests/install` installs it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::{clients, process};
use tokio::process::Command;

/// Far longer than a run takes.
const SUITE_TIMEOUT: Duration = Duration::from_secs(300);

pub(crate) struct Suite {
    directory: PathBuf,
}

impl Suite {
    pub(crate) fn installed() -> Self {
        let directory = clients::client("conformance");
        Self { directory }
    }

    /// Runs all that a revision requires of a server. The suite itself compares the outcome with
    /// what is expected to fail, and fails for a line that does not.
    pub(crate) async fn requirements(&self, server: SocketAddr, revision: &str, subject: &str) {
        let expected = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("conformance")
            .join(subject)
            .join(format!("{revision}.yaml"));
        // Kept after the run: every check with what was sent and received.
        let results = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("conformance")
            .join(format!("{subject}-{revision}"));
        let _ = std::fs::remove_dir_all(&results);
        let mut command = self.command(server);
        command.args(["--requirements", revision]);
        command.arg("--expected-failures").arg(expected);
        command.arg("--output-dir").arg(results);
        check(&mut command).await;
    }

    /// Runs a scenario that a revision has but does not require.
    pub(crate) async fn scenario(&self, server: SocketAddr, revision: &str, name: &str) {
        let mut command = self.command(server);
        command.args(["--spec-version", revision, "--scenario", name]);
        check(&mut command).await;
    }

    /// Runs a scenario of an extension, which is part of no revision.
    pub(crate) async fn extension(&self, server: SocketAddr, revision: &str, name: &str) {
        let mut command = self.command(server);
        command.args(["--spec-version", revision, "--scenario", name, "--force"]);
        check(&mut command).await;
    }

    fn command(&self, server: SocketAddr) -> Command {
        let modules = self.directory.join("node_modules");
        let mut command = Command::new(modules.join(".bin/node"));
        command
            .env_clear()
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .arg(modules.join("@modelcontextprotocol/conformance/dist/index.js"))
            .args(["server", "--url", &format!("http://{server}/mcp")]);
        command
    }
}

async fn check(command: &mut Command) {
    let ended = process::run(command, SUITE_TIMEOUT).await;
    let report = format!("{}{}", ended.stdout, ended.stderr);
    assert!(ended.status.success(), "{command:?}\n{report}");
    eprintln!("{report}");
}
