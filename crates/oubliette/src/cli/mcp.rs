//! `oubliette mcp`: connects MCP clients to the server, each with a token of its own, and disconnects them.
//!
//! A client gets a token that is named after it and has the narrowest scope that is of use. For a client that
//! starts `oubliette mcp stdio` the key is in the data directory; for one that connects to the URL it is in the
//! client's file. The file of a project never has a key: it can be committed, and copied into a container.

mod exclude;
mod tokens;
mod transport;

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::tokens::{ClientToken, Minted};
use self::transport::Transport;
use super::access::Access;
use super::client::Client;
use super::{confirm, names, stdio};
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::Home;
use crate::setup::{self, ConfigScope, Connection, SetupError};
use crate::terminal::output::{self, note};
use crate::terminal::{self, printable};

const SCOPE: &str = "scope";
const STDIO: &str = "stdio";
const CLIENT: &str = "client";
const DRY_RUN: &str = "dry-run";
/// Creates projects and starts agents, but sees no tokens, credentials or audit log.
const DEFAULT_SCOPE: &str = "write";
/// In place of the key in a plan that is not carried out.
const PLACEHOLDER_KEY: &str = "oub_new";

const SETUP_EXAMPLES: &str = "\
Examples:
  oubliette mcp setup claude
  oubliette mcp setup claude codex zed    several at once
  oubliette mcp setup zed                 starts a program: no key in its file
  oubliette mcp setup codex --stdio       the same for another client
  oubliette mcp setup cursor --scope project:app
  oubliette mcp setup claude --project .  only for this repository";

pub(super) fn command() -> Command {
    let clients: Vec<&str> = setup::names().collect();
    let client = || {
        Arg::new("CLIENT")
            .required(true)
            .num_args(1..)
            .help(format!("One or more of {}", clients.join(", ")))
    };
    let project = || {
        Arg::new("project")
            .long("project")
            .value_name("DIR")
            .value_parser(value_parser!(PathBuf))
            .help("The configuration of the project in DIR, not the user's")
    };
    let dry_run = || {
        Arg::new(DRY_RUN)
            .long(DRY_RUN)
            .action(ArgAction::SetTrue)
            .help("Show the changes without making them")
    };
    Command::new("mcp")
        .about("Connect MCP clients to the server, and disconnect them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(SETUP_EXAMPLES)
        .subcommand(
            Command::new("setup")
                .about("Connect MCP clients to the server")
                .long_about(
                    "Connect MCP clients to the server: add the server to each client's configuration, with a \
                     token of its own. Other settings and comments stay as they are. A second set-up keeps a \
                     token that works; with another --scope it is replaced.",
                )
                .after_help(SETUP_EXAMPLES)
                .arg(client())
                .arg(
                    Arg::new(SCOPE)
                        .long(SCOPE)
                        .value_name("SCOPE")
                        .help(format!(
                            "What the client may do: read, write, project:NAME, project:NAME:ro or admin. The \
                             default lets it create projects and start agents, but not see or change tokens, \
                             credentials and the audit log [default: {DEFAULT_SCOPE}]"
                        )),
                )
                .arg(
                    Arg::new(STDIO)
                        .long(STDIO)
                        .action(ArgAction::SetTrue)
                        .help(
                            "Have the client start `oubliette mcp stdio`: no URL and no key in its file. With \
                             --project it always does",
                        ),
                )
                .arg(project())
                .arg(dry_run()),
        )
        .subcommand(
            Command::new("remove")
                .about("Disconnect MCP clients and revoke their tokens")
                .after_help(
                    "Examples:\n  oubliette mcp remove claude\n  oubliette mcp remove claude codex\n  oubliette mcp \
                     remove claude --project .",
                )
                .arg(client())
                .arg(project())
                .arg(dry_run())
                .arg(confirm::yes_flag()),
        )
        .subcommand(
            Command::new("list")
                .about("List the MCP clients and which of them are connected")
                .after_help("Examples:\n  oubliette mcp list\n  oubliette mcp list --json"),
        )
        .subcommand(
            Command::new("stdio")
                .about("Be an MCP server on standard input and output")
                .long_about(
                    "Be an MCP server on standard input and output, for clients that start their servers: passes \
                     every message on to the server of the data directory.",
                )
                .after_help(
                    "Examples:\n  oubliette mcp setup zed      writes the command into Zed's settings\n  \
                     oubliette mcp stdio          with the admin token of the data directory",
                )
                .arg(
                    Arg::new(CLIENT)
                        .long(CLIENT)
                        .value_name("NAME")
                        .conflicts_with("token")
                        .help("Use the token that `oubliette mcp setup` has made for this client"),
                ),
        )
}

pub(super) fn run(home: &Home, matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("setup", matches)) => block_on(set_up(home, matches, access))?,
        Some(("remove", matches)) => block_on(remove(home, matches, access))?,
        Some(("list", _)) => block_on(list(home, access))?,
        Some((_, matches)) => bridge(home, matches, access),
        None => Ok(()),
    }
}

fn bridge(home: &Home, matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let own = match matches.get_one::<String>(CLIENT) {
        Some(name) => Some(access.with_key(tokens::read_key(home, name)?)),
        None => None,
    };
    block_on(stdio::run(own.as_ref().unwrap_or(access)))?
}

/// A client and which of its files is meant.
struct Target {
    client: String,
    scope: ConfigScope,
    user: PathBuf,
    /// What its token is called, without the prefix.
    name: String,
}

impl Target {
    /// The clients that the command names, each once.
    fn read_all(matches: &ArgMatches) -> Result<Vec<Self>, Failure> {
        let mut targets: Vec<Self> = Vec::new();
        for client in matches.get_many::<String>("CLIENT").into_iter().flatten() {
            // Before anything is asked of the server.
            setup::title(client).map_err(|error| unchanged(&error))?;
            if targets.iter().any(|target| target.client == *client) {
                continue;
            }
            targets.push(match matches.get_one::<PathBuf>("project") {
                Some(directory) => Self::in_project(client, directory)?,
                None => Self::of_user(client),
            });
        }
        Ok(targets)
    }

    fn of_user(client: &str) -> Self {
        Self {
            client: client.to_owned(),
            scope: ConfigScope::User,
            user: std::env::home_dir().unwrap_or_default(),
            name: client.to_owned(),
        }
    }

    fn in_project(client: &str, directory: &Path) -> Result<Self, Failure> {
        let path = std::path::absolute(directory)
            .map_err(|error| Failure::with_cause("cannot use the directory", &error))?;
        let path = std::fs::canonicalize(&path).unwrap_or(path);
        // Two directories of the same name have different tokens.
        let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
        let digest: String = digest[..3]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let directory_name = path.file_name().unwrap_or_default().to_string_lossy();
        let directory_name: String = directory_name
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
            .take(40)
            .collect();
        Ok(Self {
            name: format!("{client}-{directory_name}-{digest}"),
            scope: ConfigScope::Project(path),
            ..Self::of_user(client)
        })
    }

    fn token_name(&self) -> String {
        format!("mcp-{}", self.name)
    }

    fn inspect(&self) -> Result<(PathBuf, Option<setup::FoundEntry>), SetupError> {
        setup::inspect(&self.client, &self.scope, &self.user, &environment)
    }

    fn plan(&self, connection: &Connection) -> Result<setup::Change, Failure> {
        setup::plan(
            &self.client,
            &self.scope,
            &self.user,
            &environment,
            connection,
        )
        .map_err(|error| unchanged(&error))
    }
}

fn environment(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

fn unchanged(error: &SetupError) -> Failure {
    Failure::with_cause("nothing was changed", error)
}

async fn set_up(home: &Home, matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let targets = Target::read_all(matches)?;
    let mut planned = Vec::new();
    for target in &targets {
        let transport = Transport::choose(home, matches, access, target).await?;
        // Finds mistakes in every file before anything is changed.
        target.inspect().map_err(|error| unchanged(&error))?;
        target.plan(&transport.connection(PLACEHOLDER_KEY))?;
        planned.push((target, transport));
    }
    let mut reports = Vec::new();
    for (target, transport) in planned {
        reports.push(set_up_client(home, matches, access, target, &transport).await?);
    }
    print_reports(reports);
    Ok(())
}

/// Prints what was done for each client, as JSON if that is wanted.
fn print_reports(mut reports: Vec<Value>) {
    if !output::is_json() {
        return;
    }
    match reports.len() {
        1 => terminal::print_json(&reports.remove(0)),
        _ => terminal::print_json(&json!({ "clients": reports })),
    }
}

/// Sets up one client; what was done, for programs.
async fn set_up_client(
    home: &Home,
    matches: &ArgMatches,
    access: &Access,
    target: &Target,
    transport: &Transport,
) -> Result<Value, Failure> {
    let (path, found) = target.inspect().map_err(|error| unchanged(&error))?;
    let planned = target.plan(&transport.connection(PLACEHOLDER_KEY))?;
    let is_dry_run = matches.get_flag(DRY_RUN);
    if is_dry_run && !access.has_server().await {
        let scope = matches.get_one::<String>(SCOPE).map(String::as_str);
        let scope = scope.unwrap_or(DEFAULT_SCOPE);
        return finish(target, transport, &planned, matches, Some(scope));
    }
    let client = Client::connect(access).await?;
    let wanted = match matches.get_one::<String>(SCOPE) {
        Some(scope) => Some(names::stored_scope(scope, &client).await?),
        None => None,
    };
    if let Transport::Http { .. } = transport
        && !is_dry_run
    {
        access.keep_server()?;
    }
    let own = ClientToken::find(&client, &target.token_name()).await;
    let own = match own {
        Ok(own) => own,
        Err(failure) => {
            client.close().await;
            return with_given_key(home, access, target, transport, matches, failure);
        }
    };
    let key_in_use = match transport {
        Transport::Http { .. } => found.and_then(|entry| entry.token),
        Transport::Stdio { .. } => tokens::read_key(home, &target.name).ok(),
    };
    let kept = match key_in_use {
        Some(key) if own.is_current(&key, wanted.as_deref(), home, &target.name) => Some(key),
        _ => None,
    };
    if let Some(key) = kept {
        client.close().await;
        let change = target.plan(&transport.connection(&key))?;
        return finish(target, transport, &change, matches, own.scope());
    }
    let scope = wanted.as_deref().unwrap_or(DEFAULT_SCOPE);
    if is_dry_run {
        client.close().await;
        return finish(target, transport, &planned, matches, Some(scope));
    }
    let minted = own.mint(&client, scope).await?;
    let written = write(home, target, transport, &minted);
    let change = match written {
        Ok(change) => change,
        Err(failure) => {
            // Nothing uses it.
            minted.revoke(&client).await;
            client.close().await;
            return Err(failure);
        }
    };
    minted.record(home, &target.name);
    own.revoke(&client).await;
    client.close().await;
    if let Transport::Http { .. } = transport {
        let _ = std::fs::remove_file(tokens::key_file(home, &target.name));
    }
    if let ConfigScope::Project(_) = target.scope {
        exclude::keep_out_of_git(&path);
    }
    Ok(report(target, transport, &change, Some(scope)))
}

/// Writes the key to where the client or the bridge reads it, and then the client's file.
fn write(
    home: &Home,
    target: &Target,
    transport: &Transport,
    minted: &Minted,
) -> Result<setup::Change, Failure> {
    if let Transport::Stdio { .. } = transport {
        tokens::write_key(home, &target.name, &minted.key)?;
    }
    let change = target.plan(&transport.connection(&minted.key))?;
    change.apply().map_err(|error| unchanged(&error))?;
    Ok(change)
}

/// Sets the client up with the key that the user gave, which cannot create another one.
fn with_given_key(
    home: &Home,
    access: &Access,
    target: &Target,
    transport: &Transport,
    matches: &ArgMatches,
    failure: Failure,
) -> Result<Value, Failure> {
    let Some(key) = access.explicit_key() else {
        return Err(failure);
    };
    note!("The given key cannot create tokens, so it is written itself.");
    let change = target.plan(&transport.connection(key))?;
    if matches!(transport, Transport::Stdio { .. }) && !matches.get_flag(DRY_RUN) {
        tokens::write_key(home, &target.name, key)?;
    }
    finish(target, transport, &change, matches, None)
}

/// Carries out a change that needs no new token.
fn finish(
    target: &Target,
    transport: &Transport,
    change: &setup::Change,
    matches: &ArgMatches,
    scope: Option<&str>,
) -> Result<Value, Failure> {
    if !matches.get_flag(DRY_RUN) {
        change.apply().map_err(|error| unchanged(&error))?;
        if let ConfigScope::Project(_) = target.scope {
            exclude::keep_out_of_git(change.path());
        }
    }
    if matches.get_flag(DRY_RUN) && !output::is_json() {
        eprintln!("{}", change.summary());
        return Ok(Value::Null);
    }
    Ok(report(target, transport, change, scope))
}

/// Says what was done, and returns it for programs.
fn report(
    target: &Target,
    transport: &Transport,
    change: &setup::Change,
    scope: Option<&str>,
) -> Value {
    let token = scope.map(|_| target.token_name());
    let result = json!({
        "client": target.client, "file": change.path(), "changed": !change.is_noop(),
        "edits": change.edits(), "transport": transport.name(), "token": token, "scope": scope,
    });
    if output::is_json() {
        return result;
    }
    note!("{}", change.summary());
    if change.is_noop() {
        return result;
    }
    if let (Some(token), Some(scope)) = (token, scope) {
        note!(
            "Its token is `{token}` with the scope {}; `oubliette mcp remove {}` revokes it.",
            printable(scope),
            target.client
        );
    }
    note!("{}", change.note());
    result
}

async fn remove(home: &Home, matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let targets = Target::read_all(matches)?;
    for target in &targets {
        // Finds mistakes in every file before anything is changed.
        setup::plan_removal(&target.client, &target.scope, &target.user, &environment)
            .map_err(|error| unchanged(&error))?;
    }
    let mut reports = Vec::new();
    for target in &targets {
        reports.push(remove_client(home, matches, access, target).await?);
    }
    print_reports(reports);
    Ok(())
}

/// Disconnects one client; what was done, for programs.
async fn remove_client(
    home: &Home,
    matches: &ArgMatches,
    access: &Access,
    target: &Target,
) -> Result<Value, Failure> {
    let change = setup::plan_removal(&target.client, &target.scope, &target.user, &environment)
        .map_err(|error| unchanged(&error))?;
    let token = target.token_name();
    let running_only = access.running_only();
    let access = if matches.get_flag(DRY_RUN) {
        &running_only
    } else {
        access
    };
    // A server that is not running refuses the token as well; it can be revoked later.
    let client = Client::connect(access).await;
    let own = match &client {
        Ok(client) => ClientToken::find(client, &token).await.ok(),
        Err(_) => None,
    };
    let is_token_there = own.as_ref().is_some_and(ClientToken::exists);
    if matches.get_flag(DRY_RUN) {
        let is_noop = change.is_noop();
        if !output::is_json() {
            eprintln!("{}", change.summary());
        }
        return Ok(json!({ "client": target.client, "file": change.path(), "changed": !is_noop }));
    }
    if (!change.is_noop() || is_token_there) && !matches.get_flag("yes") && confirm::can_ask() {
        let title = setup::title(&target.client).unwrap_or_default();
        if !confirm::ask(&format!("Disconnect {title} and revoke its token {token}?"))? {
            return Err(Failure::new("nothing was changed"));
        }
    }
    change.apply().map_err(|error| unchanged(&error))?;
    tokens::forget(home, &target.name);
    if let (Ok(client), Some(own)) = (&client, &own) {
        own.revoke(client).await;
    }
    if let Ok(client) = client {
        client.close().await;
    }
    let result = json!({
        "client": target.client, "file": change.path(), "changed": !change.is_noop(),
        "token": token, "revoked": is_token_there,
    });
    if output::is_json() {
        return Ok(result);
    }
    let title = setup::title(&target.client).unwrap_or_default();
    if change.is_noop() {
        note!("{title} is not set up in {}.", change.path().display());
    } else {
        note!("{}\n{}", change.summary(), change.note());
    }
    match own {
        Some(_) if is_token_there => note!("Revoked the token {token}."),
        Some(_) => {}
        None => eprintln!(
            "The token {token} is not revoked, because the server did not do it; do it later with `{} token revoke \
             {token}`.",
            home.command()
        ),
    }
    Ok(result)
}

async fn list(home: &Home, access: &Access) -> Result<(), Failure> {
    let tokens = match Client::connect(access).await {
        Ok(client) => {
            let tokens = names::all_rows("token", &client).await;
            client.close().await;
            tokens.unwrap_or_default()
        }
        Err(_) => Vec::new(),
    };
    let mut rows = Vec::new();
    for name in setup::names() {
        let target = Target::of_user(name);
        let token = target.token_name();
        let active = tokens
            .iter()
            .find(|row| row.get("name") == Some(&json!(token)) && row["status"] == "active");
        let (state, transport, path) = match target.inspect() {
            Ok((path, Some(entry))) => {
                let transport = if entry.is_stdio { "stdio" } else { "http" };
                ("connected", Some(transport), path)
            }
            Ok((path, None)) => ("-", None, path),
            Err(error) => {
                rows.push(
                    json!({ "client": name, "state": "unreadable", "problem": error.to_string() }),
                );
                continue;
            }
        };
        let has_key = tokens::key_file(home, name).exists();
        rows.push(json!({
            "client": name, "state": state, "transport": transport,
            "token": active.map(|_| token),
            "scope": active.and_then(|row| row.get("scope")),
            "key_in": match transport {
                Some("stdio") if has_key => json!("data directory"),
                Some("http") => json!("client's file"),
                _ => Value::Null,
            },
            "file": path,
        }));
    }
    if output::is_json() {
        terminal::print_json(&json!({ "clients": rows }));
        return Ok(());
    }
    let rows: Vec<_> = rows.iter().filter_map(Value::as_object).collect();
    terminal::print_line(&terminal::table("clients", &rows));
    Ok(())
}
