//! `oubliette agent login`: runs an agent's own command for signing in, on a terminal in a container of its
//! own, and stores what it leaves as a credential.

use clap::{Arg, ArgMatches, Command};
use oubliette_agent::{Agent, LoginCommand, catalogue};
use serde_json::{Map, Value, json};

use super::access::Access;
use super::client::Client;
use super::{credentials, interactive};
use crate::agents;
use crate::config::Config;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::output::note;
use crate::{terminal, tty};

/// Where the agent finds its home in the container.
const LOGIN_HOME: &str = "/root/login";
const INTERRUPTED: u8 = 130;

pub(super) fn command() -> Command {
    Command::new("login")
        .about("Sign in with an agent's own login, and store it as a credential")
        .long_about(
            "Sign in with an agent's own login, and store what it leaves as a credential. The login runs on this \
             terminal, in a container that is removed afterwards. Agents without such a login say what to do \
             instead.",
        )
        .after_help(
            "Examples:\n  oubliette agent login codex                    a ChatGPT plan\n  oubliette agent login \
             claude --credential sub  a Claude subscription",
        )
        .arg(Arg::new("NAME").required(true).help("The agent's name"))
        .arg(
            Arg::new("credential")
                .long("credential")
                .value_name("CREDENTIAL")
                .help("Name of the credential; one of that name is replaced [default: the agent's name]"),
        )
}

/// What a login leaves, and the command that makes it.
struct Plan {
    agent: String,
    argv: Vec<String>,
    kind: &'static str,
    /// The file that it writes, below its home; none if it shows a token.
    file: Option<&'static str>,
    token_prefix: &'static str,
}

pub(super) fn run(home: &Home, matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let name = matches.get_one::<String>("NAME").cloned();
    let plan = plan(home, &name.unwrap_or_default())?;
    if !tty::is_terminal() {
        return Err(Failure::new(format!(
            "a login needs a terminal; without one, sign in elsewhere and add the result with `oubliette \
             credential add {} --kind {}`",
            plan.agent, plan.kind
        )));
    }
    let credential = matches.get_one::<String>("credential");
    let credential = credential.unwrap_or(&plan.agent).clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let result = runtime.block_on(async {
        let client = Client::connect(access).await?;
        let result = sign_in(&plan, &credential, &client, access).await;
        client.close().await;
        result
    });
    // A blocked read of the terminal must not delay the exit.
    runtime.shutdown_background();
    let result = result?;
    terminal::print_line(&if matches.get_flag("json") {
        terminal::json_text(&result)
    } else {
        credentials::describe("credential_add", &result)
    });
    Ok(())
}

fn plan(home: &Home, name: &str) -> Result<Plan, Failure> {
    let config = Config::load(&home.config_file(), std::env::vars())?;
    let configured = config.agents.get(name);
    let agent = catalogue().into_iter().find(|agent| agent.name == name);
    let Some(agent) = agent else {
        return Err(match configured {
            Some(_) => Failure::new(format!(
                "`{name}` is defined in oubliette.toml, and its login is not known; add its key with \
                 `oubliette credential add`"
            )),
            None => agents::unknown_agent(name),
        });
    };
    let (arguments, kind, file, token_prefix) = match agent.sign_in.login {
        LoginCommand::WritesFile {
            arguments,
            kind,
            path,
        } => (arguments, kind, Some(path), ""),
        LoginCommand::ShowsToken {
            arguments,
            kind,
            prefix,
        } => (arguments, kind, None, prefix),
        LoginCommand::Missing(why) => {
            let add = agent
                .credentials
                .keys()
                .next()
                .map(|kind| format!(", then: oubliette credential add {name} --kind {kind}"));
            return Err(Failure::new(format!(
                "`{name}` has no login to run here: {why}{}",
                add.unwrap_or_default()
            )));
        }
    };
    let own = configured.map(|agent| agent.login.clone());
    let argv = match own.filter(|argv| !argv.is_empty()) {
        Some(argv) => argv,
        None => own_command(home, &agent, arguments)?,
    };
    Ok(Plan {
        agent: agent.name,
        argv,
        kind,
        file,
        token_prefix,
    })
}

fn own_command(home: &Home, agent: &Agent, arguments: &[&str]) -> Result<Vec<String>, Failure> {
    let name = &agent.name;
    let Some(program) = agents::program_in_container(home, agent) else {
        return Err(Failure::new(format!(
            "`{name}` is not installed; run `oubliette agent install {name}` first"
        )));
    };
    let arguments = arguments.iter().map(|word| (*word).to_owned());
    Ok(std::iter::once(program).chain(arguments).collect())
}

/// Runs the login in a project of its own, which is deleted with everything that the login left in it.
async fn sign_in(
    plan: &Plan,
    credential: &str,
    client: &Client,
    access: &Access,
) -> Result<Map<String, Value>, Failure> {
    let suffix = uuid::Uuid::new_v4().simple().to_string();
    let project = json!({ "name": format!("login-{}", &suffix[..12]) });
    let made = client.call("project_create", object(project)).await?;
    let project = made.get("project_id").cloned().unwrap_or_default();
    note!(
        "Starting the login of {} in a container of its own.",
        plan.agent
    );
    let value = run_login(plan, &project, client, access).await;
    let delete = object(json!({ "project_id": project }));
    let deleted = client.call("project_delete", delete).await;
    let add = object(json!({ "name": credential, "kind": plan.kind, "value": value? }));
    let added = client.call("credential_add", add).await?;
    deleted?;
    Ok(added)
}

/// What the login leaves.
async fn run_login(
    plan: &Plan,
    project: &Value,
    client: &Client,
    access: &Access,
) -> Result<String, Failure> {
    let script = "mkdir -p \"$HOME\" && cd \"$HOME\" && exec \"$@\"";
    let fixed = ["/bin/sh", "-c", script, "sh"].map(str::to_owned);
    let argv: Vec<String> = fixed.into_iter().chain(plan.argv.clone()).collect();
    let given = object(json!({
        "project_id": project, "command": argv, "env": { "HOME": LOGIN_HOME },
    }));
    let own = Client::connect(access).await?;
    match interactive::run_on_terminal(access, own, given).await {
        Ok(()) => {}
        Err(Failure::Exit(INTERRUPTED)) => {
            eprintln!("Interrupted; nothing was stored.");
            return Err(Failure::Exit(INTERRUPTED));
        }
        Err(Failure::Exit(code)) => {
            return Err(Failure::new(format!(
                "the login of `{}` ended with exit code {code}; nothing was stored",
                plan.agent
            )));
        }
        Err(other) => return Err(other),
    }
    let Some(file) = plan.file else {
        let question = format!(
            "Paste the token that it printed ({}…), not shown: ",
            plan.token_prefix
        );
        let token = tty::read_secret(&question)?;
        if !token.trim().starts_with(plan.token_prefix) {
            return Err(Failure::new(format!(
                "that is not a token of `{}`, which starts with {}; nothing was stored",
                plan.agent, plan.token_prefix
            )));
        }
        return Ok(token);
    };
    let path = format!("{LOGIN_HOME}/{file}");
    let read = object(json!({
        "project_id": project, "command": ["/bin/sh", "-c", "[ ! -f \"$1\" ] || cat \"$1\"", "sh", path],
    }));
    let found = client.call("container_exec", read).await?;
    let text = found.get("stdout").and_then(Value::as_str);
    match text.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) => Ok(text.to_owned()),
        None => Err(Failure::new(format!(
            "the login of `{}` ended without leaving {file}; nothing was stored",
            plan.agent
        ))),
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
