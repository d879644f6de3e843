//! `oubliette apply`, with `--merge` and `--undo`.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use serde_json::{Value, json};

use super::super::snapshot::Snapshot;
use super::super::take::{Chosen, hold_signals};
use super::super::{Checkout, directory, ignored, report_kept};
use super::{Conflict, ConflictKind, SessionWork, apply, tree_of, undo};
use crate::cli::access::Access;
use crate::cli::confirm;
use crate::cli::reconnecting::ReconnectingClient;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::{output, print_json, printable};

impl Chosen<'_> {
    pub(in super::super) async fn apply(
        &self,
        client: &ReconnectingClient<'_>,
        command: &str,
        matches: &ArgMatches,
    ) -> Result<(), Failure> {
        let repository = &self.checkout.repository;
        // Also waits for an apply of the same checkout.
        let mut file = self.checkout.open_record()?;
        let snapshot = Snapshot::take(repository)?;
        let work = self.receive(client, &snapshot.git).await?;
        // Read anew: this command may have waited for a `diff`.
        let seen = file.record.find(&self.session.session_id)?;
        let seen = seen.and_then(|session| session.seen.clone());
        let tree = tree_of(&snapshot.git, &work.commit)?;
        if seen.is_some_and(|seen| seen != tree) && !matches.get_flag("yes") {
            confirm_unseen()?;
        }
        ignored::remember(repository, &file)?;
        // From here on a signal must not leave a half of it.
        let _signals = hold_signals();
        let session = SessionWork {
            session_id: &self.session.session_id,
            sent: &self.session.sent,
            work: &work.commit,
            with_conflicts: matches.get_flag("merge"),
        };
        let applied = apply(repository, &snapshot, &session, &file.apply_paths())?;
        file.record
            .set_taken(&self.session.session_id, Some(&work.commit));
        file.save()?;
        if output::is_json() {
            print_json(&json!({
                "session_id": self.session.session_id, "written": applied.written,
                "removed": applied.removed, "skipped": applied.skipped, "can_run": applied.can_run,
                "outward_links": applied.outward_links,
                "conflicts": applied.conflicts.iter().map(conflict_json).collect::<Vec<_>>(),
            }));
            return exit_with(&applied.conflicts);
        }
        report_kept(&applied.kept);
        for name in &applied.skipped {
            eprintln!(
                "note: {} is a repository of its own and was left alone",
                printable(name)
            );
        }
        if !applied.can_run.is_empty() {
            eprintln!(
                "warning: look at these files before you go on; git, an editor or a shell may run what they say: {}",
                printable(&applied.can_run.join(", "))
            );
        }
        if !applied.outward_links.is_empty() {
            eprintln!(
                "warning: these links lead out of the repository: {}",
                printable(&applied.outward_links.join(", "))
            );
        }
        for conflict in &applied.conflicts {
            eprintln!("conflict: {}", describe(conflict));
        }
        let done = match applied.conflicts.len() {
            0 => "Applied",
            _ => "Applied with conflicts",
        };
        match (applied.written, applied.removed) {
            (0, 0) if applied.conflicts.is_empty() => {
                eprintln!("There is nothing to apply: the files here have it already.");
            }
            (0, 0) => eprintln!("No file here was changed."),
            (written, removed) => {
                eprintln!("{done}: {}.", counted(written, removed));
                eprintln!("  {command} apply --undo    set the files back");
            }
        }
        exit_with(&applied.conflicts)
    }
}

/// `oubliette apply --undo`, which needs no server.
pub(in super::super) fn undo_command(
    home: &Home,
    matches: &ArgMatches,
    access: &Access,
) -> Result<(), Failure> {
    let directory = directory(matches.get_one::<PathBuf>("dir"))?;
    let nothing = || {
        Failure::new(format!(
            "there is no `oubliette apply` to undo in {}",
            directory.display()
        ))
    };
    let checkout = Checkout::find(home, access, &directory, true)?.ok_or_else(nothing)?;
    let mut file = checkout.open_record()?;
    let paths = file.apply_paths();
    let undone = undo(&paths.undo, &paths.stage)?.ok_or_else(nothing)?;
    // The work can be taken again.
    file.record.set_taken(&undone.session_id, None);
    file.save()?;
    if output::is_json() {
        let edited = undone.edited.iter();
        let edited: Vec<Value> = edited
            .map(|(path, kept)| json!({ "path": path.to_string_lossy(), "kept_as": kept.to_string_lossy() }))
            .collect();
        print_json(&json!({
            "session_id": undone.session_id, "written": undone.written, "removed": undone.removed,
            "edited": edited,
        }));
        return Ok(());
    }
    report_kept(&undone.kept);
    let shown = |path: &Path| printable(&path.display().to_string());
    for (path, kept) in &undone.edited {
        eprintln!(
            "note: {} was changed since; that version is {}",
            shown(path),
            shown(kept)
        );
    }
    match (undone.written, undone.removed) {
        (0, 0) => eprintln!("There is nothing to undo: the files are what they were."),
        (written, removed) => eprintln!("Undone: {}.", counted(written, removed)),
    }
    Ok(())
}

fn counted(written: usize, removed: usize) -> String {
    let files = |count: usize| format!("{count} {}", if count == 1 { "file" } else { "files" });
    match (written, removed) {
        (written, 0) => format!("{} written", files(written)),
        (0, removed) => format!("{} removed", files(removed)),
        (written, removed) => format!("{} written, {} removed", files(written), files(removed)),
    }
}

/// As of `git merge`: conflicts are not a success.
fn exit_with(conflicts: &[Conflict]) -> Result<(), Failure> {
    if conflicts.is_empty() {
        Ok(())
    } else {
        Err(Failure::Exit(1))
    }
}

fn describe(conflict: &Conflict) -> String {
    let shown = |path: &Path| printable(&path.display().to_string());
    let path = shown(&conflict.path);
    match &conflict.kind {
        ConflictKind::Markers => {
            format!("{path} has both versions; choose between <<<<<<< and >>>>>>>")
        }
        ConflictKind::Beside(beside) => format!(
            "{path} is as it was, and cannot be merged; the version of the session is {}",
            shown(beside)
        ),
        ConflictKind::RemovedHere => {
            format!("{path} was removed here, and is back as the session has changed it")
        }
        ConflictKind::RemovedBySession => {
            format!("{path} was removed by the session, and is still as you have changed it")
        }
        ConflictKind::Moved => {
            format!("{path} was moved or replaced, here or by the session: look at it")
        }
    }
}

fn conflict_json(conflict: &Conflict) -> Value {
    let (kind, beside) = match &conflict.kind {
        ConflictKind::Markers => ("markers", None),
        ConflictKind::Beside(beside) => ("beside", Some(beside.to_string_lossy())),
        ConflictKind::RemovedHere => ("removed_here", None),
        ConflictKind::RemovedBySession => ("removed_by_session", None),
        ConflictKind::Moved => ("moved", None),
    };
    json!({ "path": conflict.path.to_string_lossy(), "kind": kind, "session_version": beside })
}

/// Asks whether to apply work that differs from what `diff` has shown; an error if the answer is no.
fn confirm_unseen() -> Result<(), Failure> {
    let changed = "the work has changed since you looked at it";
    if confirm::can_ask() && confirm::ask(&format!("{changed}. Apply it as it is now?"))? {
        return Ok(());
    }
    Err(Failure::new(format!(
        "nothing was changed: {changed}; `oubliette diff` shows it, and `oubliette apply --yes` takes it unseen"
    )))
}
