//! Receives the work of a session from its workspace: a commit with the files as they are there now.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::super::reconnecting::ReconnectingClient;
use super::git::{Git, is_object_name, last_words, not_started};
use super::record::SentSession;
use super::remote::{self, Place};
use crate::failure::Failure;
use crate::terminal::ProgressLine;

const SCRIPT: &str = include_str!("receive.sh");
const PIPE_BYTES: usize = 4 << 20;
/// A container that sends more than this is not believed.
const MAX_PACK_BYTES: &str = "--max-input-size=8589934592";
/// How many of the repository's own commits the container is told of.
const MAX_KNOWN_COMMITS: &str = "--count=200";

/// The work of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// A commit with all files; its parent is `head` if some of them are not committed.
    pub(super) commit: String,
    /// The last commit of the agent.
    pub(super) head: Option<String>,
    pub(super) changed: Changed,
}

/// What differs from the files that were sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) files: u64,
    pub(super) added: u64,
    pub(super) removed: u64,
}

/// Where the objects of the work go.
pub(super) enum Into<'a> {
    /// Nowhere: only what has changed is asked for.
    Nowhere,
    Git(&'a Git),
}

pub(super) async fn receive(
    client: &ReconnectingClient<'_>,
    place: &Place,
    session: &SentSession,
    into: Into<'_>,
) -> Result<Work, Failure> {
    let message = format!(
        "Files of {id} that were not committed\n\nOubliette-Session: {id}",
        id = session.session_id
    );
    let (mode, known) = match into {
        Into::Nowhere => ("stat", String::new()),
        Into::Git(git) => ("pack", known_commits(git, session)?),
    };
    let argv = [
        "/bin/sh",
        "-c",
        SCRIPT,
        "sh",
        mode,
        &session.sent,
        &session.session_id,
        &message,
    ];
    let (remote_output, from_remote) = tokio::io::duplex(PIPE_BYTES);
    let running = remote::run(client, place, &argv, known.as_bytes(), remote_output);
    let receiving = take(from_remote, &into);
    let (finished, work) = tokio::join!(running, receiving);
    finished?.success("the work of the session could not be read")?;
    work
}

async fn take(from_remote: tokio::io::DuplexStream, into: &Into<'_>) -> Result<Work, Failure> {
    let lost = |error| Failure::with_cause("the connection to the container broke", &error);
    let mut reader = BufReader::new(from_remote);
    let mut work = Work::default();
    loop {
        let mut line = Vec::new();
        let limited = &mut (&mut reader).take(4096);
        let read = limited.read_until(b'\n', &mut line).await.map_err(lost)?;
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if read == 0 || line.is_empty() {
            break;
        }
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("work", name) if is_object_name(name) => name.clone_into(&mut work.commit),
            ("head", name) if is_object_name(name) => work.head = Some(name.to_owned()),
            ("stat", text) => work.changed = Changed::parse(text),
            _ => {}
        }
    }
    if let Into::Git(git) = into
        && !work.commit.is_empty()
    {
        index_pack(git, reader).await?;
        // What arrived must be what was announced.
        let name = format!("{}^{{commit}}", work.commit);
        if !git.succeeds(["cat-file", "-e", &name])? {
            return Err(Failure::new(
                "the container did not send the work of the session",
            ));
        }
    }
    if work.commit.is_empty() {
        return Err(Failure::new(
            "the container did not say what the session has made",
        ));
    }
    Ok(work)
}

/// Stores the objects, after checking them: the container is not trusted.
async fn index_pack(
    git: &Git,
    mut from: BufReader<tokio::io::DuplexStream>,
) -> Result<(), Failure> {
    let mut command: tokio::process::Command = git
        .command([
            "index-pack",
            "--stdin",
            "--fix-thin",
            "--strict",
            MAX_PACK_BYTES,
        ])
        .into();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| not_started(&error))?;
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let copy = async {
        let mut progress = ProgressLine::default();
        let (mut buffer, mut received) = (vec![0; 256 << 10], 0u64);
        let Some(mut stdin) = stdin else { return };
        while let Ok(read) = from.read(&mut buffer).await {
            if read == 0 || stdin.write_all(&buffer[..read]).await.is_err() {
                break;
            }
            received += read as u64;
            progress.show(&format!(
                "receiving the work: {:.1} MB",
                received as f64 / 1e6
            ));
        }
    };
    let complaints = async {
        let mut text = Vec::new();
        if let Some(mut stderr) = stderr {
            let _ = stderr.read_to_end(&mut text).await;
        }
        text
    };
    let ((), complaints) = tokio::join!(copy, complaints);
    let status = child.wait().await.map_err(|error| not_started(&error))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the work of the session was refused: {}",
        last_words(&complaints)
    )))
}

/// Commits that the container need not send, one per line: what HEAD was, and the newest branches.
fn known_commits(git: &Git, session: &SentSession) -> Result<String, Failure> {
    let mut known = git.text([
        "for-each-ref",
        "--sort=-committerdate",
        MAX_KNOWN_COMMITS,
        "--format=%(objectname)",
        "refs/heads",
        "refs/remotes",
    ])?;
    for name in [Some("HEAD"), session.head.as_deref()]
        .into_iter()
        .flatten()
    {
        let commit = git.run(["rev-parse", "-q", "--verify", &format!("{name}^{{commit}}")])?;
        if commit.status.success() {
            known.push('\n');
            known.push_str(String::from_utf8_lossy(&commit.stdout).trim());
        }
    }
    known.push('\n');
    Ok(known)
}

impl Changed {
    /// Reads ` 3 files changed, 10 insertions(+), 2 deletions(-)`.
    fn parse(text: &str) -> Self {
        let mut changed = Self::default();
        for part in text.split(',') {
            let mut words = part.split_whitespace();
            let count = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            match words.next() {
                Some(word) if word.starts_with("file") => changed.files = count,
                Some(word) if word.starts_with("insertion") => changed.added = count,
                Some(word) if word.starts_with("deletion") => changed.removed = count,
                _ => {}
            }
        }
        changed
    }

    pub(super) fn describe(self) -> String {
        match self.files {
            0 => "no files changed".to_owned(),
            1 => format!("1 file changed, +{} −{}", self.added, self.removed),
            files => format!("{files} files changed, +{} −{}", self.added, self.removed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_statistics_of_git_are_read() {
        let parsed = Changed::parse(" 3 files changed, 10 insertions(+), 1 deletion(-)");
        assert_eq!(parsed.describe(), "3 files changed, +10 −1");
        let parsed = Changed::parse(" 1 file changed, 2 deletions(-)");
        assert_eq!(parsed.describe(), "1 file changed, +0 −2");
        assert_eq!(Changed::parse("").describe(), "no files changed");
    }
}
