//! An operation as a command: its arguments from the registry, its result for people or programs.

use std::io::Write;

use clap::{Arg, ArgAction, ArgMatches, Command};
use oubliette_engine::operations::{self, Entry};
use serde_json::{Map, Value};

use super::client::{Access, Client};
use super::{arguments, changes, dialogue, follow, names, schedules};
use crate::failure::Failure;
use crate::terminal;

/// A command per noun, with a command per verb in it.
pub(super) fn commands() -> Vec<Command> {
    let mut nouns: Vec<&str> = Vec::new();
    for entry in operations::all() {
        if !nouns.contains(&entry.noun()) {
            nouns.push(entry.noun());
        }
    }
    nouns.into_iter().map(noun_command).collect()
}

fn noun_command(noun: &'static str) -> Command {
    let verbs = operations::all()
        .iter()
        .filter(|entry| entry.noun() == noun);
    let about = match noun {
        "project" => "Make, list, show, change and delete projects",
        "container" => "Start, stop and look at a project's container, and run commands in it",
        "session" => "Give agents work, follow them, answer their questions and end them",
        "workspace" => "List and delete workspaces of a project",
        "schedule" => "Have agents work at set times, and see what came of it",
        "token" => "Make, list and end API tokens",
        "image" => "Build container images anew",
        "config" => "Show the limits that hold",
        "audit" => "Show who called what",
        _ => "More operations",
    };
    Command::new(noun)
        .about(about)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(verbs.map(verb_command))
}

fn verb_command(entry: &'static Entry) -> Command {
    let first = entry.about.split(". ").next().unwrap_or(entry.about);
    let command = Command::new(entry.verb())
        .about(first.trim_end_matches('.'))
        .long_about(entry.about)
        .args(arguments::of(entry))
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("Print the result as JSON, for programs"),
        );
    match entry.name {
        "container_exec" => dialogue::flags(command),
        _ => command,
    }
}

pub(super) fn run(
    noun: &str,
    verb: &str,
    matches: &ArgMatches,
    access: &Access,
) -> Result<(), Failure> {
    let name = format!("{noun}_{verb}");
    let entry = operations::find(&name)
        .ok_or_else(|| Failure::new(format!("there is no operation {name}")))?;
    let given = arguments::read(entry, matches)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::of("cannot start", &error))?;
    if entry.name == "container_exec" && matches.get_flag(dialogue::INTERACTIVE) {
        let ended = runtime.block_on(dialogue::run(matches, access, entry, given));
        // What still blocks there, a write for one, must not keep the terminal.
        runtime.shutdown_background();
        return ended;
    }
    let result = runtime.block_on(async {
        let client = Client::connect(access).await?;
        let given = names::resolve(entry, given, &client).await?;
        let result = call(&client, entry, given).await;
        client.close().await;
        result
    });
    let result = result?;
    terminal::say(&match entry.name {
        _ if matches.get_flag("json") => serde_json::to_string_pretty(&result).unwrap_or_default(),
        "container_exec" => return replay(&result),
        "project_changes" => changes::changes(&result),
        "project_tasks" => changes::tasks(&result),
        name if noun == "schedule" => terminal::render(&schedules::shown(name, &result)),
        _ => terminal::render(&result),
    });
    Ok(())
}

/// Follows a session and talks to it.
pub(super) fn attach(matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let session = matches.get_one::<String>("SESSION").cloned();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::of("cannot start", &error))?;
    let ended = runtime.block_on(async {
        let client = Client::connect(access).await?;
        let ended = follow::attach(&client, &session.unwrap_or_default()).await;
        client.close().await;
        ended
    });
    // A read of the terminal that nobody answers must not keep the command.
    runtime.shutdown_background();
    ended
}

/// Calls once, or, for a list of which no page was asked for, until its end.
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

/// Says what a command in a container said, and ends as it ended.
fn replay(result: &Map<String, Value>) -> Result<(), Failure> {
    let text = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default();
    let _ = std::io::stdout().write_all(text("stdout").as_bytes());
    let _ = std::io::stderr().write_all(text("stderr").as_bytes());
    if result.get("truncated") == Some(&Value::Bool(true)) {
        eprintln!("(the output was longer than 1 MiB; the rest is not shown)");
    }
    if result.get("timed_out") == Some(&Value::Bool(true)) {
        return Err(Failure::new(
            "the command took too long and was ended; see --timeout-seconds",
        ));
    }
    match result.get("exit_code").and_then(Value::as_i64) {
        Some(0) => Ok(()),
        code => Err(Failure::Exit(
            code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
        )),
    }
}
