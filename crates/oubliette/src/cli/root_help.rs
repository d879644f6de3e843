//! The help of `oubliette` itself: commands by purpose, and examples.

use std::fmt::Write;

use clap::Command;

use super::GLOBAL_OPTIONS;

/// The commands by purpose. Those that are not named here come last.
pub(super) const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Work with agents",
        &[
            "run", "ps", "session", "diff", "apply", "fetch", "push", "cp", "schedule",
        ],
    ),
    (
        "Projects",
        &["project", "workspace", "container", "network", "image"],
    ),
    (
        "Agents, clients and access",
        &["agent", "credential", "mcp", "token", "config", "audit"],
    ),
    (
        "Server",
        &[
            "serve",
            "up",
            "status",
            "down",
            "doctor",
            "backup",
            "restore",
            "completions",
        ],
    ),
];
const OTHER_COMMANDS: &str = "Other commands";
const ABOUT: &str = "Runs coding agents in isolated containers, driven by any MCP client";
const EXAMPLES: &[&str] = &[
    "oubliette run 'fix the failing test'            on a copy of this repository",
    "oubliette diff                                  see what it has changed",
    "oubliette apply                                 merge that into the files",
    "oubliette project create hello                  create a project",
    "oubliette container exec -it hello              open a terminal in it",
    "oubliette credential add work --kind anthropic  store a provider's key",
    "oubliette mcp setup claude                      connect Claude Code",
    "oubliette COMMAND --help                        more about a command",
];
/// The longest name of a command, and the space around it.
const NAME_COLUMNS: usize = 13;

/// Gives the command, which is otherwise complete, its help.
pub(super) fn add_to(command: Command) -> Command {
    let groups = groups(&command);
    command
        .about(ABOUT)
        .override_usage("oubliette [OPTIONS] <COMMAND>")
        .after_help(super::help::examples(EXAMPLES))
        .help_template(format!(
            "{{about}}\n\n{{usage-heading}} {{usage}}\n{groups}\n{GLOBAL_OPTIONS}:\n{{options}}{{after-help}}"
        ))
}

fn groups(command: &Command) -> String {
    let is_grouped = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let visible = command.get_subcommands().filter(|it| !it.is_hide_set());
    let others: Vec<&str> = visible
        .map(Command::get_name)
        .filter(|name| !is_grouped(name))
        .collect();
    let mut text = String::new();
    let all = GROUPS.iter().copied();
    for (heading, names) in all.chain([(OTHER_COMMANDS, others.as_slice())]) {
        let found = names
            .iter()
            .filter_map(|name| command.find_subcommand(name));
        let lines: Vec<String> = found
            .map(|it| {
                let about = it.get_about().map(ToString::to_string);
                format!(
                    "  {:NAME_COLUMNS$}{}\n",
                    it.get_name(),
                    about.unwrap_or_default()
                )
            })
            .collect();
        if !lines.is_empty() {
            let _ = write!(text, "\n{heading}:\n{}", lines.concat());
        }
    }
    text
}
