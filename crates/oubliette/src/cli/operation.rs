//! An operation as a command: arguments from the registry, the result as text or JSON.

use std::io::Write;

use clap::{Arg, ArgAction, ArgMatches, Command};
use oubliette_engine::operations::{self, Entry, Noun};
use serde_json::{Map, Value};

use super::client::{Access, Client};
use super::{arguments, changes, follow, interactive, names, schedules};
use crate::failure::Failure;
use crate::terminal;

/// A command per noun, with a subcommand per verb.
pub(super) fn commands() -> impl Iterator<Item = Command> {
    operations::NOUNS.iter().map(noun_command)
}

fn noun_command(noun: &'static Noun) -> Command {
    let verbs = operations::all()
        .iter()
        .filter(|entry| entry.noun() == noun.name);
    Command::new(noun.name)
        .about(noun.summary)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(verbs.map(verb_command))
}

fn verb_command(entry: &'static Entry) -> Command {
    let about = arguments::in_command_words(entry, entry.about);
    let first_sentence = about.split(". ").next().unwrap_or(&about);
    let command = Command::new(entry.verb())
        .about(first_sentence.trim_end_matches('.').to_owned())
        .long_about(about.clone())
        .args(arguments::from_schema(entry))
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("Print the result as JSON"),
        );
    if entry.name == "container_exec" {
        interactive::add_flags(command)
    } else {
        command
    }
}

pub(super) fn run(
    noun: &str,
    verb: &str,
    matches: &ArgMatches,
    access: &Access,
) -> Result<(), Failure> {
    let name = format!("{noun}_{verb}");
    let entry =
        operations::find(&name).ok_or_else(|| Failure::new(format!("unknown operation {name}")))?;
    let given = arguments::read(entry, matches)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    if entry.name == "container_exec" && matches.get_flag(interactive::INTERACTIVE) {
        let result = runtime.block_on(interactive::run(matches, access, entry, given));
        // A blocked write must not delay the exit.
        runtime.shutdown_background();
        return result;
    }
    let result = runtime.block_on(async {
        let client = Client::connect(access).await?;
        let given = names::resolve(entry, given, &client).await?;
        let result = call(&client, entry, given).await;
        client.close().await;
        result
    });
    let result = result?;
    terminal::print_line(&match entry.name {
        _ if matches.get_flag("json") => serde_json::to_string_pretty(&result).unwrap_or_default(),
        "container_exec" => return print_exec_result(&result),
        "session_cleanup" if !deleted_sessions(&result) => "No sessions were deleted.".to_owned(),
        "project_changes" => changes::format_changes(&result),
        "project_tasks" => changes::format_tasks(&result),
        name if noun == "schedule" => terminal::render(&schedules::for_display(name, &result)),
        _ => terminal::render(&result),
    });
    Ok(())
}

/// `oubliette session attach`.
pub(super) fn attach(matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let session = matches.get_one::<String>("SESSION").cloned();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let result = runtime.block_on(async {
        let client = Client::connect(access).await?;
        let result = follow::attach(&client, &session.unwrap_or_default()).await;
        client.close().await;
        result
    });
    // A blocked read of the terminal must not delay the exit.
    runtime.shutdown_background();
    result
}

/// Calls the operation. Fetches all pages of a list unless `limit` or `cursor` is given.
async fn call(
    client: &Client,
    entry: &Entry,
    mut given: Map<String, Value>,
) -> Result<Map<String, Value>, Failure> {
    let paged = given.contains_key("limit") || given.contains_key("cursor");
    let mut result = client.call(entry.name, given.clone()).await?;
    while !paged && let Some(cursor) = result.remove("next_cursor") {
        given.insert("cursor".to_owned(), cursor);
        for (name, value) in client.call(entry.name, given.clone()).await? {
            match (result.get_mut(&name), value) {
                (Some(Value::Array(rows)), Value::Array(more)) => rows.extend(more),
                (_, value) => drop(result.insert(name, value)),
            }
        }
    }
    Ok(result)
}

fn deleted_sessions(result: &Map<String, Value>) -> bool {
    let deleted = result.get("deleted").and_then(Value::as_array);
    deleted.is_some_and(|deleted| !deleted.is_empty())
}

/// Prints the output of a command in a container and returns its exit code.
fn print_exec_result(result: &Map<String, Value>) -> Result<(), Failure> {
    let text = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default();
    let _ = std::io::stdout().write_all(text("stdout").as_bytes());
    let _ = std::io::stderr().write_all(text("stderr").as_bytes());
    if result.get("truncated") == Some(&Value::Bool(true)) {
        eprintln!("(output truncated after 1 MiB; use -i to get all of it)");
    }
    if result.get("timed_out") == Some(&Value::Bool(true)) {
        return Err(Failure::new(
            "the command was killed at its timeout; raise it with --timeout-seconds, or use -i",
        ));
    }
    match result.get("exit_code").and_then(Value::as_i64) {
        Some(0) => Ok(()),
        code => Err(Failure::Exit(
            code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
        )),
    }
}
