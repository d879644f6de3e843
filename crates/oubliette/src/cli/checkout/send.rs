//! Sends a snapshot into a workspace: only what the workspace lacks, as one pack.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::super::reconnecting::ReconnectingClient;
use super::git::{is_object_name, last_lines, not_started};
use super::remote::{self, Place};
use super::repository::Repository;
use super::snapshot::Snapshot;
use crate::failure::Failure;
use crate::terminal::ProgressLine;

const SCRIPT: &str = include_str!("send.sh");
/// Between git and the calls.
const PIPE_BYTES: usize = 4 << 20;
const MAX_TAGS: usize = 1000;
/// The script names at most 2000.
const MAX_KNOWN_COMMITS: usize = 4000;
const MAX_LINE_BYTES: u64 = 256;
const MAX_SHALLOW_COMMITS: usize = 1000;

/// What was sent.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) bytes: u64,
}

/// Sends the snapshot. What the workspace has is kept there under the name `keep_as`.
pub(super) async fn send(
    client: &ReconnectingClient<'_>,
    place: &Place,
    repository: &Repository,
    snapshot: &Snapshot,
    keep_as: Option<&str>,
) -> Result<Sent, Failure> {
    let shallow = shallow_commits(repository)?;
    let head = &snapshot.head;
    let argv = [
        "/bin/sh",
        "-c",
        SCRIPT,
        "sh",
        head.commit.as_deref().unwrap_or_default(),
        head.branch.as_deref().unwrap_or_default(),
        &snapshot.commit,
        keep_as.unwrap_or_default(),
        &shallow,
    ];
    let (to_remote, remote_input) = tokio::io::duplex(PIPE_BYTES);
    let (remote_output, from_remote) = tokio::io::duplex(PIPE_BYTES);
    let running = remote::run(client, place, &argv, remote_input, remote_output);
    let talking = talk(snapshot, to_remote, from_remote);
    let (finished, sent) = tokio::join!(running, talking);
    // If git has failed here, the script had to fail, too.
    let sent = sent?;
    finished?.success("the copy could not be made in the container")?;
    Ok(sent)
}

/// Our side of the conversation with the script.
async fn talk(
    snapshot: &Snapshot,
    mut to_remote: tokio::io::DuplexStream,
    from_remote: tokio::io::DuplexStream,
) -> Result<Sent, Failure> {
    let lost = |error| Failure::with_cause("the connection to the container broke", &error);
    let mut reader = BufReader::new(from_remote);
    let mut has = Vec::new();
    loop {
        let mut line = Vec::new();
        let limited = &mut (&mut reader).take(MAX_LINE_BYTES);
        limited.read_until(b'\n', &mut line).await.map_err(lost)?;
        if line.len() as u64 == MAX_LINE_BYTES || has.len() == MAX_KNOWN_COMMITS {
            return Err(Failure::new(
                "the container sent something else than the commits that it has",
            ));
        }
        if line.pop() != Some(b'\n') {
            // The script has failed; its error is the one to show.
            return Ok(Sent::default());
        }
        if line.is_empty() {
            break;
        }
        has.push(String::from_utf8_lossy(&line).into_owned());
    }
    has.retain(|name| is_object_name(name));
    let has = known_commits(snapshot, &has)?;
    let tags = tags(snapshot)?;
    let mut wanted = String::new();
    let mut preamble = String::new();
    for (object, name) in &tags {
        preamble.push_str(&format!("{object} {name}\n"));
        wanted.push_str(&format!("{object}\n"));
    }
    preamble.push('\n');
    for commit in [Some(&snapshot.commit), snapshot.head.commit.as_ref()] {
        wanted.extend(
            commit
                .into_iter()
                .flat_map(|commit| [commit.as_str(), "\n"]),
        );
    }
    for commit in &has {
        wanted.push_str(&format!("^{commit}\n"));
    }
    let mut pack: tokio::process::Command = snapshot
        .git
        .command([
            "pack-objects",
            "--revs",
            "--thin",
            "--stdout",
            "-q",
            "--delta-base-offset",
        ])
        .into();
    let mut pack = pack
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| not_started(&error))?;
    let (stdin, stdout, stderr) = (pack.stdin.take(), pack.stdout.take(), pack.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(wanted.as_bytes()).await;
        }
    };
    let complaints = async {
        let mut text = Vec::new();
        if let Some(mut stderr) = stderr {
            let _ = stderr.read_to_end(&mut text).await;
        }
        text
    };
    let copy = async {
        let mut sent = Sent::default();
        let mut progress = ProgressLine::default();
        if to_remote.write_all(preamble.as_bytes()).await.is_err() {
            return sent;
        }
        let mut buffer = vec![0; 256 << 10];
        if let Some(mut stdout) = stdout {
            while let Ok(read) = stdout.read(&mut buffer).await {
                // If the script has failed, its error is the one to show.
                if read == 0 || to_remote.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
                sent.bytes += read as u64;
                progress.show(&format!(
                    "sending the files: {:.1} MB",
                    sent.bytes as f64 / 1e6
                ));
            }
        }
        sent
    };
    let ((), sent, complaints) = tokio::join!(feed, copy, complaints);
    let status = pack.wait().await.map_err(|error| not_started(&error))?;
    if !status.success() {
        // Without an end of its input the script fails, too, and changes nothing.
        let _ = to_remote.shutdown().await;
        return Err(Failure::new(last_lines(&complaints)));
    }
    let _ = to_remote.shutdown().await;
    tokio::io::copy(&mut reader, &mut tokio::io::sink())
        .await
        .map_err(lost)?;
    Ok(sent)
}

/// Those of the workspace's commits that this repository has, too.
fn known_commits(snapshot: &Snapshot, names: &[String]) -> Result<Vec<String>, Failure> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let input = names.join("\n").into_bytes();
    let found = snapshot.git.filter(
        ["cat-file", "--batch-check=%(objecttype) %(objectname)"],
        input,
    )?;
    let found = String::from_utf8_lossy(&found).into_owned();
    let commits = found
        .lines()
        .filter_map(|line| line.strip_prefix("commit "));
    Ok(commits.map(str::to_owned).collect())
}

/// The tags of the history that is sent: builds ask for them.
fn tags(snapshot: &Snapshot) -> Result<Vec<(String, String)>, Failure> {
    let Some(head) = &snapshot.head.commit else {
        return Ok(Vec::new());
    };
    let count = format!("--count={MAX_TAGS}");
    let merged = format!("--merged={head}");
    let listed = snapshot.git.text([
        "for-each-ref",
        "--sort=-creatordate",
        &count,
        &merged,
        "--format=%(objectname) %(refname)",
        "refs/tags",
    ])?;
    let tags = listed.lines().filter_map(|line| line.split_once(' '));
    Ok(tags
        .map(|(object, name)| (object.to_owned(), name.to_owned()))
        .collect())
}

/// The commits at which the history of a shallow clone ends.
fn shallow_commits(repository: &Repository) -> Result<String, Failure> {
    let Ok(text) = std::fs::read_to_string(repository.git_path("shallow")?) else {
        return Ok(String::new());
    };
    let commits: Vec<&str> = text.lines().filter(|line| is_object_name(line)).collect();
    if commits.len() > MAX_SHALLOW_COMMITS {
        return Err(Failure::new(
            "the history of this shallow clone ends at too many commits; run `git fetch --unshallow` first",
        ));
    }
    Ok(commits.join(" "))
}
