//! The user's checkout: a copy of it goes to an agent, and the agent's work comes back.

mod bad_input;
mod conflicts;
mod full_disk;
mod git_server;
mod hostile;
mod identity;
mod killed;
mod large;
mod mount;
mod push;
mod remote;
mod round_trip;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{Server, ServerOptions, binary, stderr, stdout};
use tempfile::TempDir;

fn sandbox() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

/// A repository of a user, and a server.
struct User {
    server: Server,
    directory: TempDir,
}

impl User {
    /// A user with a repository that has one commit with the file `a`.
    fn new() -> Self {
        Self::with(sandbox())
    }

    fn with(server: Server) -> Self {
        let user = Self {
            server,
            directory: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(user.root()).unwrap();
        user.git(["init", "-q", "-b", "trunk"]);
        user.write("a", "1\n2\n3\n4\n5\n6\n7\n8\n");
        user.git(["add", "-A"]);
        user.git(["commit", "-q", "-m", "first"]);
        user
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("app")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root().join(path)).unwrap()
    }

    /// Runs git as the user does; its output.
    fn git<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        git(&self.root(), arguments)
    }

    /// Runs the command line in the repository.
    async fn cli(&self, arguments: &[&str]) -> Output {
        self.cli_in(&self.root(), arguments).await
    }

    async fn cli_in(&self, directory: &Path, arguments: &[&str]) -> Output {
        let mut command = tokio::process::Command::from(self.command(directory));
        command.args(arguments).kill_on_drop(true);
        command.output().await.unwrap()
    }

    fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.directory.path())
            .env("OUBLIETTE_HOME", self.server.home())
            // The test starts and kills servers itself.
            .env(support::NO_AUTOSTART.0, support::NO_AUTOSTART.1)
            .stdin(std::process::Stdio::null())
            .current_dir(directory);
        command
    }

    /// Runs a command line that must succeed; its output.
    async fn ok(&self, arguments: &[&str]) -> String {
        let output = self.cli(arguments).await;
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        stdout(&output)
    }

    /// What must not change in a repository: its index, its references and its status.
    fn state(&self) -> (String, String, String) {
        (
            self.git(["ls-files", "--stage", "--debug"]),
            self.git(["for-each-ref"]),
            self.git(["status", "--porcelain=v2", "--branch"]),
        )
    }

    /// How many objects the repository has.
    fn objects(&self) -> String {
        self.git(["count-objects", "-v"])
    }
}

fn git<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> String {
    let output = git_in(directory, arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Runs git to its end, also if it fails.
fn git_in<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> Output {
    Command::new("git")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_AUTHOR_NAME", "Ada")
        .env("GIT_AUTHOR_EMAIL", "ada@example.com")
        .env("GIT_COMMITTER_NAME", "Ada")
        .env("GIT_COMMITTER_EMAIL", "ada@example.com")
        .env("GIT_ALLOW_PROTOCOL", "file")
        .current_dir(directory)
        .args(arguments)
        .output()
        .unwrap()
}
