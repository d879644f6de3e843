//! Questions at a terminal before something that cannot be undone.

use std::io::{BufRead, IsTerminal, Write};

use clap::{Arg, ArgAction, ArgMatches, Command};
use oubliette_engine::operations::{Effect, Entry};

use crate::failure::Failure;
use crate::terminal::printable;

const YES: &str = "yes";

/// Adds `--yes` to a command that deletes something.
pub(super) fn add_flag(entry: &Entry, command: Command) -> Command {
    if !deletes(entry) {
        return command;
    }
    command.arg(
        Arg::new(YES)
            .short('y')
            .long(YES)
            .action(ArgAction::SetTrue)
            .help("Do not ask; without a terminal nothing is asked"),
    )
}

/// Asks at a terminal before something is deleted for good.
pub(super) fn before(entry: &Entry, matches: &ArgMatches) -> Result<(), Failure> {
    if !deletes(entry) || matches.get_flag(YES) || !can_ask() {
        return Ok(());
    }
    let last = entry.properties().map(|(name, _)| name);
    let named = last
        .filter(|name| entry.requires(name))
        .filter_map(|name| matches.get_one::<String>(name));
    let named: Vec<&str> = named.map(String::as_str).collect();
    let what = match entry.name {
        "project_delete" => ", its files, its history and its tokens",
        "workspace_delete" => " with its files",
        _ => "",
    };
    let noun = entry.noun();
    let question = format!("Delete the {noun} {}{what} for good?", named.join(" "));
    if ask(&question)? {
        Ok(())
    } else {
        Err(Failure::new("nothing was deleted"))
    }
}

fn deletes(entry: &Entry) -> bool {
    entry.effect == Effect::Destroys && entry.verb() == "delete"
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
