//! Suggests the command that another program's name for it means.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words for the same thing. In a group of commands, those that it has are suggested for the others.
const SYNONYMS: &[&[&str]] = &[
    &["list", "ls", "ps"],
    &["get", "show", "inspect", "info", "describe", "cat"],
    &["create", "add", "spawn", "setup", "new", "make"],
    &["delete", "remove", "revoke", "cleanup", "rm", "prune"],
    &["interrupt", "end", "stop", "kill", "cancel", "abort"],
    &["trigger", "start", "run", "fire"],
    &["events", "logs", "history", "log"],
    &["message", "send", "resume", "continue"],
    &["permit", "allow", "approve", "answer"],
    &["update", "edit", "set", "change"],
    &["exec", "shell", "ssh", "sh"],
    &["rebuild", "build"],
];

/// What a word means before the name of a group, and where a group has none of its synonyms: whole commands.
const COMMANDS: &[(&str, &[&str])] = &[
    ("stop", &["down"]),
    ("start", &["up"]),
    ("restart", &["up --restart"]),
    ("list", &["project list", "ps"]),
    ("ls", &["project list", "ps"]),
    ("ps", &["ps"]),
    ("get", &["project get"]),
    ("show", &["session show", "project get"]),
    ("inspect", &["project get"]),
    ("info", &["project get"]),
    ("create", &["project create"]),
    ("new", &["project create"]),
    ("delete", &["project delete"]),
    ("remove", &["project delete"]),
    ("rm", &["project delete"]),
    ("exec", &["container exec"]),
    ("shell", &["container exec -it"]),
    ("logs", &["container logs", "session events"]),
    ("attach", &["session attach"]),
    ("message", &["session message"]),
    ("login", &["agent login"]),
    ("install", &["agent install"]),
];

/// Adds a suggestion to an error about an unknown command. It replaces clap's, which only sounds alike.
pub(super) fn add_to(
    mut error: clap::Error,
    root: &Command,
    arguments: &[OsString],
) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let suggested = suggest(root, group_before(root, arguments, given), given);
    if !suggested.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(suggested),
        );
    }
    error
}

/// The group of commands that the unknown word follows; none at the top.
fn group_before<'a>(root: &'a Command, arguments: &[OsString], word: &str) -> Option<&'a Command> {
    let at = arguments.iter().rposition(|argument| argument == word)?;
    let before = arguments.get(at.checked_sub(1)?)?;
    let group = root.find_subcommand(before)?;
    group.has_subcommands().then_some(group)
}

fn suggest(root: &Command, group: Option<&Command>, word: &str) -> Vec<String> {
    if let Some(group) = group {
        let synonyms = SYNONYMS.iter().filter(|row| row.contains(&word));
        let own: Vec<String> = synonyms
            .flat_map(|row| row.iter())
            .filter(|other| group.find_subcommand(other).is_some())
            .map(|other| (*other).to_owned())
            .collect();
        if !own.is_empty() {
            return own;
        }
    }
    let known = COMMANDS.iter().find(|(known, _)| *known == word);
    let commands = known.map_or(&[][..], |(_, commands)| *commands);
    let existing = commands.iter().filter(|command| exists(root, command));
    existing.map(|command| (*command).to_owned()).collect()
}

/// Whether the words before the options are a command.
fn exists(root: &Command, command: &str) -> bool {
    let mut words = command.split(' ').take_while(|word| !word.starts_with('-'));
    words
        .try_fold(root, |parent, word| parent.find_subcommand(word))
        .is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_that_exist_are_suggested() {
        let root = crate::cli::command();
        for (words, expected) in [
            (&["stop"][..], &["down"][..]),
            (&["container", "ls"], &["project list", "ps"]),
            (&["credential", "rm"], &["remove"]),
            (&["credential", "delete"], &["remove"]),
            (&["token", "rm"], &["revoke"]),
            (&["schedule", "run"], &["trigger"]),
            (&["session", "stop"], &["interrupt", "end"]),
            (&["project", "ls"], &["list"]),
            (&["mcp", "add"], &["setup"]),
            (&["nonsense"], &[]),
        ] {
            let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
            let word = words[words.len() - 1];
            let group = group_before(&root, &arguments, word);
            assert_eq!(suggest(&root, group, word), expected, "{words:?}");
        }
        for (word, commands) in COMMANDS {
            for command in *commands {
                assert!(exists(&root, command), "{word}: {command}");
            }
        }
    }
}
