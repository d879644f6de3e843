//! `oubliette fetch`: the commits of a session as a local branch.

use clap::ArgMatches;
use serde_json::json;

use super::agent_commits;
use super::apply::tree_of;
use super::git::Git;
use super::receive;
use super::record::SentSession;
use super::snapshot::Quarantine;
use super::take::Chosen;
use crate::cli::reconnecting::ReconnectingClient;
use crate::failure::Failure;
use crate::terminal::output::{self, note};
use crate::terminal::width::stderr_columns;
use crate::terminal::wrap::wrapped;
use crate::terminal::{self, print_json};

/// How many digits of the name of a commit are shown.
const SHORT_NAME_CHARS: usize = 12;

impl Chosen<'_> {
    pub(super) async fn fetch(
        &self,
        client: &ReconnectingClient<'_>,
        command: &str,
        matches: &ArgMatches,
    ) -> Result<(), Failure> {
        let repository = &self.checkout.repository;
        if repository.is_temporary() {
            return Err(Failure::new(format!(
                "this directory is not a git repository and has no branches; use `{command} apply`"
            )));
        }
        let git = &repository.git;
        let session = &self.session;
        let id = &session.session_id;
        let (branch, name) = (
            format!("oubliette/{id}"),
            format!("refs/heads/oubliette/{id}"),
        );
        let mut file = self.checkout.open_record()?;
        let before = git.run(["rev-parse", "-q", "--verify", &name])?;
        let before = String::from_utf8_lossy(&before.stdout).trim().to_owned();
        let is_ours = before.is_empty()
            || [&session.fetched, &session.fetching]
                .into_iter()
                .any(|commit| commit.as_ref() == Some(&before));
        if !is_ours && !matches.get_flag("force") {
            return Err(Failure::new(format!(
                "the branch {branch} has commits that were made here; rename it, or replace it with --force"
            )));
        }
        let used = git.text(["worktree", "list", "--porcelain"])?;
        if used.lines().any(|line| line == format!("branch {name}")) {
            return Err(Failure::new(format!(
                "the branch {branch} is checked out; switch to another one first"
            )));
        }
        let (quarantine, receiving) = Quarantine::new(repository)?;
        let work = self.receive(client, &receiving).await?;
        let commits =
            agent_commits::put_on_sent(&receiving, session, &work.commit, quarantine.path())?;
        let tip = &commits.tip;
        receive::keep_commits(&receiving, git, tip, session.head.as_deref())?;
        let own = |session: &&mut SentSession| session.session_id == *id;
        if let Some(session) = file.record.sessions.iter_mut().find(own) {
            session.fetching = Some(tip.clone());
        }
        file.save()?;
        git.output(["update-ref", "-m", "oubliette fetch", &name, tip, &before])?;
        for session in &mut file.record.sessions {
            if session.session_id == *id {
                session.fetched = Some(tip.clone());
                session.fetching = None;
                session.taken = Some(work.commit.clone());
            }
        }
        file.save()?;
        let range = match session.sent.as_str() {
            "" => name,
            sent => format!("{sent}..{name}"),
        };
        let count = git.text(["rev-list", "--count", &range])?;
        if output::is_json() {
            print_json(&json!({
                "session_id": id, "branch": branch, "commit": tip, "sent": session.sent,
                "commits": count.parse::<u64>().unwrap_or(0),
            }));
            return Ok(());
        }
        if commits.is_one {
            eprintln!("note: the session has made too many commits; they are one here");
        }
        let (commits, they_follow) = match count.as_str() {
            "1" => ("commit", "It follows"),
            _ => ("commits", "They follow"),
        };
        note!("Fetched {count} {commits} as the branch");
        terminal::print_line(&branch);
        if has_uncommitted_files(git, session)? {
            let sent = &session.sent[..SHORT_NAME_CHARS.min(session.sent.len())];
            let note = format!(
                "{they_follow} {sent}, which has the files that you had not committed when the session started."
            );
            note!("{}", wrapped(&note, stderr_columns()));
            note!("  git log -p {sent}..{branch}");
            if session.head.is_some() {
                note!("  git cherry-pick {sent}..{branch}    here, without those files");
            }
        }
        Ok(())
    }
}

/// Whether there were files that no commit of the user's has, when the session was started.
fn has_uncommitted_files(git: &Git, session: &SentSession) -> Result<bool, Failure> {
    if session.sent.is_empty() {
        return Ok(false);
    }
    let sent = tree_of(git, &session.sent)?;
    Ok(match &session.head {
        Some(head) => sent != tree_of(git, head)?,
        None => !git.output(["ls-tree", &sent])?.is_empty(),
    })
}
