//! Questions at a terminal before something that cannot be undone.

use std::io::{BufRead, IsTerminal, Write};

use clap::{Arg, ArgAction, ArgMatches, Command};
use oubliette_engine::operations::Entry;

use crate::failure::Failure;
use crate::terminal::printable;

const YES: &str = "yes";

/// The operations that are asked about, with the question: `{}` is what the command names.
const QUESTIONS: [(&str, &str); 9] = [
    (
        "project_delete",
        "Delete the project {}, its files, its history and its tokens for good?",
    ),
    (
        "workspace_delete",
        "Delete the workspace {} with its files for good?",
    ),
    (
        "schedule_delete",
        "Delete the schedule {} and its history for good?",
    ),
    (
        "session_cleanup",
        "Delete the ended sessions with their logs for good?",
    ),
    (
        "session_rewind",
        "Set the session {} back? Later changes of its files are lost.",
    ),
    (
        "credential_remove",
        "Remove the credential {}? Agents that start from now on cannot use it.",
    ),
    (
        "token_revoke",
        "Revoke the token {}? Its clients lose access at once.",
    ),
    (
        "image_rebuild",
        "Remove the containers of that type, with everything installed in them?",
    ),
    (
        "container_stop",
        "Stop the container of {} and every process in it?",
    ),
];

/// `--yes`, for commands that ask.
pub(super) fn yes_flag() -> Arg {
    Arg::new(YES)
        .short('y')
        .long(YES)
        .action(ArgAction::SetTrue)
        .help("Do not ask; required without a terminal")
}

/// Adds `--yes` to a command that asks.
pub(super) fn add_flag(entry: &Entry, command: Command) -> Command {
    match question(entry) {
        Some(_) => command.arg(yes_flag()),
        None => command,
    }
}

fn question(entry: &Entry) -> Option<&'static str> {
    let mut questions = QUESTIONS.iter();
    let (_, question) = questions.find(|(name, _)| *name == entry.name)?;
    Some(question)
}

/// Asks at a terminal before the command of an operation that loses something.
pub(super) fn before(entry: &Entry, matches: &ArgMatches) -> Result<(), Failure> {
    let Some(question) = question(entry) else {
        return Ok(());
    };
    let required = entry.properties().map(|(name, _)| name);
    let named = required
        .filter(|name| entry.requires(name))
        .filter_map(|name| matches.try_get_one::<String>(name).ok().flatten());
    let named: Vec<&str> = named.map(String::as_str).collect();
    require_yes(&question.replace("{}", &named.join(" ")), matches)
}

/// Asks at a terminal, unless `--yes` was given. A no is a failure, and so is a question without a terminal.
pub(super) fn require_yes(question: &str, matches: &ArgMatches) -> Result<(), Failure> {
    if matches.get_flag(YES) {
        return Ok(());
    }
    if !can_ask() {
        return Err(Failure::new(format!(
            "{}; give --yes",
            consequence(question)
        )));
    }
    if ask(question)? {
        return Ok(());
    }
    Err(Failure::new(if question.starts_with("Delete") {
        "nothing was deleted"
    } else {
        "nothing was changed"
    }))
}

/// `Delete it?` as a statement: `this would delete it`.
fn consequence(question: &str) -> String {
    let asked = question.split('?').next().unwrap_or(question);
    let mut letters = asked.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    let rest = letters.as_str();
    format!("this would {}{rest}", first.unwrap_or_default())
}

/// Whether a person can be asked.
pub(super) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks until the answer is yes or no; no input is no.
pub(super) fn ask(question: &str) -> Result<bool, Failure> {
    loop {
        eprint!("{} [y/N] ", printable(question));
        let _ = std::io::stderr().flush();
        let mut line = String::new();
        std::io::stdin()
            .lock()
            .read_line(&mut line)
            .map_err(|error| Failure::with_cause("cannot read the answer", &error))?;
        match line.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(true),
            "" | "n" | "no" => return Ok(false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use oubliette_engine::operations::{self, Effect};

    use super::*;

    #[test]
    fn without_a_terminal_the_failure_says_what_yes_would_do() {
        assert_eq!(
            consequence("Set the session s back? Later changes of its files are lost."),
            "this would set the session s back"
        );
    }

    #[test]
    fn every_operation_that_deletes_is_asked_about() {
        for (name, _) in QUESTIONS {
            assert!(operations::find(name).is_some(), "{name}");
        }
        // What they replace is not lost, or is what the user asks for.
        let plain = ["container_exec", "workspace_write"];
        for entry in operations::all() {
            let is_asked = question(entry).is_some() || plain.contains(&entry.name);
            assert!(
                is_asked || entry.effect != Effect::Destroys,
                "{}",
                entry.name
            );
        }
    }
}
