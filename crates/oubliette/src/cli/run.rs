//! `oubliette run`: creates what is missing, sends a prompt and follows the turn to its end.

use std::fs::File;
use std::io::Read;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::access::Access;
use super::client::{CallError, Client};
use super::confirm;
use super::follow::{FollowEnd, Follower, exit_result};
use super::local_tools::LocalTools;
use super::names::{self, Lookup};
use crate::failure::Failure;
use crate::home::Home;
use crate::serve::EmbeddedServer;
use crate::terminal::printable;

const DEFAULT_PROJECT: &str = "playground";
const PROMPT_FILE: &str = "prompt-file";
const CREATE_WORKSPACE: &str = "create-workspace";
/// A longer prompt is refused by the server anyway.
const MAX_PROMPT_BYTES: u64 = 1 << 20;

pub(super) fn command() -> Command {
    let flag = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    Command::new("run")
        .about("Give an agent a prompt, follow its work and print its answer")
        .long_about(
            "Give an agent a prompt, follow its work and print its answer. Uses the server that is \
             running on the data directory; if there is none, starts one that ends with this command. \
             Creates the project if it does not exist. The exit code is 0 if the turn succeeded.",
        )
        .after_help(
            "Examples:\n  oubliette run \"what is in this workspace?\"\n  oubliette run \"/sh uname \
             -a\"                      the demo agent runs the command after /sh\n  oubliette run --agent \
             opencode --project app \"fix the failing test\"\n  oubliette run --tool \
             'notify=./notify.sh' \"tell me when it is done\"",
        )
        .arg(
            Arg::new("PROMPT")
                .required_unless_present(PROMPT_FILE)
                .num_args(1..)
                .help("Prompt for the agent; `-` reads it from the standard input"),
        )
        .arg(
            flag(PROMPT_FILE, "FILE", "Read the prompt from a file; `-` is the standard input")
                .conflicts_with("PROMPT"),
        )
        .arg(flag("agent", "NAME", "Agent to use [default: the project's agent, else demo]"))
        .arg(flag("project", "NAME", "Project, by name or id; created if it does not exist [default: playground]"))
        .arg(flag("workspace", "ID", "Workspace of the project [default: the default workspace]"))
        .arg(
            Arg::new(CREATE_WORKSPACE)
                .long(CREATE_WORKSPACE)
                .action(ArgAction::SetTrue)
                .help("Create the workspace if it does not exist: a clone of the default one's last commit, if that has a repository"),
        )
        .arg(flag("model", "NAME", "Model for the agent"))
        .arg(flag("autonomy", "LEVEL", "What the agent may do without asking: off, low, medium or high"))
        .arg(
            Arg::new("tool")
                .long("tool")
                .value_name("NAME=CMD")
                .action(ArgAction::Append)
                .help("Let the agent run CMD on this machine as the tool `local_NAME`; may be repeated"),
        )
        .arg(
            Arg::new("continue")
                .long("continue")
                .action(ArgAction::SetTrue)
                .help("Continue the newest session of the workspace"),
        )
}

pub(super) fn run(home: &Home, matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let ended = runtime.block_on(async {
        let (client, embedded) = connect(home, access).await?;
        let ended = run_turn(&client, matches).await;
        client.close().await;
        if let Some(embedded) = embedded {
            embedded.stop().await;
        }
        ended
    });
    // A blocked read of the terminal must not delay the exit.
    runtime.shutdown_background();
    ended
}

/// Connects to the running server, or starts an embedded one.
pub(super) async fn connect(
    home: &Home,
    access: &Access,
) -> Result<(Client, Option<EmbeddedServer>), Failure> {
    match Client::connect(access).await {
        Ok(client) => Ok((client, None)),
        Err(CallError::Unreachable(_)) if !access.has_explicit_url() => {
            let embedded = EmbeddedServer::start(home).await?;
            let client = Client::connect(access).await?;
            Ok((client, Some(embedded)))
        }
        Err(error) => Err(error.into()),
    }
}

/// The prompt: the words of the command line, or the contents of a file or of the standard input.
fn prompt(matches: &ArgMatches) -> Result<String, Failure> {
    let words = matches.get_many::<String>("PROMPT");
    let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
    let file = match words.as_slice() {
        [] => matches
            .get_one::<String>(PROMPT_FILE)
            .map_or("-", String::as_str),
        ["-"] => "-",
        words => return Ok(words.join(" ")),
    };
    let what = if file == "-" {
        "the standard input"
    } else {
        file
    };
    let failed = |error| Failure::with_cause(format!("cannot read the prompt from {what}"), &error);
    let source: Box<dyn Read> = if file == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(file).map_err(failed)?)
    };
    let mut text = String::new();
    let mut source = source.take(MAX_PROMPT_BYTES + 1);
    source.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_PROMPT_BYTES {
        return Err(Failure::new(format!(
            "the prompt in {what} is longer than 1 MiB; attach long texts as files of the workspace"
        )));
    }
    if text.trim().is_empty() {
        return Err(Failure::new(format!("there is no prompt in {what}")));
    }
    Ok(text)
}

async fn run_turn(client: &Client, matches: &ArgMatches) -> Result<(), Failure> {
    let given = |name: &str| matches.get_one::<String>(name).cloned();
    let prompt = prompt(matches)?;
    let name = given("project").unwrap_or_else(|| DEFAULT_PROJECT.to_owned());
    let project = find_or_create_project(client, &name).await?;
    let mut spawn = Map::from_iter([
        ("project_id".to_owned(), json!(project)),
        ("prompt".to_owned(), json!(prompt)),
        (
            "new_session".to_owned(),
            json!(!matches.get_flag("continue")),
        ),
    ]);
    for (flag, parameter) in [
        ("agent", "agent"),
        ("workspace", "workspace_id"),
        ("model", "model"),
        ("autonomy", "autonomy"),
    ] {
        if let Some(value) = given(flag) {
            spawn.insert(parameter.to_owned(), json!(value));
        }
    }
    if matches.get_flag(CREATE_WORKSPACE) {
        spawn.insert("create_workspace".to_owned(), json!(true));
    }
    let tools = LocalTools::parse(matches.get_many::<String>("tool").into_iter().flatten())?;
    if let Some(context) = tools.context() {
        spawn.insert("context".to_owned(), context);
    }
    let spawned = client.call("session_spawn", spawn).await?;
    let warnings = spawned.get("warnings").and_then(Value::as_array);
    for warning in warnings.into_iter().flatten().filter_map(Value::as_str) {
        eprintln!("  {}", printable(warning));
    }
    let session = spawned.get("session_id").and_then(Value::as_str);
    let session = session.unwrap_or_default().to_owned();
    let since = spawned.get("last_event_index").and_then(Value::as_i64);
    let mut follower = Follower::new(client, &session, since.unwrap_or(-1))?.with_tools(tools);
    let stopped = follower.follow().await?;
    if let FollowEnd::TurnEnded(completion) = &stopped
        && completion.stop_reason == "limit"
        && let Some(notice) = follower.budget_notice().await
    {
        eprintln!("{notice}");
        return Err(Failure::Exit(1));
    }
    exit_result(stopped, &session)
}

async fn find_or_create_project(client: &Client, name: &str) -> Result<String, Failure> {
    let create = Map::from_iter([("name".to_owned(), json!(name))]);
    let id = |project: &Map<String, Value>| {
        let id = project.get("project_id").and_then(Value::as_str);
        id.unwrap_or_default().to_owned()
    };
    let near = match names::find_project(name, client).await? {
        Lookup::Found(found) => return Ok(found),
        Lookup::Missing { near } => near,
    };
    if let Some(near) = &near
        && confirm::can_ask()
        && !confirm::ask(&format!(
            "There is no project {name}, but {near}. Create {name}?"
        ))?
    {
        return Err(Failure::new(format!(
            "nothing was created; use `--project '{near}'` for that project"
        )));
    }
    let created = client.call("project_create", create).await?;
    let other = near.map_or(String::new(), |near| format!(" There is also {near}."));
    eprintln!("Created the project {name}.{}", printable(&other));
    Ok(id(&created))
}
