//! The command line: one command per operation, made from the registry, and a few of its own.

mod arguments;
mod changes;
mod client;
mod dialogue;
mod follow;
mod line;
mod names;
mod operation;
mod run;
mod schedules;
mod show;
mod tools;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::home::Home;
use crate::setup::{self, Connection, Place};
use crate::{agents, archive, doctor, down, reset, serve, terminal};

const EXAMPLES: &str = "\
Examples:
  oubliette run 'what is in this workspace?'        an agent at work, from nothing to the answer
  oubliette serve                                   start the server
  oubliette project create hello                    make a project
  oubliette project list                            see all projects
  oubliette container exec -it hello                a terminal in its container
  oubliette token create ci project:hello           a key for one project
  oubliette mcp setup claude                        connect Claude Code";

/// Runs one command.
pub(crate) fn run(arguments: Vec<OsString>) -> Result<(), Failure> {
    let matches = command().try_get_matches_from(arguments)?;
    let home = Home::find(matches.get_one::<PathBuf>("data-dir").map(PathBuf::as_path))?;
    let access = client::Access::of(&matches, &home);
    match matches.subcommand() {
        Some(("serve", matches)) => serve::run(&home, &serve::Options::from_arg_matches(matches)?),
        Some(("agent", matches)) => match matches.subcommand() {
            Some(("install", matches)) => {
                let name = matches.get_one::<String>("NAME").cloned();
                agents::install(&home, &name.unwrap_or_default())
            }
            Some((_, list)) => agents::list(&home, list.get_flag("json")),
            None => agents::list(&home, matches.get_flag("json")),
        },
        Some(("run", matches)) => run::run(&home, matches, &access),
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
                terminal::say(String::from_utf8_lossy(&script).trim_end());
            }
            Ok(())
        }
        Some(("mcp", matches)) => match matches.subcommand() {
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
            Some((verb, matches)) => operation::run(noun, verb, matches, &access),
            None => Ok(()),
        },
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
                .value_parser(value_parser!(PathBuf))
                .help("Where everything is kept [default: ~/.oubliette]"),
        )
        .arg(
            Arg::new("url")
                .long("url")
                .value_name("URL")
                .env("OUBLIETTE_URL")
                .global(true)
                .help("The server to talk to [default: the one that runs on the data directory]"),
        )
        .arg(
            Arg::new("token")
                .long("token")
                .value_name("KEY")
                .env("OUBLIETTE_TOKEN")
                .hide_env_values(true)
                .global(true)
                .help("The API key to use [default: the admin token of the data directory]"),
        )
        .subcommand(serve::Options::augment_args(Command::new("serve")));
    command = command
        .subcommand(run::command())
        .subcommand(agent_command());
    for noun in operation::commands() {
        command = command.subcommand(noun);
    }
    command
        .mut_subcommand("token", |token| {
            token.subcommand(Command::new("reset-admin").about(
                "Make a new admin token on the data directory, without a server; the old one ends",
            ))
        })
        .mut_subcommand("session", |session| {
            session.subcommand(
                Command::new("attach")
                    .about("Follow a session live and talk to its agent")
                    .arg(Arg::new("SESSION").required(true).help("The session, by its id")),
            )
        })
        .subcommand(
            Command::new("mcp")
                .about("Connect MCP clients")
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(setup_command()),
        )
        .subcommand(
            Command::new("backup")
                .about("Copy the data directory into one file, also while a server runs")
                .arg(file_argument("FILE", "The file to write"))
                .arg(
                    Arg::new("without-files")
                        .long("without-files")
                        .action(ArgAction::SetTrue)
                        .help("Leave out the projects' files"),
                ),
        )
        .subcommand(
            Command::new("restore")
                .about("Put a backup in the place of the data directory")
                .arg(file_argument("FILE", "The file that `oubliette backup` wrote"))
                .arg(
                    Arg::new("replace")
                        .long("replace")
                        .action(ArgAction::SetTrue)
                        .help("Move aside what is there"),
                ),
        )
        .subcommand(
            Command::new("down")
                .about("End the server and all containers of the data directory; files stay")
                .arg(
                    Arg::new("remove")
                        .long("remove")
                        .action(ArgAction::SetTrue)
                        .help("Remove the containers too, with what was installed in them, and images built for them"),
                ),
        )
        .subcommand(
            Command::new("doctor").about("Check what this machine can do, and say what would help"),
        )
        .subcommand(
            Command::new("completions")
                .about("Print the completion script of a shell")
                .after_help("Example: oubliette completions bash > ~/.local/share/bash-completion/completions/oubliette")
                .arg(Arg::new("SHELL").required(true).value_parser(value_parser!(Shell))),
        )
}

fn agent_command() -> Command {
    let json = || {
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("Print the result as JSON, for programs")
    };
    Command::new("agent")
        .about("See which agents are there, and install one")
        .arg(json())
        .subcommand(Command::new("list").about("List the agents").arg(json()))
        .subcommand(
            Command::new("install")
                .about("Put an agent, at the version that was tested, where containers find it")
                .arg(
                    Arg::new("NAME")
                        .required(true)
                        .help("One of claude, codex, droid, gemini, opencode"),
                ),
        )
}

fn setup_command() -> Command {
    let clients: Vec<&str> = setup::names().collect();
    Command::new("setup")
        .about(
            "Write this server into the MCP configuration of a client, keeping all that is there",
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
                .help("Write the file of the project in DIR instead of the user's own"),
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Only show what would change"),
        )
}

fn file_argument(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help(help)
}

fn path<'a>(matches: &'a ArgMatches, name: &str) -> &'a PathBuf {
    static NOWHERE: PathBuf = PathBuf::new();
    matches.get_one(name).unwrap_or(&NOWHERE)
}

fn connect_client(matches: &ArgMatches, access: &client::Access) -> Result<(), Failure> {
    let client = matches
        .get_one::<String>("CLIENT")
        .map(String::as_str)
        .unwrap_or_default();
    let place = match matches.get_one::<PathBuf>("project") {
        Some(directory) => Place::Project(directory.clone()),
        None => Place::User,
    };
    let user = std::env::home_dir().unwrap_or_default();
    let connection = Connection {
        url: access.url()?,
        token: access.key()?,
    };
    let change = setup::plan(
        client,
        &place,
        &user,
        &|name| std::env::var_os(name),
        &connection,
    )
    .map_err(|error| Failure::of("nothing was changed", &error))?;
    eprintln!("{}", change.summary());
    if change.is_noop() || matches.get_flag("dry-run") {
        return Ok(());
    }
    change
        .apply()
        .map_err(|error| Failure::of("nothing was changed", &error))?;
    eprintln!("{}", change.note());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_commands_of_all_operations_fit_together() {
        super::command().debug_assert();
    }
}
