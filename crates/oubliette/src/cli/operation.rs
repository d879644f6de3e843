//! An operation as a command: arguments from the registry, the result as text or JSON.

use std::io::Write;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, value_parser};
use oubliette_engine::UNKNOWN_CREDENTIAL_KIND;
use oubliette_engine::operations::{self, Entry, Noun};
use serde_json::{Map, Value};

use super::access::Access;
use super::client::{CallError, Client};
use super::{
    arguments, checkout, confirm, credentials, help, interactive, last_session, names, openspec,
    permit, projects, schedules, session_table, show,
};
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::{self, output, printable};

/// How long the server may take to answer.
const TIMEOUT: &str = "call_timeout";
/// Groups of commands that only programs use.
const FOR_PROGRAMS: [&str; 1] = ["caller"];

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
        .hide(FOR_PROGRAMS.contains(&noun.name))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(verbs.map(verb_command))
}

fn verb_command(entry: &'static Entry) -> Command {
    let mut command = Command::new(entry.verb().replace('_', "-"));
    match help::command(entry) {
        Some(text) => {
            command = command.about(text.about);
            if !text.details.is_empty() {
                command = command.long_about(format!("{}. {}", text.about, text.details));
            }
            if !text.examples.is_empty() {
                command = command.after_help(help::examples(text.examples));
            }
        }
        None => {
            let about = arguments::in_command_words(entry, entry.about);
            let first_sentence = about.split(". ").next().unwrap_or(&about);
            command = command
                .about(first_sentence.trim_end_matches('.').to_owned())
                .long_about(about.clone());
        }
    }
    command = command.args(arguments::from_schema(entry));
    if !entry
        .properties()
        .any(|(name, _)| name == "timeout_seconds")
    {
        command = command.arg(
            Arg::new(TIMEOUT)
                .long("timeout")
                .value_name("SECONDS")
                .value_parser(value_parser!(u64).range(1..))
                .help("Give up if the server has not answered after this time"),
        );
    }
    let command = confirm::add_flag(entry, command);
    match entry.name {
        "container_exec" => interactive::add_flags(command),
        "credential_add" => credentials::add_flags(command),
        "schedule_create" => command.override_usage(
            "oubliette schedule create [OPTIONS] --target <PROJECT>\n           <NAME> <CRON> <PROMPT>",
        ),
        "session_events" => show::add_flags(command),
        "session_permit" => permit::add_flags(command),
        _ => command,
    }
}

/// The operation of a command.
fn find_entry(noun: &str, verb: &str) -> Option<&'static Entry> {
    operations::find(&format!("{noun}_{}", verb.replace('-', "_")))
}

/// Waits for a result as long as the user wants to.
async fn within<T>(
    matches: &ArgMatches,
    work: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let given = matches.try_get_one::<u64>(TIMEOUT).ok().flatten();
    let Some(seconds) = given.copied() else {
        return work.await;
    };
    let waited = tokio::time::timeout(Duration::from_secs(seconds), work);
    waited.await.unwrap_or_else(|_| {
        Err(CallError::Rejected(Failure::new(format!(
            "the server has not answered within {seconds} s; what was asked for may still be done"
        ))))
    })
}

pub(super) fn run(
    noun: &str,
    verb: &str,
    matches: &ArgMatches,
    home: &Home,
    access: &Access,
) -> Result<(), Failure> {
    let entry = find_entry(noun, verb)
        .ok_or_else(|| Failure::new(format!("there is no command {noun} {verb}")))?;
    let mut given = arguments::read(entry, matches)?;
    confirm::before(entry, matches)?;
    if noun == "credential" {
        if entry.name == "credential_add" {
            // Before the value is asked for: it would be typed for nothing.
            let kind = given.get("kind").and_then(Value::as_str);
            if !kind.is_some_and(credentials::is_built_in_kind)
                && let Err(Failure::Failed(refusal)) =
                    call_at_once(access, entry, credentials::kind_check(&given))
                && refusal.contains(UNKNOWN_CREDENTIAL_KIND)
            {
                return Err(Failure::new(refusal));
            }
            given = credentials::with_value(matches, given)?;
        }
        let result = call_at_once(access, entry, given)?;
        if output::is_json() {
            terminal::print_json(&result);
            return Ok(());
        }
        terminal::print_line(&match entry.name {
            "credential_list" => terminal::render(&result),
            name => credentials::describe(name, &result),
        });
        return Ok(());
    }
    if entry.name == "container_exec" && !interactive::is_single_call(matches) {
        return block_on(interactive::run(matches, access, given))?;
    }
    if entry.name == "session_events" && show::wants_transcript(matches) {
        return block_on(show::events(matches, given, home, access))?;
    }
    let work = async {
        // Until the call is made, nothing can be left running.
        let client = Client::connect(access).await;
        let client = client.map_err(|error| CallError::Rejected(error.into()))?;
        let given = last_session::resolve_parameters(given, home, access, &client).await;
        let mut given = given.map_err(CallError::Rejected)?;
        if entry.name == "session_permit" {
            let completed = permit::with_request(given, &client).await;
            given = completed.map_err(CallError::Rejected)?;
        }
        let named_session = given.get("session_id").cloned();
        let replaced = replaced_project(&client, entry, &given).await?;
        let mut result = call(&client, entry, given).await;
        if let Ok(result) = &result
            && entry.noun() == "session"
        {
            last_session::remember_result(result, named_session.as_ref(), home, access);
        }
        if !output::is_json()
            && let Ok(mut shown) = result
        {
            if entry.name == "session_get"
                && let Some(waiting) = show::describe_waiting(&client, &shown).await
            {
                shown.insert("waiting_for".to_owned(), waiting.into());
            }
            result = Ok(names::show_names(entry, shown, &client).await);
        }
        client.close().await;
        Ok::<_, CallError>((result?, replaced))
    };
    let result = block_on(within(matches, work))?;
    let (mut result, replaced) = result.map_err(|error| match error {
        CallError::Unreachable(failure) if entry.name == "container_exec" => {
            left_running(matches, failure)
        }
        other => other.into(),
    })?;
    if let Some(before) = replaced {
        let removed = projects::removed_variables(&before, &result);
        if !removed.is_empty() {
            eprintln!(
                "Removed from the environment: {}. An update replaces all variables.",
                printable(&removed.join(", "))
            );
        }
    }
    if noun == "token" || noun == "project" && result.contains_key("env_names") {
        print_warnings(entry, &result);
    }
    if output::is_json() {
        terminal::print_json(&result);
        return Ok(());
    }
    if noun == "token" {
        // They were printed already.
        result.remove("warnings");
    }
    if let Some(id) = created_id(entry, &result) {
        terminal::print_line(&printable(id));
        return Ok(());
    }
    terminal::print_line(&match entry.name {
        "container_exec" => return print_exec_result(&result),
        "session_cleanup" if !deleted_sessions(&result) => "No sessions were deleted.".to_owned(),
        "session_list" => session_table::format(&result),
        "session_diff" => checkout::describe_diff(&result),
        "session_events" => terminal::render(&show::events_for_table(result)),
        "project_changes" => openspec::format_changes(&result),
        "project_tasks" => openspec::format_tasks(&result),
        "project_create" | "project_get" | "project_update" => {
            terminal::render(&projects::for_display(&result))
        }
        name if noun == "schedule" => terminal::render(&schedules::for_display(name, &result)),
        _ => terminal::render(&result),
    });
    Ok(())
}

/// Calls an operation over a connection of its own.
fn call_at_once(
    access: &Access,
    entry: &Entry,
    given: Map<String, Value>,
) -> Result<Map<String, Value>, Failure> {
    block_on(async {
        let client = Client::connect(access).await?;
        let result = call(&client, entry, given).await;
        client.close().await;
        result.map_err(Into::into)
    })?
}

/// The project before an update that replaces its variables.
async fn replaced_project(
    client: &Client,
    entry: &Entry,
    given: &Map<String, Value>,
) -> Result<Option<Map<String, Value>>, CallError> {
    if entry.name != "project_update" || !given.contains_key("env") {
        return Ok(None);
    }
    let project = given.get("project_id").cloned().unwrap_or_default();
    let get = Map::from_iter([("project_id".to_owned(), project)]);
    client.call("project_get", get).await.map(Some)
}

/// The failure of a command whose server stopped: the command itself runs on.
fn left_running(matches: &ArgMatches, failure: Failure) -> Failure {
    let Failure::Failed(sentence) = failure else {
        return failure;
    };
    let given = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let result = match given("exec_id") {
        Some(id) => format!("run this again with `--exec {id}` to get its result"),
        None => format!(
            "`oubliette container logs {}` then shows its output",
            given("project_id").unwrap_or_default()
        ),
    };
    Failure::new(format!(
        "{sentence}. If the command had started, it runs on in the container: {result}"
    ))
}

/// Prints what a result warns of.
fn print_warnings(entry: &'static Entry, result: &Map<String, Value>) {
    let warnings = result.get("warnings").and_then(Value::as_array);
    for warning in warnings.into_iter().flatten().filter_map(Value::as_str) {
        let warning = arguments::in_command_words(entry, warning);
        eprintln!("warning: {}", printable(&warning));
    }
}

/// Calls the operation. Fetches all pages of a list unless `limit` or `cursor` is given.
async fn call(
    client: &Client,
    entry: &Entry,
    mut given: Map<String, Value>,
) -> Result<Map<String, Value>, CallError> {
    let paged = given.contains_key("limit") || given.contains_key("cursor");
    let mut result = client.call(entry.name, given.clone()).await?;
    while !paged && let Some(cursor) = result.remove("next_cursor") {
        given.insert("cursor".to_owned(), cursor);
        for (name, value) in client.call(entry.name, given.clone()).await? {
            match (result.get_mut(&name), value) {
                (Some(Value::Array(rows)), Value::Array(more)) => rows.extend(more),
                (Some(Value::String(patch)), Value::String(more)) if name == "diff" => {
                    patch.push_str(&more);
                }
                (_, value) => drop(result.insert(name, value)),
            }
        }
    }
    Ok(result)
}

/// With `--quiet`: the id of what a command has created. The key of a token is shown only once, so it is not left out.
fn created_id<'a>(entry: &Entry, result: &'a Map<String, Value>) -> Option<&'a str> {
    let id = match entry.name {
        "project_create" => "project_id",
        "workspace_create" => "workspace_id",
        "schedule_create" => "schedule_id",
        "session_spawn" | "session_fork" => "session_id",
        _ => return None,
    };
    result.get(id)?.as_str().filter(|_| output::is_quiet())
}

fn deleted_sessions(result: &Map<String, Value>) -> bool {
    let deleted = result.get("deleted").and_then(Value::as_array);
    deleted.is_some_and(|deleted| !deleted.is_empty())
}

/// Prints the output of a command in a container and returns its exit code.
fn print_exec_result(result: &Map<String, Value>) -> Result<(), Failure> {
    let text = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default();
    terminal::print(text("stdout"));
    let _ = std::io::stderr().write_all(text("stderr").as_bytes());
    if result.get("truncated") == Some(&Value::Bool(true)) {
        eprintln!(
            "(output truncated after 1 MiB; leave out the options for programs to get all of it)"
        );
    }
    if let Some(reached) = result.get("limit_reached").and_then(Value::as_str) {
        let operation = operations::find("container_exec");
        let reached = operation.map_or(reached.to_owned(), |entry| {
            arguments::in_command_words(entry, reached)
        });
        eprintln!("({})", printable(&reached));
    }
    if result.get("timed_out") == Some(&Value::Bool(true)) {
        return Err(Failure::new(
            "the command was killed at its timeout; raise it with --timeout",
        ));
    }
    match result.get("exit_code").and_then(Value::as_i64) {
        Some(0) => Ok(()),
        code => Err(Failure::Exit(
            code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
        )),
    }
}
