//! The command line: one command per operation, generated from the registry, and a few others.

mod access;
mod arguments;
mod attach;
mod checkout;
mod client;
mod completions;
mod confirm;
mod credentials;
#[cfg(test)]
mod documented;
mod event_lines;
mod event_log;
mod event_printer;
mod follow;
mod help;
mod interactive;
mod last_session;
mod local_tools;
mod login;
mod man;
mod mcp;
mod names;
mod openspec;
mod operation;
mod permission;
mod projects;
mod ps;
mod reconnecting;
mod root_help;
mod run;
mod schedules;
mod server_checks;
mod session_table;
mod session_tail;
mod show;
mod stdio;
mod suggest;
mod transcript;
mod variables;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, ColorChoice, Command, FromArgMatches, value_parser};
use oubliette_model::ApiKey;

use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::output;
use crate::{agents, archive, doctor, down, reset, serve, status, up};

const GLOBAL_OPTIONS: &str = "Global options";

/// Runs one command.
pub(crate) fn run(arguments: Vec<OsString>) -> Result<(), Failure> {
    if completions::answer(&arguments)? {
        return Ok(());
    }
    // Known before the arguments are parsed: the help and the errors of that have colours, too.
    let words = arguments.iter().take_while(|word| *word != "--");
    let color = if words.into_iter().any(|word| word == "--no-color") {
        ColorChoice::Never
    } else {
        ColorChoice::Auto
    };
    let matches = command()
        .color(color)
        .try_get_matches_from(&arguments)
        .map_err(|error| suggest::add_to(error, &arguments))?;
    output::Choices {
        json: matches.get_flag("json"),
        quiet: matches.get_flag("quiet"),
        no_color: matches.get_flag("no-color"),
    }
    .set();
    refuse_unused_access(&matches)?;
    refuse_other_tokens(&matches)?;
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
                agents::models(&home, &name.unwrap_or_default())
            }
            _ => agents::list(&home),
        },
        Some(("run", matches)) => run::run(&home, matches, &access),
        Some((verb @ ("diff" | "apply" | "fetch" | "push"), matches)) => {
            checkout::run_take(verb, &home, matches, &access)
        }
        Some(("ps", matches)) => ps::run(matches, &access),
        Some(("cp", matches)) => checkout::run_copy(matches, &access),
        Some(("backup", matches)) => archive::backup(
            &home,
            path(matches, "FILE"),
            !matches.get_flag("without-files"),
        ),
        Some(("restore", matches)) => {
            archive::restore(&home, path(matches, "FILE"), matches.get_flag("replace"))
        }
        Some(("doctor", _)) => {
            let ask_server = || server_checks::run(&access);
            doctor::run(&home, &ask_server)
        }
        Some(("up", matches)) => up::run(&home, matches),
        Some(("status", _)) => status::run(&home),
        Some(("down", matches)) => {
            if matches.get_flag("remove") {
                confirm::require_yes(
                    "Remove all containers, with everything installed in them?",
                    matches,
                )?;
            }
            down::run(&home, matches.get_flag("remove"))
        }
        Some(("completions", matches)) => completions::print_script(matches),
        Some(("man", matches)) => man::run(command(), path(matches, "DIR")),
        Some(("mcp", matches)) => mcp::run(&home, matches, &access),
        Some(("token", matches))
            if let Some(matches) = matches.subcommand_matches("reset-admin") =>
        {
            confirm::require_yes("Replace the admin token and revoke the old one?", matches)?;
            reset::run(&home)
        }
        Some(("session", matches)) if let Some(attach) = matches.subcommand_matches("attach") => {
            attach::run(attach, &home, &access)
        }
        Some(("session", matches)) if let Some(show) = matches.subcommand_matches("show") => {
            show::run(show, &home, &access)
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
        Some(("agent", agent)) if agent.subcommand_matches("login").is_some() => return Ok(()),
        Some((
            name @ ("serve" | "up" | "status" | "agent" | "backup" | "restore" | "down" | "doctor"
            | "completions"),
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

/// Refuses the name of a token where its key belongs.
fn refuse_other_tokens(matches: &ArgMatches) -> Result<(), Failure> {
    let is_given = matches.value_source("token") == Some(ValueSource::CommandLine);
    let given = matches.get_one::<String>("token").filter(|_| is_given);
    if given.is_none_or(|given| given.starts_with(ApiKey::PREFIX)) {
        return Ok(());
    }
    let hint = match matches.subcommand_name() {
        Some("audit") => "; the calls of one token are listed with --by NAME",
        _ => "",
    };
    Err(Failure::new(format!(
        "--token takes an API key, which starts with `{}`, not a name{hint}",
        ApiKey::PREFIX
    )))
}

fn command() -> Command {
    let mut command = root_help::add_to(
        Command::new("oubliette")
            .version(env!("CARGO_PKG_VERSION"))
            .subcommand_required(true)
            .arg_required_else_help(true)
            .args(global_options())
            .subcommand(
                serve::Options::augment_args(Command::new("serve")).after_help(help::examples(&[
                    "oubliette serve",
                    "oubliette serve --listen 0.0.0.0:7433",
                ])),
            )
            .subcommand(run::command())
            .subcommand(ps::command())
            .subcommands(checkout::take_commands())
            .subcommand(checkout::copy_command())
            .subcommand(agent_command())
            .subcommands(operation::commands())
            .subcommand(mcp::command())
            .subcommands(data_commands())
            .subcommand(completions::command())
            .subcommand(man::command()),
    );
    command = command
        .mut_subcommand("token", |token| {
            token.subcommand(
                Command::new("reset-admin")
                    .about("Replace the admin token, for example if it is lost")
                    .long_about(
                        "Replace the admin token, for example if it is lost. A server that a command has started is \
                         stopped first, and the next command starts another; stop one of `oubliette serve` or \
                         `oubliette up` yourself.",
                    )
                    .after_help(help::examples(&["oubliette token reset-admin"]))
                    .arg(confirm::yes_flag()),
            )
        })
        .mut_subcommand("session", |session| {
            session
                .subcommand(show::command())
                .subcommand(attach::command())
        });
    command
}

/// Options that every command takes.
fn global_options() -> Vec<Arg> {
    let option = |name: &'static str| {
        Arg::new(name)
            .long(name)
            .global(true)
            .help_heading(GLOBAL_OPTIONS)
    };
    vec![
        option("data-dir")
            .value_name("DIR")
            .env("OUBLIETTE_HOME")
            .value_parser(value_parser!(PathBuf))
            .help("Directory with database, configuration and projects [default: ~/.oubliette]"),
        option("url")
            .value_name("URL")
            .env("OUBLIETTE_URL")
            .help("URL of the server [default: the one that runs on the data directory]"),
        option("token")
            .value_name("KEY")
            .env("OUBLIETTE_TOKEN")
            .hide_env_values(true)
            .help("API key to use [default: the admin token of the data directory]"),
        option("json")
            .action(ArgAction::SetTrue)
            .help("Print the result as JSON"),
        option("quiet")
            .short('q')
            .action(ArgAction::SetTrue)
            .help("Print only results, warnings and errors"),
        option("no-color")
            .action(ArgAction::SetTrue)
            .help("Use no colours; the variable NO_COLOR has the same effect"),
        option(access::NO_AUTOSTART)
            .action(ArgAction::SetTrue)
            .help("Do not start a server in the background if none is running"),
    ]
}

/// The commands that work on the data directory itself.
fn data_commands() -> Vec<Command> {
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    vec![
        Command::new("backup")
            .about("Back up the data directory to one file")
            .long_about("Back up the data directory to one file. The server may be running.")
            .after_help(help::examples(&[
                "oubliette backup ~/oubliette.tar",
                "oubliette backup small.tar --without-files",
            ]))
            .arg(file_argument("FILE", "File to write; must not exist"))
            .arg(switch("without-files", "Leave out the files of projects")),
        Command::new("restore")
            .about("Restore the data directory from a backup")
            .after_help(help::examples(&[
                "oubliette restore ~/oubliette.tar",
                "oubliette --data-dir /tmp/other restore ~/oubliette.tar",
            ]))
            .arg(file_argument("FILE", "File written by `oubliette backup`"))
            .arg(switch(
                "replace",
                "Move the existing database and files to a subdirectory first",
            )),
        up::command(),
        status::command(),
        Command::new("down")
            .about("Stop the server and all containers; files stay")
            .after_help(help::examples(&["oubliette down"]))
            .arg(switch(
                "remove",
                "Also remove the containers, with everything installed in them, and the images built for them",
            ))
            .arg(confirm::yes_flag()),
        Command::new("doctor")
            .about("Check this machine and the running server, and suggest fixes")
            .after_help(help::examples(&["oubliette doctor"])),
    ]
}

fn agent_command() -> Command {
    Command::new("agent")
        .about("List agents, install one, and sign in with one")
        .after_help(help::examples(&[
            "oubliette agent list",
            "oubliette agent install claude",
            "oubliette agent login claude",
        ]))
        .subcommand(login::command())
        .subcommand(Command::new("list").about("List the agents and whether they are installed"))
        .subcommand(
            Command::new("models")
                .about("List the models that an agent offers")
                .long_about(
                    "List the models that an agent offers, as it said when it was started last.",
                )
                .after_help(help::examples(&["oubliette agent models claude"]))
                .arg(Arg::new("NAME").required(true).help("The agent's name")),
        )
        .subcommand(
            Command::new("install")
                .about("Install an agent, at the tested version, for use in containers")
                .after_help(help::examples(&["oubliette agent install claude"]))
                .arg(
                    Arg::new("NAME")
                        .required(true)
                        .help(format!("One of {}", agents::installable().join(", "))),
                ),
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

#[cfg(test)]
mod tests {
    use oubliette_engine::operations;

    #[test]
    fn the_command_tree_is_valid() {
        super::command().debug_assert();
    }

    #[test]
    fn the_help_of_agent_install_names_every_agent_that_can_be_installed() {
        let mut command = super::agent_command();
        let install = command.find_subcommand_mut("install").unwrap();
        let help = install.render_long_help().to_string();
        for agent in oubliette_agent::catalogue() {
            let is_named = help.contains(&format!(" {}", agent.name));
            assert_eq!(is_named, agent.package.is_some(), "{}: {help}", agent.name);
        }
    }

    #[test]
    fn an_address_is_refused_only_by_commands_that_use_none() {
        let check = |words: &[&str]| {
            let words = ["oubliette", "--url", "http://127.0.0.1:9"]
                .iter()
                .chain(words);
            let matches = super::command().try_get_matches_from(words).unwrap();
            super::refuse_unused_access(&matches)
        };
        assert!(check(&["agent", "list"]).is_err());
        assert!(check(&["token", "reset-admin"]).is_err());
        assert!(check(&["agent", "login", "claude"]).is_ok());
        assert!(check(&["project", "list"]).is_ok());
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
            let verb = entry.verb().replace('_', "-");
            assert!(group.find_subcommand(&verb).is_some(), "{}", entry.name);
        }
    }
}
