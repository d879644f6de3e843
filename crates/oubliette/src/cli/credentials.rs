//! `oubliette credential`: where the value of a credential comes from, and what to do with it next. A value
//! is never an argument, because every user of the machine can read those.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use oubliette_agent::catalogue;
use oubliette_engine::GIT_KINDS;
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::terminal::printable;
use crate::tty;

const FROM_STDIN: &str = "value-from-stdin";
const REFERENCE: &str = "reference";
/// More than the server takes.
const MAX_READ_BYTES: u64 = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  oubliette credential add work --kind anthropic   ask for the key
  oubliette credential add work --kind openai --env OPENAI_API_KEY
  pass show claude |
    oubliette credential add sub --kind claude_oauth --value-from-stdin
  oubliette credential add chatgpt --kind codex_auth --file ~/.codex/auth.json
  oubliette credential add gw --kind anthropic --base-url https://example.com
  oubliette credential add vault --kind openai --file /run/openai --reference";

pub(super) fn add_flags(command: Command) -> Command {
    command
        .mut_arg("value", |arg| arg.hide(true))
        .mut_arg("kind", |arg| arg.display_order(0))
        .mut_arg("env", |arg| {
            arg.value_name("VAR").conflicts_with("file").help(
                "Take the value from this variable of your shell; with --reference, from the server's at each use",
            )
        })
        .mut_arg("file", |arg| {
            arg.help("Take the value from this file; with --reference, at each use")
        })
        .arg(
            Arg::new(FROM_STDIN)
                .long(FROM_STDIN)
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["env", "file"])
                .help("Read the value from the standard input"),
        )
        .arg(
            Arg::new(REFERENCE)
                .long(REFERENCE)
                .action(ArgAction::SetTrue)
                .help("Store only where the value is: the server reads the variable or file when an agent starts"),
        )
        .long_about(
            "Store a credential on the server, or replace one: a key or a login. Without --env, --file and \
             --value-from-stdin it is asked for and not shown. Agents that start from now on use it, in the \
             projects that name it in --credential-refs.",
        )
        .after_help(EXAMPLES)
}

/// Completes the parameters of `credential_add` with the value.
pub(super) fn with_value(
    matches: &ArgMatches,
    mut given: Map<String, Value>,
) -> Result<Map<String, Value>, Failure> {
    if given.remove("value").is_some() {
        return Err(usage(
            "a value is not accepted as an argument: other users could read it in the list of processes, and \
             the shell keeps it in its history. Leave it out to be asked for it, or use --value-from-stdin, \
             --file or --env",
        ));
    }
    let text = |name: &str| given.get(name).and_then(Value::as_str).map(str::to_owned);
    let (env, file) = (text("env"), text("file").map(PathBuf::from));
    if matches.get_flag(REFERENCE) {
        if env.is_none() && file.is_none() {
            return Err(usage("--reference needs --env or --file"));
        }
        if let Some(file) = file {
            let path = std::path::absolute(file)
                .map_err(|error| Failure::with_cause("cannot use the path", &error))?;
            let path = path.to_string_lossy().into_owned();
            given.insert("file".to_owned(), Value::from(path));
        }
        return Ok(given);
    }
    let (name, kind) = (text("name"), text("kind"));
    let value = match (env, file) {
        (Some(variable), _) => std::env::var(&variable).map_err(|_| {
            Failure::new(format!(
                "the variable {variable} is not set in this shell; with --reference the server's is used"
            ))
        })?,
        (None, Some(file)) => read_file(&file)?,
        (None, None) if matches.get_flag(FROM_STDIN) => read_all(std::io::stdin(), "the input")?,
        (None, None) => prompt(
            &name.unwrap_or_default(),
            &kind.unwrap_or_default(),
        )?,
    };
    given.remove("env");
    given.remove("file");
    given.insert("value".to_owned(), Value::from(value));
    Ok(given)
}

/// Whether a kind is one of the agents that this program knows. The server's configuration may define others.
pub(super) fn is_built_in_kind(kind: &str) -> bool {
    GIT_KINDS.contains(&kind) || catalogue().iter().any(|agent| agent.takes_credential(kind))
}

/// What asks the server about a kind: it refuses a kind that does not exist before it misses the value.
pub(super) fn kind_check(given: &Map<String, Value>) -> Map<String, Value> {
    let names = ["name", "kind"].into_iter();
    let kept = names.filter_map(|name| Some((name.to_owned(), given.get(name)?.clone())));
    kept.collect()
}

fn usage(sentence: &str) -> Failure {
    clap::Error::raw(ErrorKind::ArgumentConflict, format!("{sentence}\n")).into()
}

fn prompt(name: &str, kind: &str) -> Result<String, Failure> {
    let agents = catalogue();
    let mut agents = agents.iter();
    if let Some(file) = agents.find_map(|agent| agent.login_file(kind)) {
        return Err(usage(&format!(
            "a credential of the kind {kind} is a file; give it with --file, for example ~/{}",
            file.path
        )));
    }
    if kind == "ssh_key" {
        return Err(usage(
            "a private key has several lines; give it with --file or --value-from-stdin",
        ));
    }
    if !tty::is_terminal() {
        return Err(usage(
            "the standard input is not a terminal, so the value cannot be asked for; use --value-from-stdin, \
             --file or --env",
        ));
    }
    tty::read_secret(&format!("Value of {name} ({kind}), not shown: "))
}

fn read_file(path: &Path) -> Result<String, Failure> {
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::with_cause(format!("cannot read {}", path.display()), &error))?;
    read_all(file, &path.display().to_string())
}

fn read_all(input: impl Read, what: &str) -> Result<String, Failure> {
    let mut text = String::new();
    input
        .take(MAX_READ_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| Failure::with_cause(format!("cannot read {what}"), &error))?;
    if text.trim().is_empty() {
        return Err(Failure::new(format!("{what} is empty")));
    }
    Ok(text)
}

/// What was done, and the next command.
pub(super) fn describe(operation: &str, result: &Map<String, Value>) -> String {
    let text = |name: &str| {
        let text = result.get(name).and_then(Value::as_str);
        printable(text.unwrap_or_default())
    };
    let list = |name: &str| -> Vec<String> {
        let items = result.get(name).and_then(Value::as_array);
        let items = items.into_iter().flatten().filter_map(Value::as_str);
        items.map(printable).collect()
    };
    let name = text("name");
    if operation == "credential_remove" {
        let users = list("projects");
        let mut lines = vec![format!("Removed the credential {name}.")];
        if !users.is_empty() {
            lines.push(format!(
                "Still named by {}: agents that start there fail until it is added again.",
                users.join(", ")
            ));
            lines.push("Next: oubliette project update PROJECT --credential-refs OTHER".to_owned());
        }
        return lines.join("\n");
    }
    let done = match result.get("replaced").and_then(Value::as_bool) {
        Some(true) => "Replaced",
        _ => "Stored",
    };
    let (kind, agents) = (text("kind"), list("agents"));
    let Some(agent) = agents.first() else {
        return format!(
            "{done} the credential {name} ({kind}).\nNext: oubliette project create app --remote-url \
             URL --git-credential {name}"
        );
    };
    format!(
        "{done} the credential {name} ({kind}) for {}.\nNext: oubliette project create app --agent \
         {agent} --credential-refs {name}\n  or, for a project you have: oubliette project update \
         PROJECT --credential-refs {name}",
        agents.join(", ")
    )
}
