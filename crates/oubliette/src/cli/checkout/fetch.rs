//! `oubliette fetch`: the commits of a session as a local branch.

use clap::ArgMatches;
use serde_json::json;

use super::agent_commits;
use super::receive;
use super::snapshot::Quarantine;
use super::take::Chosen;
use crate::cli::reconnecting::ReconnectingClient;
use crate::failure::Failure;
use crate::terminal::{self, output, print_json};

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
        let is_ours = before.is_empty() || session.fetched.as_ref() == Some(&before);
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
        git.output(["update-ref", "-m", "oubliette fetch", &name, tip, &before])?;
        for session in &mut file.record.sessions {
            if session.session_id == *id {
                session.fetched = Some(tip.clone());
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
        let commits = if count == "1" { "commit" } else { "commits" };
        eprintln!("Fetched {count} {commits} as the branch {branch}.");
        if session.head.as_ref() != Some(&session.sent) {
            let sent = &session.sent[..SHORT_NAME_CHARS.min(session.sent.len())];
            eprintln!(
                "They follow {sent}, which has the files that you had not committed when the session started."
            );
            eprintln!("  git log -p {sent}..{branch}");
            if session.head.is_some() {
                eprintln!("  git rebase --onto HEAD {sent} {branch}    leave those files out");
            }
        }
        terminal::print_line(&branch);
        Ok(())
    }
}
