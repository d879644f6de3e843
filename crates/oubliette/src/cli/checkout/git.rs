//! Runs git in the user's repository. Nothing here changes its index, its files or its references, except
//! where a caller says so.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::failure::Failure;

/// What would make git work somewhere else than where the command says, for example in a hook.
const REMOVED_VARIABLES: [&str; 9] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_EXTERNAL_DIFF",
];

/// Files of the working tree may be those of an agent: none of them is run as a hook or as a monitor of the file
/// system, and none of its directories is taken for a repository.
const SETTINGS: [&str; 6] = [
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "safe.bareRepository=explicit",
];

/// Git with a directory and an environment.
#[derive(Debug, Clone)]
pub(super) struct Git {
    directory: PathBuf,
    variables: Vec<(&'static str, OsString)>,
}

impl Git {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            variables: Vec::new(),
        }
    }

    pub(super) fn with_variable(&self, name: &'static str, value: impl Into<OsString>) -> Self {
        let mut git = self.clone();
        git.variables.push((name, value.into()));
        git
    }

    pub(super) fn command<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new("git");
        for name in REMOVED_VARIABLES {
            command.env_remove(name);
        }
        command
            .current_dir(&self.directory)
            // The index of the user is not refreshed, and messages are those that this program knows.
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .args(SETTINGS)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end, whatever its exit code.
    pub(super) fn run<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Output, Failure> {
        self.command(arguments)
            .output()
            .map_err(|error| not_started(&error))
    }

    /// The output of a command that must succeed.
    pub(super) fn output<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Vec<u8>, Failure> {
        let output = self.run(arguments)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(Failure::new(last_lines(&output.stderr)))
    }

    /// The output as text, without the newline at its end.
    pub(super) fn text<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<String, Failure> {
        let mut text = String::from_utf8_lossy(&self.output(arguments)?).into_owned();
        if text.ends_with('\n') {
            text.pop();
        }
        Ok(text)
    }

    /// The output as a path, without the newline at its end.
    pub(super) fn path<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<PathBuf, Failure> {
        use std::os::unix::ffi::OsStringExt;
        let mut bytes = self.output(arguments)?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        Ok(self.directory.join(OsString::from_vec(bytes)))
    }

    pub(super) fn succeeds<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<bool, Failure> {
        Ok(self.run(arguments)?.status.success())
    }

    /// The output of a command that reads `input`.
    pub(super) fn filter<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
        input: Vec<u8>,
    ) -> Result<Vec<u8>, Failure> {
        let mut command = self.command(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| not_started(&error))?;
        let stdin = child.stdin.take();
        // A thread: git may write much before it has read everything.
        let writer = std::thread::spawn(move || {
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(&input);
            }
        });
        let output = child.wait_with_output();
        let _ = writer.join();
        let output = output.map_err(|error| not_started(&error))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(Failure::new(last_lines(&output.stderr)))
    }
}

pub(super) fn not_started(error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            "git is not installed on this machine, or the directory is gone; install git, or use --empty",
        ),
        _ => Failure::with_cause("cannot run git", error),
    }
}

/// The last lines that git wrote, in one.
pub(super) fn last_lines(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    match lines.as_slice() {
        [] => "git failed and gave no reason".to_owned(),
        lines => format!("git: {}", lines[lines.len().saturating_sub(3)..].join("; ")),
    }
}

/// Whether a text is the name of an object, as git prints it.
pub(super) fn is_object_name(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a name means the directory of a repository to git on some file system.
pub(super) fn is_git_directory(name: &OsStr) -> bool {
    // File systems may ignore case, some characters, and dots and spaces at the end.
    let is_ignored = |c: char| matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let name: String = name
        .to_string_lossy()
        .chars()
        .filter(|c| !is_ignored(*c))
        .collect();
    let name = name.trim_end_matches(['.', ' ']).to_ascii_lowercase();
    name == ".git" || name == "git~1"
}
