//! The command line: one command per operation, generated from the registry, and a few others.

mod access;
mod arguments;

mod checkout;
mod client;
mod confirm;
mod credentials;
mod event_printer;
mod follow;
mod interactive;
mod local_tools;
mod login;
mod names;
mod openspec;
mod operation;
mod permission;
mod projects;
mod reconnecting;
mod run;
mod schedules;
mod stdio;
mod suggest;
mod variables;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::home::Home;
use crate::setup::{self, ConfigScope, Connection};
use crate::{agents, archive, doctor, down, reset, serve, terminal};

const GLOBAL_OPTIONS: &str = "Global options";
const EXAMPLES: &str = "\
Examples:
  oubliette run 'fix the failing test'              give an agent a prompt; in a repository, on a copy of it
  oubliette diff                                    see what it has changed
  oubliette apply                                   merge that into the files here
  oubliette serve                                   start the server
  oubliette project create hello                    create a project
  oubliette project list                            list all projects
  oubliette container exec -it hello                open a terminal in its container
  oubliette credential add work --kind anthropic    store the key of a model provider
  oubliette token create ci project:hello           create a key for one project
  oubliette mcp setup claude                        connect Claude Code";

/// Runs one command.
pub(crate) fn run(arguments: Vec<OsString>) -> Result<(), Failure> {
    let matches = command()
        .try_get_matches_from(&arguments)
        .map_err(|error| suggest::add_to(error, &arguments))?;
    refuse_unused_access(&matches)?;
    let home = Home::find(matches.get_one::<PathBuf>("data-dir").map(PathBuf::as_path))?;
    let access = access::Access::from_matches(&matches, &home);
    match matches.subcommand() {
        Some(("serve", matches)) => serve::run(&home, &serve::Options::from_arg_matches(matches)?),
        Some(("agent", matches)) => match matches.subcommand() {
            Some(("install", matches)) => {
                let name = matches.get_one::<String>("NAME").cloned();
                agents::install(&home, &name.unwrap_or_default())
            }
            Some(("login", matches)) => login::run(&home, matches, &access),
            Some(("models", matches)) => {
                let name = matches.get_one::<String>("NAME").cloned();
                agents::models(&home, &name.unwrap_or_default(), matches.get_flag("json"))
            }
            Some((_, list)) => agents::list(&home, list.get_flag("json")),
            None => agents::list(&home, matches.get_flag("json")),
        },
        Some(("run", matches)) => run::run(&home, matches, &access),
        Some((verb @ ("diff" | "apply" | "fetch" | "push"), matches)) => {
            checkout::run_take(verb, &home, matches, &access)
        }
        Some(("cp", matches)) => checkout::run_copy(&home, matches, &access),
        Some(("backup", matches)) => archive::backup(
            &home,
            path(matches, "FILE"),
            !matches.get_flag("without-files"),
        ),
        Some(("restore", matches)) => {
            archive::restore(&home, path(matches, "FILE"), matches.get_flag("replace"))
        }
        Some(("doctor", _)) => doctor::run(&home),
        Some(("down", matches)) => down::run(&home, matches.get_flag("remove")),
        Some(("completions", matches)) => {
            if let Some(shell) = matches.get_one::<Shell>("SHELL") {
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut command(), "oubliette", &mut script);
                terminal::print_line(String::from_utf8_lossy(&script).trim_end());
            }
            Ok(())
        }
        Some(("mcp", matches)) => match matches.subcommand() {
            Some(("stdio", _)) => bridge_stdio(&access),
            Some((_, matches)) => connect_client(matches, &access),
            None => Ok(()),
        },
        Some(("token", matches)) if matches.subcommand_matches("reset-admin").is_some() => {
            reset::run(&home)
        }
        Some(("session", matches)) if let Some(attach) = matches.subcommand_matches("attach") => {
            operation::attach(attach, &access)
        }
        Some((noun, matches)) => match matches.subcommand() {
            Some((verb, matches)) => operation::run(noun, verb, matches, &home, &access),
            None => Ok(()),
        },
        None => Ok(()),
    }
}

/// Refuses an address or a key for commands that work on the data directory itself, with the rights of
/// the user: it would look as if they used them.
fn refuse_unused_access(matches: &ArgMatches) -> Result<(), Failure> {
    let command = match matches.subcommand() {
        Some((
            name @ ("serve" | "agent" | "backup" | "restore" | "down" | "doctor" | "completions"),
            _,
        )) => name,
        Some(("token", token)) if token.subcommand_matches("reset-admin").is_some() => {
            "token reset-admin"
        }
        _ => return Ok(()),
    };
    let is_given = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
    match ["url", "token"].into_iter().find(|name| is_given(name)) {
        Some(option) => Err(Failure::new(format!(
            "`oubliette {command}` works on the data directory itself and uses no --{option}; leave it out"
        ))),
        None => Ok(()),
    }
}

fn command() -> Command {
    let mut command = Command::new("oubliette")
        .about("Runs coding agents in isolated containers, driven by any MCP client")
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(
            Arg::new("data-dir")
                .long("data-dir")
                .value_name("DIR")
                .env("OUBLIETTE_HOME")
                .global(true)
                .help_heading(GLOBAL_OPTIONS)
                .value_parser(value_parser!(PathBuf))
                .help("Directory with the database, configuration and projects [default: ~/.oubliette]"),
        )
        .arg(
            Arg::new("url")
                .long("url")
                .value_name("URL")
                .env("OUBLIETTE_URL")
                .global(true)
                .help_heading(GLOBAL_OPTIONS)
                .help("URL of the server [default: the server that is running on the data directory]"),
        )
        .arg(
            Arg::new("token")
                .long("token")
                .value_name("KEY")
                .env("OUBLIETTE_TOKEN")
                .hide_env_values(true)
                .global(true)
                .help_heading(GLOBAL_OPTIONS)
                .help("API key to use [default: the admin token of the data directory]"),
        )
        .subcommand(serve::Options::augment_args(Command::new("serve")));
    command = command
        .subcommand(run::command())
        .subcommands(checkout::take_commands())
        .subcommand(checkout::copy_command())
        .subcommand(agent_command());
    for noun in operation::commands() {
        command = command.subcommand(noun);
    }
    command
        .mut_subcommand("token", |token| {
            token.subcommand(Command::new("reset-admin").about(
                "Create a new admin token and revoke the old one; stop the server first",
            ))
        })
        .mut_subcommand("session", |session| {
            session.subcommand(
                Command::new("attach")
                    .about("Follow a session live and send messages to its agent")
                    .arg(Arg::new("SESSION").required(true).help("Id of the session; see `oubliette session list`")),
            )
        })
        .subcommand(
            Command::new("mcp")
                .about("Connect an MCP client to the server")
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(setup_command())
                .subcommand(Command::new("stdio").about(
                    "Be an MCP server on standard input and output, for clients that start their servers",
                )),
        )
        .subcommand(
            Command::new("backup")
                .about("Back up the data directory to one file; the server may be running")
                .arg(file_argument("FILE", "File to write; must not exist"))
                .arg(
                    Arg::new("without-files")
                        .long("without-files")
                        .action(ArgAction::SetTrue)
                        .help("Leave out the files of projects"),
                ),
        )
        .subcommand(
            Command::new("restore")
                .about("Restore the data directory from a backup")
                .arg(file_argument("FILE", "File written by `oubliette backup`"))
                .arg(
                    Arg::new("replace")
                        .long("replace")
                        .action(ArgAction::SetTrue)
                        .help("Move the existing database and files to a subdirectory first"),
                ),
        )
        .subcommand(
            Command::new("down")
                .about("Stop the server and all containers of the data directory; files stay")
                .arg(
                    Arg::new("remove")
                        .long("remove")
                        .action(ArgAction::SetTrue)
                        .help("Also remove the containers, with everything installed in them, and the images built for them"),
                ),
        )
        .subcommand(
            Command::new("doctor").about("Check the data directory and this machine, and suggest fixes"),
        )
        .subcommand(
            Command::new("completions")
                .about("Print the completion script for a shell")
                .after_help("Example: oubliette completions bash > ~/.local/share/bash-completion/completions/oubliette")
                .arg(Arg::new("SHELL").required(true).value_parser(value_parser!(Shell))),
        )
}

fn agent_command() -> Command {
    let json = json_flag;
    Command::new("agent")
        .about("List agents, install one, and sign in with one")
        .arg(json())
        .subcommand(login::command())
        .subcommand(
            Command::new("list")
                .about("List the agents and whether they are installed")
                .arg(json()),
        )
        .subcommand(
            Command::new("models")
                .about("List the models that an agent offers, as it said when it was started last")
                .arg(Arg::new("NAME").required(true).help("The agent's name"))
                .arg(json()),
        )
        .subcommand(
            Command::new("install")
                .about("Install an agent, at the tested version, for use in containers")
                .arg(
                    Arg::new("NAME")
                        .required(true)
                        .help("One of claude, codex, copilot, droid, gemini, opencode, qwen"),
                ),
        )
}

fn json_flag() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print the result as JSON")
}

fn setup_command() -> Command {
    let clients: Vec<&str> = setup::names().collect();
    Command::new("setup")
        .about(
            "Add this server to the MCP configuration of a client; other settings stay as they are",
        )
        .arg(
            Arg::new("CLIENT")
                .required(true)
                .help(format!("One of {}", clients.join(", "))),
        )
        .arg(
            Arg::new("project")
                .long("project")
                .value_name("DIR")
                .value_parser(value_parser!(PathBuf))
                .help("Write the configuration of the project in DIR instead of the user's"),
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Show the changes without writing them"),
        )
}

fn file_argument(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help(help)
}

fn path<'a>(matches: &'a ArgMatches, name: &str) -> &'a PathBuf {
    static EMPTY: PathBuf = PathBuf::new();
    matches.get_one(name).unwrap_or(&EMPTY)
}

fn bridge_stdio(access: &access::Access) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let result = runtime.block_on(stdio::run(access));
    // A blocked read of the input must not delay the exit.
    runtime.shutdown_background();
    result
}

fn connect_client(matches: &ArgMatches, access: &access::Access) -> Result<(), Failure> {
    let client = matches
        .get_one::<String>("CLIENT")
        .map(String::as_str)
        .unwrap_or_default();
    let scope = match matches.get_one::<PathBuf>("project") {
        Some(directory) => ConfigScope::Project(directory.clone()),
        None => ConfigScope::User,
    };
    let user = std::env::home_dir().unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let connection = Connection {
        url: runtime.block_on(access.url())?,
        token: access.key()?,
    };
    let change = setup::plan(
        client,
        &scope,
        &user,
        &|name| std::env::var_os(name),
        &connection,
    )
    .map_err(|error| Failure::with_cause("nothing was changed", &error))?;
    eprintln!("{}", change.summary());
    if change.is_noop() || matches.get_flag("dry-run") {
        return Ok(());
    }
    change
        .apply()
        .map_err(|error| Failure::with_cause("nothing was changed", &error))?;
    eprintln!("{}", change.note());
    Ok(())
}

#[cfg(test)]
mod tests {
    use oubliette_engine::operations;

    #[test]
    fn the_command_tree_is_valid() {
        super::command().debug_assert();
    }

    #[test]
    fn every_operation_is_a_command_in_a_group_with_help_text() {
        let command = super::command();
        for entry in operations::all() {
            let group = command.find_subcommand(entry.noun());
            let group = group.unwrap_or_else(|| panic!("no command {}", entry.noun()));
            let help = group.get_about().map(ToString::to_string);
            assert!(
                help.is_some_and(|help| !help.is_empty()),
                "{}",
                entry.noun()
            );
            assert!(
                group.find_subcommand(entry.verb()).is_some(),
                "{}",
                entry.name
            );
        }
    }
}
