//! Suggests the command that another program's name for it means.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use oubliette_engine::operations::NOUNS;

/// Words of other programs, and the commands for the same thing.
const KNOWN_AS: [(&str, &[&str]); 11] = [
    ("rm", &["delete"]),
    ("remove", &["delete"]),
    ("show", &["get"]),
    ("inspect", &["get"]),
    ("info", &["get"]),
    ("ls", &["list"]),
    ("new", &["create"]),
    ("exec", &["container exec"]),
    ("shell", &["container exec -it"]),
    ("logs", &["container logs", "session events"]),
    ("attach", &["session attach"]),
];
/// Of them, those that exist only below a noun.
const VERBS: [&str; 4] = ["delete", "get", "list", "create"];

/// Adds a suggestion to an error about an unknown command. It replaces clap's, which only sounds alike.
pub(super) fn add_to(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let is_below_noun = is_below_noun(arguments, given);
    let suggested = KNOWN_AS.iter().find(|(known, _)| known == given);
    let suggested = suggested.map_or(&[][..], |(_, commands)| *commands);
    let suggested: Vec<String> = suggested
        .iter()
        .map(|command| {
            if VERBS.contains(command) && !is_below_noun {
                format!("project {command}")
            } else {
                (*command).to_owned()
            }
        })
        .collect();
    if !suggested.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(suggested),
        );
    }
    error
}

/// Whether the unknown word follows the name of a group of commands.
fn is_below_noun(arguments: &[OsString], word: &str) -> bool {
    let at = arguments.iter().rposition(|argument| argument == word);
    let before = at.and_then(|at| arguments.get(at.checked_sub(1)?));
    before.is_some_and(|before| NOUNS.iter().any(|noun| before == noun.name))
}
