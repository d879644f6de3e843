//! `oubliette run`: creates what is missing, sends a prompt and follows the turn to its end.

mod prompt;
mod summary;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use oubliette_model::{nearest, quoted};
use serde_json::{Map, Value, json};

use self::summary::Summary;
use super::access::{Access, ServerAddress};
use super::checkout::{self, Checkout};
use super::client::Client;
use super::confirm;
use super::follow::{FollowEnd, Follower, exit_result};
use super::last_session;
use super::local_tools::LocalTools;
use super::names::{self, Lookup};
use crate::executor::block_on_with_threads;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::output::{self, note};
use crate::terminal::printable;

const DEFAULT_PROJECT: &str = "playground";
const PROMPT_FILE: &str = "prompt-file";
const CREATE_WORKSPACE: &str = "create-workspace";
const MOUNT: &str = "mount";
const NO_LONGER_IGNORED: &str = "no-longer-ignored";

pub(super) fn command() -> Command {
    let flag = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    Command::new("run")
        .about("Give an agent a prompt, follow its work and print its answer")
        .long_about(
            "Give an agent a prompt, follow its work and print its answer. In a git repository the agent works on \
             a copy of its files, uncommitted ones too, in a project that is created for it; nothing here \
             changes until `oubliette apply` or `oubliette fetch`. Elsewhere it works in the project \
             `playground`. The exit code is 0 if the turn succeeded.",
        )
        .after_help(super::help::examples(&[
            "oubliette run 'fix the failing test'         in a repository: on a copy",
            "oubliette run --continue 'now add another'   the same session and copy",
            "oubliette run --mount 'fix the failing test' in the directory itself",
            "oubliette run --empty '/sh uname -a'         the demo agent runs a command",
            "oubliette run --agent opencode --project app 'fix the failing test'",
            "oubliette run --prompt-file task.md --file design.png --timeout 600",
            "oubliette run --tool 'notify=./notify.sh' 'tell me when it is done'",
        ]))
        .arg(
            Arg::new("PROMPT")
                .num_args(1..)
                .help("Prompt for the agent; `-` reads it from the standard input [default: opens $EDITOR on a terminal]"),
        )
        .arg(
            flag(PROMPT_FILE, "FILE", "Read the prompt from a file; `-` is the standard input")
                .conflicts_with("PROMPT"),
        )
        .arg(
            flag("file", "FILE", "Give the agent this file, too; may be repeated")
                .action(ArgAction::Append)
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(switch("here", "Work on a copy of the current directory, also if it is not a git repository"))
        .arg(
            flag("dir", "DIR", "Work on a copy of DIR")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("here"),
        )
        .arg(switch("empty", "Do not send files: work in the project `playground`").conflicts_with_all(["here", "dir", "project"]))
        .arg(switch(NO_LONGER_IGNORED, "Send also files that git ignored at the last copy and no longer does"))
        .arg(
            switch(MOUNT, "Work in this directory itself, not on a copy: the agent changes your files at once and can read everything in it. Only with a server on this machine; asks first")
                .conflicts_with_all(["empty", "project", "workspace", CREATE_WORKSPACE]),
        )
        .arg(switch("yes", "With --mount: do not ask").short('y').requires(MOUNT))
        .arg(flag("agent", "NAME", "Agent to use [default: the project's agent, else demo]"))
        .arg(flag("project", "NAME", "Project, by name or id; created if it does not exist. With --here or --dir, the copy goes there"))
        .arg(
            flag("workspace", "ID", "Workspace of the project [default: the default workspace]")
                .conflicts_with_all(["here", "dir"]),
        )
        .arg(
            switch(CREATE_WORKSPACE, "Create the workspace if it does not exist: a clone of the default one's last commit, if that has a repository")
                .conflicts_with_all(["here", "dir"]),
        )
        .arg(flag("model", "NAME", "Model for the agent"))
        .arg(flag("autonomy", "LEVEL", "What the agent may do without asking: off, low, medium or high"))
        .arg(
            flag("timeout", "SECONDS", "Interrupt the turn after this time")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(
            Arg::new("tool")
                .long("tool")
                .value_name("NAME=CMD")
                .action(ArgAction::Append)
                .help("Let the agent run CMD on this machine as the tool `local_NAME`; may be repeated"),
        )
        .arg(switch("continue", "Continue the newest session of this directory or workspace, on its copy as it is"))
}

pub(super) fn run(home: &Home, matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    block_on_with_threads(async {
        // Before anything is created.
        let request = Request::read(matches)?;
        if matches.get_flag(MOUNT) {
            require_local(access).await?;
        }
        let client = Client::connect(access).await?;
        Box::pin(request.run(home, access, matches, client)).await
    })?
}

/// What the user wants from the agent.
struct Request {
    prompt: String,
    attachments: Vec<Value>,
    tools: LocalTools,
}

impl Request {
    fn read(matches: &ArgMatches) -> Result<Self, Failure> {
        let files = matches.get_many::<PathBuf>("file").into_iter().flatten();
        Ok(Self {
            prompt: prompt::read(matches)?,
            attachments: prompt::attachments(files)?,
            tools: LocalTools::parse(matches.get_many::<String>("tool").into_iter().flatten())?,
        })
    }

    async fn run(
        self,
        home: &Home,
        access: &Access,
        matches: &ArgMatches,
        client: Client,
    ) -> Result<(), Failure> {
        let given = |name: &str| matches.get_one::<String>(name).cloned();
        let checkout = find_checkout(home, access, matches)?;
        let mut call = Map::from_iter([("prompt".to_owned(), json!(self.prompt))]);
        for (flag, parameter) in [
            ("agent", "agent"),
            ("model", "model"),
            ("autonomy", "autonomy"),
        ] {
            if let Some(value) = given(flag) {
                call.insert(parameter.to_owned(), json!(value));
            }
        }
        if !self.attachments.is_empty() {
            call.insert("attachments".to_owned(), json!(self.attachments));
        }
        if let Some(context) = self.tools.context() {
            call.insert("context".to_owned(), context);
        }
        let continued = matches.get_flag("continue");
        let mounts = matches.get_flag(MOUNT);
        let reconnecting = checkout::reconnecting(access, client);
        if let Some(agent) = given("agent") {
            require_agent(&reconnecting.current(), &agent).await?;
        }
        let spawned = match &checkout {
            Some(checkout) if continued => {
                let latest = checkout.latest_session(mounts)?;
                let (session, is_mounted) = latest.ok_or_else(|| {
                    Failure::new("no session has worked on this directory; leave out --continue")
                })?;
                if is_mounted {
                    note!("Continuing {session} on the files here.");
                } else {
                    note!(
                        "Continuing {session} on its copy; changes made here since then are not sent."
                    );
                }
                call.insert("session_id".to_owned(), json!(session));
                reconnecting.current().call("session_message", call).await?
            }
            Some(checkout) if mounts => {
                let has_agreed = matches.get_flag("yes");
                let mounted = checkout.mount(&reconnecting, has_agreed).await?;
                call.extend(mounted.spawn_parameters());
                call.insert("new_session".to_owned(), json!(true));
                let spawned = reconnecting.current().call("session_spawn", call).await?;
                mounted.started(session_id(&spawned))?;
                spawned
            }
            Some(checkout) => {
                let project = given("project");
                let unignored = matches.get_flag(NO_LONGER_IGNORED);
                let copy =
                    Box::pin(checkout.send(&reconnecting, project.as_deref(), unignored)).await?;
                call.extend(copy.spawn_parameters());
                call.insert("new_session".to_owned(), json!(true));
                let spawned = reconnecting.current().call("session_spawn", call).await?;
                copy.started(session_id(&spawned))?;
                spawned
            }
            None => {
                let name = given("project").unwrap_or_else(|| DEFAULT_PROJECT.to_owned());
                let project = find_or_create_project(&reconnecting.current(), &name).await?;
                call.insert("project_id".to_owned(), json!(project));
                call.insert("new_session".to_owned(), json!(!continued));
                if let Some(workspace) = given("workspace") {
                    call.insert("workspace_id".to_owned(), json!(workspace));
                }
                if matches.get_flag(CREATE_WORKSPACE) {
                    call.insert("create_workspace".to_owned(), json!(true));
                }
                reconnecting.current().call("session_spawn", call).await?
            }
        };
        let warnings = spawned.get("warnings").and_then(Value::as_array);
        for warning in warnings.into_iter().flatten().filter_map(Value::as_str) {
            eprintln!("  {}", printable(warning));
        }
        let session = session_id(&spawned).to_owned();
        last_session::remember(&session, home, access);
        let since = spawned.get("last_event_index").and_then(Value::as_i64);
        let client = reconnecting.current();
        let timeout = matches.get_one::<u64>("timeout").copied();
        let mut follower = Follower::new(&client, &session, since.unwrap_or(-1))?
            .with_tools(self.tools)
            .with_timeout(timeout.map(Duration::from_secs));
        if output::is_json() {
            follower = follower.quiet();
        }
        let stopped = follower.follow().await?;
        let summary = Summary::read(&reconnecting, checkout.as_ref(), &session).await;
        if output::is_json() {
            summary.print_json(&stopped);
            return summary::exit_quietly(stopped);
        }
        if !output::is_quiet() {
            summary.print(access);
        }
        if follower.has_timed_out() {
            return Err(Failure::new(
                "the turn took longer than --timeout and was interrupted",
            ));
        }
        if let FollowEnd::TurnEnded(completion) = &stopped
            && completion.stop_reason == "limit"
            && let Some(notice) = follower.budget_notice().await
        {
            eprintln!("{notice}");
            return Err(Failure::Exit(1));
        }
        exit_result(stopped, &session)
    }
}

/// Fails if the server may be on another machine, where the same path is another directory.
async fn require_local(access: &Access) -> Result<(), Failure> {
    if access.has_explicit_url() && !matches!(access.server().await?, ServerAddress::Local(_)) {
        return Err(Failure::new(
            "--mount needs the server of this machine, by its data directory: leave out --url, or leave out \
             --mount and the agent works on a copy",
        ));
    }
    Ok(())
}

fn session_id(spawned: &Map<String, Value>) -> &str {
    let session = spawned.get("session_id").and_then(Value::as_str);
    session.unwrap_or_default()
}

/// The directory of which the agent gets a copy, or that it works in, if any.
fn find_checkout<'a>(
    home: &'a Home,
    access: &Access,
    matches: &ArgMatches,
) -> Result<Option<Checkout<'a>>, Failure> {
    let dir = matches.get_one::<PathBuf>("dir");
    let is_explicit = matches.get_flag("here") || matches.get_flag(MOUNT) || dir.is_some();
    let has_place = ["project", "workspace"]
        .iter()
        .any(|name| matches.get_one::<String>(name).is_some());
    if !is_explicit && (has_place || matches.get_flag("empty")) {
        return Ok(None);
    }
    let directory = checkout::directory(dir)?;
    match Checkout::find(home, access, &directory, is_explicit)? {
        Some(found) if found.is_home() && !is_explicit => {
            note!(
                "note: {} is a repository, but too much to send without --here; working in the project {DEFAULT_PROJECT}",
                printable(&found.root().display().to_string())
            );
            Ok(None)
        }
        None if has_entries(&directory) => {
            note!(
                "note: {} is not in a git repository, so nothing of it is sent; --here sends a copy",
                printable(&directory.display().to_string())
            );
            Ok(None)
        }
        found => Ok(found),
    }
}

fn has_entries(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

/// Fails if the server has no agent of this name. Asked before files are sent.
async fn require_agent(client: &Client, name: &str) -> Result<(), Failure> {
    let options = client.call("project_options", Map::new()).await?;
    let agents = options.get("agents").and_then(Value::as_array);
    let names = agents.into_iter().flatten();
    let names: Vec<&str> = names.filter_map(|agent| agent["name"].as_str()).collect();
    if names.is_empty() || names.contains(&name) {
        return Ok(());
    }
    let hint = match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are `{}`", names.join("`, `")),
    };
    Err(Failure::new(format!(
        "there is no agent {}; {hint}",
        quoted(name)
    )))
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
    note!("Created the project {name}.{}", printable(&other));
    Ok(id(&created))
}
