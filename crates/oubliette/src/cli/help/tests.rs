//! Rules for the help of every command.

use std::collections::BTreeSet;

use clap::Command;
use oubliette_engine::operations;

use super::*;
use crate::cli::GLOBAL_OPTIONS;
use crate::cli::root_help::GROUPS;

const COLUMNS: usize = 80;
/// Commands that people type: their help has an example.
const MAIN_COMMANDS: [&str; 27] = [
    "run",
    "diff",
    "apply",
    "fetch",
    "push",
    "cp",
    "serve",
    "down",
    "doctor",
    "backup",
    "restore",
    "completions",
    "agent install",
    "agent login",
    "mcp setup",
    "mcp remove",
    "project create",
    "project update",
    "project delete",
    "container exec",
    "session spawn",
    "session message",
    "session list",
    "session attach",
    "schedule create",
    "token create",
    "credential add",
];
/// Words of other layers.
const FOREIGN_WORDS: [&str; 5] = [
    "exec_id",
    "next_cursor",
    "More operations",
    "builder error",
    "MCP tool",
];

/// Every command with its words, for example `project create`.
fn all_commands() -> Vec<(String, Command)> {
    fn add(words: &str, command: &Command, to: &mut Vec<(String, Command)>) {
        to.push((words.trim().to_owned(), command.clone()));
        for below in command.get_subcommands() {
            if below.get_name() != "help" {
                add(&format!("{words} {}", below.get_name()), below, to);
            }
        }
    }
    let mut root = crate::cli::command().term_width(COLUMNS);
    root.build();
    let mut all = Vec::new();
    add("", &root, &mut all);
    all
}

fn help_of(command: &Command) -> String {
    let mut command = command.clone().term_width(COLUMNS);
    command.render_long_help().to_string()
}

/// The words of a text, cut at everything that no name of an operation contains.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_lowercase() && c != '_')
}

#[test]
fn the_texts_are_of_commands_and_parameters_that_exist() {
    for text in COMMANDS {
        assert!(
            operations::find(text.operation).is_some(),
            "{}",
            text.operation
        );
    }
    let has = |operation: &str, name: &str| {
        let mut entries = operations::all().iter();
        entries.any(|entry| {
            let mut properties = entry.properties();
            (operation == "*" || operation == entry.name)
                && properties.any(|(property, _)| property == name)
        })
    };
    for (operation, name, _) in PARAMETERS {
        assert!(has(operation, name), "{operation} has no {name}");
    }
    for (operation, names) in HIDDEN {
        for name in *names {
            assert!(has(operation, name), "{operation} has no {name}");
        }
    }
    let root = crate::cli::command();
    for name in GROUPS.iter().flat_map(|(_, names)| *names) {
        assert!(root.find_subcommand(name).is_some(), "no command {name}");
    }
}

#[test]
fn the_help_of_every_command_fits_80_columns() {
    let mut long = Vec::new();
    for (words, command) in all_commands() {
        let help = help_of(&command);
        let lines = help.lines().filter(|line| line.chars().count() > COLUMNS);
        long.extend(lines.map(|line| format!("{words}: {line}")));
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn no_help_has_names_of_operations_or_parameters() {
    let operations = operations::all();
    let names = operations.iter().map(|entry| entry.name);
    let parameters = operations
        .iter()
        .flat_map(|entry| entry.properties().map(|(name, _)| name));
    let foreign: BTreeSet<&str> = names
        .chain(parameters)
        .filter(|name| name.contains('_'))
        .collect();
    let mut found = Vec::new();
    for (command_words, command) in all_commands() {
        let help = help_of(&command);
        let names = words(&help).filter(|word| foreign.contains(word));
        let others = FOREIGN_WORDS.into_iter().filter(|word| help.contains(word));
        found.extend(
            names
                .chain(others)
                .map(|word| format!("{command_words}: {word}")),
        );
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn main_commands_have_examples_that_are_not_wrapped() {
    let (all, mut wrong) = (all_commands(), Vec::new());
    for main in MAIN_COMMANDS {
        let found = all.iter().find(|(words, _)| words == main);
        let (_, command) = found.unwrap_or_else(|| panic!("no command {main}"));
        let help = help_of(command);
        let Some((_, examples)) = help.split_once("Examples:\n") else {
            wrong.push(format!("{main}: no examples"));
            continue;
        };
        for line in examples.lines().filter(|line| !line.is_empty()) {
            let is_command = line.starts_with("  ") && line.contains("oubliette");
            if !is_command && !line.starts_with("    ") && !line.ends_with('|') {
                wrong.push(format!("{main}: {line}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_command_takes_the_global_options_under_their_own_heading() {
    for (words, command) in all_commands() {
        let help = help_of(&command);
        let (_, global) = help
            .split_once(&format!("{GLOBAL_OPTIONS}:\n"))
            .unwrap_or_else(|| panic!("{words}: {help}"));
        for option in [
            "--data-dir",
            "--url",
            "--token",
            "--json",
            "--quiet",
            "--no-color",
        ] {
            assert!(global.contains(option), "{words}: {option} in {help}");
        }
    }
}

#[test]
fn the_help_of_the_program_names_every_command_once() {
    let all = all_commands();
    let (_, root) = &all[0];
    let help = help_of(root);
    for command in root.get_subcommands().filter(|it| !it.is_hide_set()) {
        let name = command.get_name();
        let line = format!("\n  {name} ");
        assert_eq!(
            help.matches(&line).count(),
            usize::from(name != "help"),
            "{name} in {help}"
        );
    }
    for heading in [
        "Work with agents:",
        "Projects:",
        "Agents, clients and access:",
        "Server:",
    ] {
        assert!(help.contains(heading), "{help}");
    }
}
