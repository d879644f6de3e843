//! `oubliette run`: the whole thing in one go.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::client::{Access, Client, NoResult};
use super::follow::{Follower, outcome};
use super::tools::Tools;
use crate::failure::Failure;
use crate::home::Home;
use crate::serve::Server;

const PROJECT: &str = "playground";

pub(super) fn command() -> Command {
    let flag = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    Command::new("run")
        .about("Give an agent a prompt and watch it work, from nothing to the answer")
        .long_about(
            "Give an agent a prompt and watch it work. Uses the server that runs on the data \
             directory, or one of its own that ends with the command. The project is made if it is \
             not there. Ends with 0 when the turn succeeded.",
        )
        .after_help(
            "Examples:\n  oubliette run \"what is in this workspace?\"\n  oubliette run \"/sh uname \
             -a\"                      the demo agent runs what follows /sh\n  oubliette run --agent \
             opencode --project app \"fix the failing test\"\n  oubliette run --tool \
             'notify=./notify.sh' \"tell me when it is done\"",
        )
        .arg(Arg::new("PROMPT").required(true).num_args(1..).help("What the agent is to do"))
        .arg(flag("agent", "NAME", "The agent; the project's, or demo, if absent"))
        .arg(flag("project", "NAME", "The project; `playground` if absent"))
        .arg(flag("workspace", "ID", "The workspace; the default one if absent"))
        .arg(flag("model", "NAME", "The model the agent uses"))
        .arg(flag("autonomy", "LEVEL", "What the agent may do without asking: off, low, medium or high"))
        .arg(
            Arg::new("tool")
                .long("tool")
                .value_name("NAME=CMD")
                .action(ArgAction::Append)
                .help("Let the agent run a command of this machine as the tool `local_NAME`"),
        )
        .arg(
            Arg::new("continue")
                .long("continue")
                .action(ArgAction::SetTrue)
                .help("Go on with the newest session of the workspace"),
        )
}

pub(super) fn run(home: &Home, matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::of("cannot start", &error))?;
    let ended = runtime.block_on(async {
        let (client, own) = connect(home, access).await?;
        let ended = converse(&client, matches).await;
        client.close().await;
        if let Some(own) = own {
            own.stop().await;
        }
        ended
    });
    // A read of the terminal that nobody answers must not keep the command.
    runtime.shutdown_background();
    ended
}

/// The running server, or one of our own.
async fn connect(home: &Home, access: &Access) -> Result<(Client, Option<Server>), Failure> {
    match Client::connect(access).await {
        Ok(client) => Ok((client, None)),
        Err(NoResult::Lost(_)) if !access.names_a_server() => {
            let own = Server::start(home).await?;
            let client = Client::connect(access).await?;
            Ok((client, Some(own)))
        }
        Err(no) => Err(no.into()),
    }
}

async fn converse(client: &Client, matches: &ArgMatches) -> Result<(), Failure> {
    let given = |name: &str| matches.get_one::<String>(name).cloned();
    let words: Vec<&str> = matches
        .get_many::<String>("PROMPT")
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let name = given("project").unwrap_or_else(|| PROJECT.to_owned());
    let project = find_or_make(client, &name).await?;
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
    let tools = Tools::parse(matches.get_many::<String>("tool").into_iter().flatten())?;
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
    outcome(stopped, &session)
}

async fn find_or_make(client: &Client, name: &str) -> Result<String, Failure> {
    let make = Map::from_iter([("name".to_owned(), json!(name))]);
    let id = |project: &Map<String, Value>| {
        let id = project.get("project_id").and_then(Value::as_str);
        id.unwrap_or_default().to_owned()
    };
    match super::names::project(name, client).await {
        Ok(found) => Ok(found),
        Err(_) => {
            let made = client.call("project_create", make).await?;
            eprintln!("Made the project {name}.");
            Ok(id(&made))
        }
    }
}
