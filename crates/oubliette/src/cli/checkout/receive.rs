//! Receives the work of a session from its workspace: a commit with the files as they are there now.

mod check;

use std::io::Write;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::super::reconnecting::ReconnectingClient;
use super::git::{Git, is_object_name, last_lines, not_started};
use super::record::SentSession;
use super::remote::{self, Place};
use crate::failure::Failure;
use crate::terminal::ProgressLine;

const SCRIPT: &str = include_str!("receive.sh");
const PIPE_BYTES: usize = 4 << 20;
/// A container that sends more than this is not believed.
const MAX_PACK_BYTES: &str = "--max-input-size=8589934592";
const MAX_LINE_BYTES: u64 = 4096;
const MAX_LINES: usize = 100;

/// The work of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// A commit with all files: the last one of the agent, or a child of it with what is not committed.
    pub(super) commit: String,
    /// The name of the pack that arrived.
    pub(super) pack: String,
}

/// Receives the work into the object directory of `git`, which must be a quarantine: what is refused stays there.
pub(super) async fn receive(
    client: &ReconnectingClient<'_>,
    place: &Place,
    session: &SentSession,
    git: &Git,
) -> Result<Work, Failure> {
    let message = format!(
        "Files of {id} that were not committed\n\nOubliette-Session: {id}",
        id = session.session_id
    );
    let head = sent_head(git, session)?;
    let known = format!("{}\n", head.unwrap_or_default());
    let argv = [
        "/bin/sh",
        "-c",
        SCRIPT,
        "sh",
        &session.sent,
        &session.session_id,
        &message,
    ];
    let (remote_output, from_remote) = tokio::io::duplex(PIPE_BYTES);
    let running = remote::run(client, place, &argv, known.as_bytes(), remote_output);
    let receiving = take(from_remote, git);
    let (finished, work) = tokio::join!(running, receiving);
    let finished = finished?;
    // A script that says nothing was ended because its work was refused here.
    let was_refused = work.is_err() && finished.stderr.trim().is_empty();
    if !was_refused {
        finished.success("the work of the session could not be read")?;
    }
    let work = work?;
    if work.commit.is_empty() {
        return Err(Failure::new(
            "the container did not say what the session has made",
        ));
    }
    check::check(git, &work.pack, &work.commit, &session.sent, head)?;
    Ok(work)
}

async fn take(from_remote: tokio::io::DuplexStream, git: &Git) -> Result<Work, Failure> {
    let lost = |error| Failure::with_cause("the connection to the container broke", &error);
    let mut reader = BufReader::new(from_remote);
    let mut work = Work::default();
    for number in 0.. {
        let mut line = Vec::new();
        let limited = &mut (&mut reader).take(MAX_LINE_BYTES);
        let read = limited.read_until(b'\n', &mut line).await.map_err(lost)?;
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if read == 0 || line.is_empty() {
            break;
        }
        if number == MAX_LINES {
            return Err(Failure::new("the container sent something else than work"));
        }
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("work", name) if is_object_name(name) => name.clone_into(&mut work.commit),
            _ => {}
        }
    }
    if work.commit.is_empty() {
        // The error of the script is the one to show.
        return Ok(work);
    }
    work.pack = index_pack(git, reader).await?;
    Ok(work)
}

/// Stores the objects, after checking them: the container is not trusted. The name of their pack.
async fn index_pack(
    git: &Git,
    mut from: BufReader<tokio::io::DuplexStream>,
) -> Result<String, Failure> {
    let mut command: tokio::process::Command = git
        .command([
            "index-pack",
            "--stdin",
            // Not `--fix-thin`: that would add objects of this repository to what arrived.
            "--strict",
            MAX_PACK_BYTES,
        ])
        .into();
    let mut child = command
        .stdin(Stdio::piped())
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
    // One line: `pack NAME`.
    let output = child.wait_with_output().await;
    let output = output.map_err(|error| not_started(&error))?;
    if output.status.success() {
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        return Ok(line
            .split_whitespace()
            .last()
            .unwrap_or_default()
            .to_owned());
    }
    Err(Failure::new(format!(
        "the work of the session was refused: {}",
        last_lines(&complaints)
    )))
}

/// Adds the commits up to `tip` that are not in the history of `head` to a repository, from a quarantine.
pub(super) fn keep_commits(
    quarantine: &Git,
    git: &Git,
    tip: &str,
    head: Option<&str>,
) -> Result<(), Failure> {
    let mut packing = quarantine
        .command([
            "pack-objects",
            "--revs",
            "--stdout",
            "-q",
            "--delta-base-offset",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| not_started(&error))?;
    let mut storing = git.command(["index-pack", "--stdin"]);
    if let Some(pack) = packing.stdout.take() {
        storing.stdin(pack);
    }
    let storing = storing.spawn().map_err(|error| not_started(&error))?;
    if let Some(mut stdin) = packing.stdin.take() {
        let excluded = head.map_or(String::new(), |head| format!("^{head}\n"));
        // If git has ended, it says why.
        let _ = stdin.write_all(format!("{tip}\n{excluded}").as_bytes());
    }
    for child in [storing, packing] {
        let ended = child.wait_with_output();
        let ended = ended.map_err(|error| not_started(&error))?;
        if !ended.status.success() {
            return Err(Failure::new(last_lines(&ended.stderr)));
        }
    }
    Ok(())
}

/// The commit that the container need not send, with its history: what HEAD was. It is told of no other, because
/// it may have been sent no other.
fn sent_head<'a>(git: &Git, session: &'a SentSession) -> Result<Option<&'a str>, Failure> {
    let Some(head) = session.head.as_deref() else {
        return Ok(None);
    };
    let is_here = git.succeeds(["cat-file", "-e", &format!("{head}^{{commit}}")])?;
    Ok(is_here.then_some(head))
}
