//! Arguments of a command from the schema of an operation's parameters, and back to JSON.
//!
//! Required parameters and the command line of `container exec` are positional; the others are flags,
//! without the suffix `_id`.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use oubliette_engine::operations::{self, Entry};
use serde_json::{Map, Value};

use super::{help, last_session, variables};
use crate::failure::Failure;

/// The flag for variables of a project that are hidden in what agents write.
const SECRET: &str = "secret";

/// The project of a command that also takes it as an argument.
const PROJECT_FLAG: &str = "project_flag";
/// Operations whose project is optional and still an argument: `session list hello`.
const OPTIONAL_PROJECT: [&str; 5] = [
    "session_list",
    "session_cleanup",
    "schedule_list",
    "config_limits",
    "audit_list",
];
/// Flags with names of their own. The other names work too, and are not shown.
const RENAMED: [(&str, &str); 5] = [
    ("targets", "target"),
    ("timeout_seconds", "timeout"),
    ("wait_seconds", "wait"),
    ("since_index", "since"),
    // `--token` is the key to call with.
    ("token_id", "by"),
];

/// How a parameter is written on the command line.
enum ArgumentKind {
    Text,
    Choice(Vec<String>),
    Integer,
    Number,
    Boolean,
    /// One value per use of the flag.
    List,
    /// The rest of the line: one word is a shell command, several are a program and its arguments.
    CommandLine,
    /// `NAME=VALUE`, or `NAME` for the value of that environment variable.
    Variables,
    /// `PROJECT[/WORKSPACE]`, one per use of the flag.
    Targets,
    Json,
}

fn argument_kind(name: &str, schema: &Value) -> ArgumentKind {
    if name == "targets" {
        return ArgumentKind::Targets;
    }
    let choices = schema.get("enum").and_then(Value::as_array);
    if let Some(choices) = choices {
        return ArgumentKind::Choice(
            choices
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        );
    }
    if name == "command" {
        return ArgumentKind::CommandLine;
    }
    // An item of several types is written as the first of them.
    let item_kind = |key: &str| {
        let item = schema.get(key)?;
        let first = item.get("anyOf").map_or(Some(item), |kinds| kinds.get(0))?;
        first.get("type")?.as_str()
    };
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => ArgumentKind::Text,
        Some("integer") => ArgumentKind::Integer,
        Some("number") => ArgumentKind::Number,
        Some("boolean") => ArgumentKind::Boolean,
        Some("array") if item_kind("items") == Some("string") => ArgumentKind::List,
        Some("object") if item_kind("additionalProperties") == Some("string") => {
            ArgumentKind::Variables
        }
        _ => ArgumentKind::Json,
    }
}

/// `project_id` → `project`, `max_cost_usd` → `max-cost-usd`.
fn flag(parameter: &str) -> String {
    let renamed = RENAMED.iter().find(|(name, _)| *name == parameter);
    let name = match (renamed, parameter.strip_suffix("_id")) {
        (Some((_, flag)), _) => flag,
        (None, Some(name)) => name,
        (None, None) => parameter,
    };
    name.replace('_', "-")
}

/// The parameter for whole texts, which commands always have.
pub(super) const FULL: &str = "full";
/// What a flag was called by the rule that `RENAMED` is an exception of.
fn other_flag(parameter: &str) -> Option<String> {
    let is_renamed = RENAMED.iter().any(|(name, _)| *name == parameter);
    is_renamed.then(|| parameter.replace('_', "-"))
}

pub(super) fn from_schema(entry: &'static Entry) -> Vec<Arg> {
    let arguments = entry
        .properties()
        .filter(|(name, _)| *name != FULL)
        .map(|(name, schema)| argument(entry, name, schema));
    let secret = Arg::new(SECRET)
        .long(SECRET)
        .value_name("NAME[=VALUE]")
        .action(ArgAction::Append)
        .help(
            "Like --env, for a value of at least 8 characters that is hidden in what agents write; without \
             VALUE it is taken from this shell; may be repeated",
        );
    let project = Arg::new(PROJECT_FLAG)
        .long("project")
        .hide(true)
        .conflicts_with("project_id");
    arguments
        .chain(takes_secrets(entry).then_some(secret))
        .chain(has_optional_project(entry).then_some(project))
        .collect()
}

fn has_optional_project(entry: &Entry) -> bool {
    OPTIONAL_PROJECT.contains(&entry.name)
}

/// Whether an operation has variables of agents, whose output is logged.
fn takes_secrets(entry: &Entry) -> bool {
    entry.noun() == "project" && entry.properties().any(|(name, _)| name == "env")
}

fn is_positional(entry: &Entry, name: &str, schema: &Value) -> bool {
    match argument_kind(name, schema) {
        ArgumentKind::CommandLine => true,
        ArgumentKind::Targets => false,
        // Optional in the schema of these two, where another parameter can replace them.
        _ if name == "prompt" => true,
        _ if name == "project_id" && has_optional_project(entry) => true,
        _ if name == "session_id" && entry.name == "session_message" => true,
        // A second name after that of the credential would be easy to mistake.
        _ if name == "kind" => false,
        _ => entry.requires(name),
    }
}

/// What a value is called: `--memory-mb <MB>`, `--turn <N>`, `<PROJECT>`.
fn value_name(parameter: &str, kind: &ArgumentKind) -> String {
    let last = parameter.rsplit('_').next().unwrap_or(parameter);
    match (parameter, last, kind) {
        ("cron_expr", ..) => "CRON".to_owned(),
        (_, "id", _) => {
            let noun = parameter.trim_end_matches("_id");
            noun.to_uppercase().replace('_', "-")
        }
        (_, "mb" | "usd" | "seconds" | "hours" | "url", _) => last.to_uppercase(),
        (_, _, ArgumentKind::Integer | ArgumentKind::Number) => "N".to_owned(),
        (_, "paths", _) => "PATH".to_owned(),
        (_, "branches", _) => "BRANCH".to_owned(),
        (_, "allowed" | "disallowed", _) => "TOOL".to_owned(),
        ("credential_refs" | "git_credential", ..) => "CREDENTIAL".to_owned(),
        (_, last, _) => last.to_uppercase(),
    }
}

/// A description of the registry with the names of the command line: `` `project_list` `` becomes
/// `` `oubliette project list` `` and `` `max_cost_usd` `` becomes `` `--max-cost-usd` ``.
pub(super) fn in_command_words(entry: &'static Entry, text: &str) -> String {
    let mentioned = text.split('`').filter_map(operations::find);
    let entries: Vec<&Entry> = std::iter::once(entry).chain(mentioned).collect();
    let in_words = |quoted: &str| {
        if let Some(operation) = operations::find(quoted) {
            return format!("oubliette {} {}", operation.noun(), operation.verb());
        }
        let parameter = quoted.strip_suffix(": true").unwrap_or(quoted);
        let found = entries.iter().find_map(|entry| {
            let mut properties = entry.properties();
            let (name, schema) = properties.find(|(name, _)| *name == parameter)?;
            Some((name, schema, is_positional(entry, name, schema)))
        });
        match found {
            Some((name, schema, true)) => value_name(name, &argument_kind(name, schema)),
            Some((name, _, false)) => format!("--{}", flag(name)),
            None => quoted.to_owned(),
        }
    };
    let parts: Vec<String> = text
        .split('`')
        .enumerate()
        .map(|(n, part)| {
            if n % 2 == 1 {
                in_words(part)
            } else {
                part.to_owned()
            }
        })
        .collect();
    parts.join("`")
}

fn argument(entry: &'static Entry, name: &'static str, schema: &Value) -> Arg {
    let description = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let help = match help::parameter(entry, name) {
        _ if name == "session_id" && entry.noun() == "session" => last_session::HELP.to_owned(),
        Some(help) => help.to_owned(),
        None => in_command_words(entry, &description.replace('\n', " ")),
    };
    let kind = argument_kind(name, schema);
    let argument = Arg::new(name)
        .help(help.trim_end_matches('.').to_owned())
        .hide(help::is_hidden(entry, name))
        .value_name(value_name(name, &kind))
        .required(entry.requires(name));
    let argument = if is_positional(entry, name, schema) {
        argument
    } else {
        argument.long(flag(name)).aliases(other_flag(name))
    };
    match kind {
        ArgumentKind::Choice(choices) => argument.value_parser(PossibleValuesParser::new(choices)),
        ArgumentKind::Integer => argument
            .value_parser(value_parser!(i64))
            .allow_negative_numbers(true),
        ArgumentKind::Number => argument
            .value_parser(value_parser!(f64))
            .allow_negative_numbers(true),
        ArgumentKind::Boolean => argument
            .value_parser(value_parser!(bool))
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("true|false"),
        ArgumentKind::List => {
            let about = argument.get_help().map(ToString::to_string);
            let about = about.unwrap_or_default();
            argument.action(ArgAction::Append).help(format!(
                "{about}; may be repeated, and '' alone is an empty list"
            ))
        }
        ArgumentKind::CommandLine => argument
            .num_args(1..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true),
        ArgumentKind::Variables => argument
            .action(ArgAction::Append)
            .value_name("NAME[=VALUE]"),
        ArgumentKind::Targets => argument
            .action(ArgAction::Append)
            .value_name("PROJECT")
            .help("Project to run in, by name or id, or PROJECT/WORKSPACE; may be repeated"),
        ArgumentKind::Json => argument.value_name("JSON"),
        ArgumentKind::Text => argument,
    }
}

/// The parameters that were given.
pub(super) fn read(entry: &Entry, matches: &ArgMatches) -> Result<Map<String, Value>, Failure> {
    let mut given = Map::new();
    for (name, schema) in entry.properties().filter(|(name, _)| *name != FULL) {
        if matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine)
            && let Some(value) = value(name, schema, matches)?
        {
            given.insert(name.to_owned(), value);
        }
    }
    if has_optional_project(entry)
        && let Some(project) = matches.get_one::<String>(PROJECT_FLAG)
    {
        given.insert("project_id".to_owned(), Value::from(project.as_str()));
    }
    if takes_secrets(entry)
        && let Some(texts) = matches.get_many::<String>(SECRET)
    {
        let secrets = variables::parse_secrets(texts.cloned())?;
        let env = given.entry("env").or_insert_with(|| Map::new().into());
        if let Some(env) = env.as_object_mut() {
            env.extend(secrets);
        }
    }
    Ok(given)
}

fn value(name: &str, schema: &Value, matches: &ArgMatches) -> Result<Option<Value>, Failure> {
    let text = || matches.get_one::<String>(name).cloned();
    let texts = || {
        matches
            .get_many::<String>(name)
            .into_iter()
            .flatten()
            .cloned()
    };
    Ok(match argument_kind(name, schema) {
        // As on the command line, or as in the list of calls.
        ArgumentKind::Text if name == "operation" => {
            text().map(|text| Value::from(text.replace([' ', '-'], "_")))
        }
        ArgumentKind::Text | ArgumentKind::Choice(_) => text().map(Value::from),
        ArgumentKind::Integer => matches
            .get_one::<i64>(name)
            .map(|value| Value::from(*value)),
        ArgumentKind::Number => matches
            .get_one::<f64>(name)
            .map(|value| Value::from(*value)),
        ArgumentKind::Boolean => matches
            .get_one::<bool>(name)
            .map(|value| Value::from(*value)),
        ArgumentKind::List => {
            let items: Vec<String> = texts().collect();
            let is_cleared = matches!(items.as_slice(), [only] if only.is_empty());
            Some(Value::from(if is_cleared { Vec::new() } else { items }))
        }
        ArgumentKind::CommandLine => match texts().collect::<Vec<_>>() {
            words if words.len() == 1 => words.into_iter().next().map(Value::from),
            words => Some(Value::from(words)),
        },
        ArgumentKind::Variables => Some(Value::Object(variables::parse(texts())?)),
        ArgumentKind::Targets => Some(texts().map(|text| target(&text)).collect()),
        ArgumentKind::Json => match text() {
            Some(text) => Some(serde_json::from_str(&text).map_err(|error| {
                Failure::with_cause(format!("--{} must be JSON", flag(name)), &error)
            })?),
            None => None,
        },
    })
}

fn target(text: &str) -> Value {
    let (project, workspace) = match text.split_once('/') {
        Some((project, workspace)) => (project, Some(workspace)),
        None => (text, None),
    };
    let mut target = Map::from_iter([("project_id".to_owned(), Value::from(project))]);
    if let Some(workspace) = workspace {
        target.insert("workspace_id".to_owned(), Value::from(workspace));
    }
    Value::Object(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_name_commands_and_flags() {
        let entry = operations::find("session_message").unwrap();
        let text =
            "`session_events` with `wait_seconds`; `prompt`, `create_workspace: true`, `other`";
        assert_eq!(
            in_command_words(entry, text),
            "`oubliette session events` with `--wait`; `PROMPT`, `--create-workspace`, `other`"
        );
    }
}
