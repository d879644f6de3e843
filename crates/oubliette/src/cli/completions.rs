//! Completions of the command line. The script of a shell calls this program, which knows the commands and asks
//! the server for the names of projects, sessions and the like.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use oubliette_agent::catalogue;
use serde_json::{Map, Value, json};

use super::access::Access;
use super::client::Client;
use super::names;
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::Home;
use crate::setup;
use crate::terminal::{self, output};

/// Set by the script when it asks for completions.
const VARIABLE: &str = "_OUBLIETTE_COMPLETE";
/// A server that takes longer is not waited for: the user has pressed a key.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_PROMPT_CHARS: usize = 60;

/// What the values of an argument are.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// Names of a list that the server has.
    Named(&'static str),
    Sessions,
    Agents,
    Clients,
}

/// The values of arguments, by their names in the definitions of commands.
fn values(command: &str, argument: &str) -> Option<Values> {
    Some(match argument {
        "project_id" | "project_flag" | "targets" => Values::Named("project"),
        "project" if command != "setup" && command != "remove" => Values::Named("project"),
        "session_id" | "parent_id" | "SESSION" => Values::Sessions,
        "schedule_id" => Values::Named("schedule"),
        "token_id" => Values::Named("token"),
        "credential_refs" | "git_credential" | "credential" => Values::Named("credential"),
        "name" if command == "remove" => Values::Named("credential"),
        "agent" => Values::Agents,
        "NAME" if matches!(command, "install" | "models" | "login") => Values::Agents,
        "CLIENT" => Values::Clients,
        _ => return None,
    })
}

pub(super) fn command() -> Command {
    let shells: Vec<&str> = Shells::builtins().names().collect();
    Command::new("completions")
        .about("Print the completion script for a shell")
        .long_about(
            "Print the completion script for a shell. It completes commands and options, and the names of projects, \
             sessions, agents and credentials of the running server.",
        )
        .after_help(
            "Examples:\n  source <(oubliette completions bash)        in ~/.bashrc\n  source <(oubliette \
             completions zsh)         in ~/.zshrc\n  oubliette completions fish | source         in \
             ~/.config/fish/config.fish",
        )
        .arg(Arg::new("SHELL").required(true).value_parser(PossibleValuesParser::new(shells)))
}

/// Prints the script of a shell.
pub(super) fn print_script(matches: &ArgMatches) -> Result<(), Failure> {
    let name = matches.get_one::<String>("SHELL").cloned();
    let name = name.unwrap_or_default();
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&name) else {
        return Ok(());
    };
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "oubliette", "oubliette", "oubliette", &mut script)
        .map_err(|error| Failure::with_cause("cannot write the script", &error))?;
    let script = String::from_utf8_lossy(&script).trim_end().to_owned();
    if output::is_json() {
        terminal::print_json(&json!({ "shell": name, "script": script }));
    } else {
        terminal::print_line(&script);
    }
    Ok(())
}

/// Answers a shell that asks for completions; whether one did.
pub(super) fn answer(arguments: &[OsString]) -> Result<bool, Failure> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(false);
    }
    let directory = std::env::current_dir().ok();
    let factory = || with_values(super::command());
    let completed = CompleteEnv::with_factory(factory)
        .var(VARIABLE)
        .bin("oubliette")
        .try_complete(arguments.iter().cloned(), directory.as_deref());
    Ok(completed?)
}

/// Gives every argument that names something its values.
fn with_values(command: Command) -> Command {
    let name = command.get_name().to_owned();
    command
        .mut_args(|argument| match values(&name, argument.get_id().as_str()) {
            Some(values) => argument.add(ArgValueCompleter::new(move |typed: &OsStr| {
                candidates(values, &typed.to_string_lossy())
            })),
            None => argument,
        })
        .mut_subcommands(with_values)
}

fn candidates(values: Values, typed: &str) -> Vec<CompletionCandidate> {
    let found: Vec<(String, String)> = match values {
        Values::Agents => catalogue()
            .into_iter()
            .map(|agent| (agent.name, agent.about))
            .collect(),
        Values::Clients => setup::names()
            .map(|name| {
                let title = setup::title(name).unwrap_or_default();
                (name.to_owned(), title.to_owned())
            })
            .collect(),
        Values::Sessions => ask("session").iter().filter_map(session).collect(),
        Values::Named(noun) => {
            let rows = ask(noun);
            rows.iter().filter_map(|row| named(noun, row)).collect()
        }
    };
    let fitting = found
        .into_iter()
        .filter(|(name, _)| name.starts_with(typed) && is_plain_word(name));
    fitting
        .map(|(name, about)| {
            let about = terminal::printable(&about).replace(['\n', '\t'], " ");
            let about = (!about.is_empty()).then(|| about.into());
            CompletionCandidate::new(name).help(about)
        })
        .collect()
}

/// A row by its name, or by its id if the name is more than a word.
fn named(noun: &str, row: &Map<String, Value>) -> Option<(String, String)> {
    let is_active = row.get("status").is_none_or(|status| status == "active");
    if noun == "token" && !is_active {
        return None;
    }
    let name = text(row, "name")?;
    if is_plain_word(&name) {
        let about = text(row, "description").or_else(|| text(row, "kind"));
        return Some((name, about.unwrap_or_default()));
    }
    let id = text(row, &format!("{noun}_id")).or_else(|| text(row, "id"))?;
    Some((id, name))
}

/// Whether no shell takes a text for anything but one argument. Bash puts it on the command line unquoted, and
/// agents choose names.
fn is_plain_word(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain)
}

fn text(row: &Map<String, Value>, name: &str) -> Option<String> {
    row.get(name).and_then(Value::as_str).map(str::to_owned)
}

/// A session with its status, and its title or prompt if the list has one.
fn session(row: &Map<String, Value>) -> Option<(String, String)> {
    let id = text(row, "session_id")?;
    let words = ["title", "prompt", "agent"];
    let words = words.iter().find_map(|name| text(row, name));
    let words: String = words
        .unwrap_or_default()
        .chars()
        .take(MAX_PROMPT_CHARS)
        .collect();
    let status = text(row, "status").unwrap_or_default();
    Some((id, format!("{status}  {words}")))
}

/// The rows of a list of the server; none if it does not answer.
fn ask(noun: &str) -> Vec<Map<String, Value>> {
    let asked = block_on(async {
        let Ok(access) = access() else {
            return Vec::new();
        };
        let rows = async {
            let client = Client::connect(&access).await.ok()?;
            let rows = match noun {
                // This list has no pages.
                "credential" => rows_of(&client, "credential_list", "credentials").await,
                noun => names::all_rows(noun, &client).await.ok(),
            };
            client.close().await;
            rows
        };
        let rows = tokio::time::timeout(SERVER_TIMEOUT, rows).await;
        rows.ok().flatten().unwrap_or_default()
    });
    asked.unwrap_or_default()
}

async fn rows_of(client: &Client, operation: &str, field: &str) -> Option<Vec<Map<String, Value>>> {
    let mut result = client.call(operation, Map::new()).await.ok()?;
    let rows = result.remove(field)?;
    serde_json::from_value(rows).ok()
}

/// The server that the command line being typed means.
fn access() -> Result<Access, Failure> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let given = |name: &str| -> Option<OsString> {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).cloned()
    };
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let directory = given("--data-dir").or_else(|| variable("OUBLIETTE_HOME"));
    let home = Home::find(directory.map(PathBuf::from).as_deref())?;
    let option = |flag: &str, name: &str| {
        let value = given(flag).or_else(|| variable(name))?;
        value.into_string().ok()
    };
    Ok(Access::new(
        &home,
        option("--url", "OUBLIETTE_URL"),
        option("--token", "OUBLIETTE_TOKEN"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_shell_would_run_is_offered_as_an_id() {
        let row = |name: &str| {
            let row = json!({ "schedule_id": "0a1b", "name": name, "description": "nightly" });
            row.as_object().unwrap().clone()
        };
        assert_eq!(
            named("schedule", &row("nightly-1.2_x")),
            Some(("nightly-1.2_x".to_owned(), "nightly".to_owned()))
        );
        for name in [
            "$(id)", "`id`", "a b", "a;b", "a\u{b}b", "-rf", "~", "*", "é",
        ] {
            let offered = Some(("0a1b".to_owned(), name.to_owned()));
            assert_eq!(named("schedule", &row(name)), offered, "{name}");
        }
        // Credentials have no id.
        let row = json!({ "name": "$(id)" });
        assert_eq!(named("credential", row.as_object().unwrap()), None);
    }
}
