//! Arguments of a command from the schema of an operation's parameters, and back to JSON.
//!
//! Required parameters and the command line of `container exec` are positional; the others are flags,
//! without the suffix `_id`.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use oubliette_engine::operations::{self, Entry};
use serde_json::{Map, Value};

use super::variables;
use crate::failure::Failure;

/// The flag for variables of a project that are hidden in what agents write.
const SECRET: &str = "secret";

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
    if schema.get("type").is_some_and(Value::is_array) {
        return ArgumentKind::CommandLine;
    }
    // An item of several types is written as the first of them.
    let item_kind = |key: &str| {
        let kind = schema.get(key)?.get("type")?;
        kind.as_array()
            .map_or(Some(kind), |kinds| kinds.first())?
            .as_str()
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

/// `project_id` → `project`, `max_cost_usd` → `max-cost-usd`; `token_id` stays, because `--token`
/// is the key to call with.
fn flag(parameter: &str) -> String {
    let name = match parameter.strip_suffix("_id") {
        None if parameter == "targets" => "target",
        Some("token") | None => parameter,
        Some(name) => name,
    };
    name.replace('_', "-")
}

pub(super) fn from_schema(entry: &'static Entry) -> Vec<Arg> {
    let arguments = entry
        .properties()
        .map(|(name, schema)| argument(entry, name, schema));
    let secret = Arg::new(SECRET)
        .long(SECRET)
        .value_name("NAME[=VALUE]")
        .action(ArgAction::Append)
        .help(
            "Like --env, for a value of at least 8 characters that is hidden in what agents write; without \
             VALUE it is taken from this shell; may be repeated",
        );
    arguments
        .chain(takes_secrets(entry).then_some(secret))
        .collect()
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
        _ if name == "session_id" && entry.name == "session_message" => true,
        // A second name after that of the credential would be easy to mistake.
        _ if name == "kind" => false,
        _ => entry.requires(name),
    }
}

fn value_name(flag: &str) -> String {
    flag.to_uppercase().replace('-', "_")
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
            Some((name, is_positional(entry, name, schema)))
        });
        match found {
            Some((name, true)) => value_name(&flag(name)),
            Some((name, false)) => format!("--{}", flag(name)),
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
    let flag = flag(name);
    let description = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let help = in_command_words(entry, &description.replace('\n', " "))
        .replace(", `{\"NAME\": \"value\"}`", "; may be repeated");
    let argument = Arg::new(name).help(match name {
        name if name.ends_with("project_id") => "The project, by name or id".to_owned(),
        "schedule_id" => "The schedule, by name or id".to_owned(),
        "token_id" => "The token, by name or id".to_owned(),
        "agent_scope" if entry.noun() == "project" => "The scope of the key with which the agent of each \
             session can call Oubliette, not wider than that of your token: admin, read, write, project:NAME \
             or project:NAME:ro; none removes it"
            .to_owned(),
        "scope" => "admin, admin:ro, read, write, project:NAME or project:NAME:ro; a project by name or id"
            .to_owned(),
        "env" if takes_secrets(entry) => "Environment variable of the container; without VALUE it is taken \
             from this shell; may be repeated. Together with --secret, replaces all previous ones. Values are \
             never returned. One that looks like a key, by its name or itself, is also hidden in what agents \
             write. `{\"NAME\": {\"value\": \"…\", \"secret\": false}}` is taken too"
            .to_owned(),
        "command" => {
            "One argument is run by the shell; several are a program and its arguments".to_owned()
        }
        _ => help.trim_end_matches('.').to_owned(),
    });
    let value = value_name(&flag);
    let required = entry.requires(name);
    let argument = if is_positional(entry, name, schema) {
        argument.required(required).value_name(value)
    } else {
        argument.long(flag).value_name(value).required(required)
    };
    match argument_kind(name, schema) {
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
            .required(required)
            .value_name("PROJECT[/WORKSPACE]")
            .help("Project to run in, by name or id; may be repeated"),
        ArgumentKind::Json => argument.value_name("JSON"),
        ArgumentKind::Text => argument,
    }
}

/// The parameters that were given.
pub(super) fn read(entry: &Entry, matches: &ArgMatches) -> Result<Map<String, Value>, Failure> {
    let mut given = Map::new();
    for (name, schema) in entry.properties() {
        if matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine)
            && let Some(value) = value(name, schema, matches)?
        {
            given.insert(name.to_owned(), value);
        }
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
            "`oubliette session events` with `--wait-seconds`; `PROMPT`, `--create-workspace`, `other`"
        );
    }
}
