//! `oubliette run`: creates what is missing, sends a prompt and follows the turn to its end.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::client::{Access, CallError, Client};
use super::follow::{Follower, exit_result};
use super::local_tools::LocalTools;
use crate::failure::Failure;
use crate::home::Home;
use crate::serve::EmbeddedServer;

const DEFAULT_PROJECT: &str = "playground";

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
        .arg(Arg::new("PROMPT").required(true).num_args(1..).help("Prompt for the agent"))
        .arg(flag("agent", "NAME", "Agent to use [default: the project's agent, else demo]"))
        .arg(flag("project", "NAME", "Project, by name or id; created if it does not exist [default: playground]"))
        .arg(flag("workspace", "ID", "Workspace of the project [default: the default workspace]"))
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
async fn connect(
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

async fn run_turn(client: &Client, matches: &ArgMatches) -> Result<(), Failure> {
    let given = |name: &str| matches.get_one::<String>(name).cloned();
    let words: Vec<&str> = matches
        .get_many::<String>("PROMPT")
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let name = given("project").unwrap_or_else(|| DEFAULT_PROJECT.to_owned());
    let project = find_or_create_project(client, &name).await?;
    let mut spawn = Map::from_iter([
        ("project_id".to_owned(), json!(project)),
        ("prompt".to_owned(), json!(words.join(" "))),
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
    let tools = LocalTools::parse(matches.get_many::<String>("tool").into_iter().flatten())?;
    if let Some(context) = tools.context() {
        spawn.insert("context".to_owned(), context);
    }
    let spawned = client.call("session_spawn", spawn).await?;
    let warnings = spawned.get("warnings").and_then(Value::as_array);
    for warning in warnings.into_iter().flatten().filter_map(Value::as_str) {
        eprintln!("  {warning}");
    }
    let session = spawned.get("session_id").and_then(Value::as_str);
    let session = session.unwrap_or_default().to_owned();
    let since = spawned.get("last_event_index").and_then(Value::as_i64);
    let mut follower = Follower::new(client, &session, since.unwrap_or(-1))?.with_tools(tools);
    let stopped = follower.follow().await?;
    exit_result(stopped, &session)
}

async fn find_or_create_project(client: &Client, name: &str) -> Result<String, Failure> {
    let create = Map::from_iter([("name".to_owned(), json!(name))]);
    let id = |project: &Map<String, Value>| {
        let id = project.get("project_id").and_then(Value::as_str);
        id.unwrap_or_default().to_owned()
    };
    match super::names::project_id(name, client).await {
        Ok(found) => Ok(found),
        Err(_) => {
            let created = client.call("project_create", create).await?;
            eprintln!("Created the project {name}.");
            Ok(id(&created))
        }
    }
}
