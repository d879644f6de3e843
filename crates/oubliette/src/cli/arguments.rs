//! Arguments of a command from the schema of an operation's parameters, and back to JSON.
//!
//! Required parameters are positional, and what takes the rest of the line; the others are flags. A
//! parameter that names something by its id drops the `_id`.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use oubliette_engine::operations::Entry;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// What kind of text on the command line a parameter is.
enum Kind {
    Text,
    Choice(Vec<String>),
    Whole,
    Number,
    Switch,
    /// One value per use.
    Texts,
    /// The rest of the line: one word is for the shell, several are a program and its arguments.
    Words,
    /// `NAME=VALUE`, or `NAME` alone for the value of that variable here.
    Variables,
    /// `PROJECT[/WORKSPACE]`, one per use.
    Places,
    Json,
}

fn kind(name: &str, schema: &Value) -> Kind {
    if name == "targets" {
        return Kind::Places;
    }
    let choices = schema.get("enum").and_then(Value::as_array);
    if let Some(choices) = choices {
        return Kind::Choice(
            choices
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        );
    }
    if schema.get("type").is_some_and(Value::is_array) {
        return Kind::Words;
    }
    let item_kind = |key: &str| {
        schema
            .get(key)
            .and_then(|inner| inner.get("type")?.as_str())
    };
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => Kind::Text,
        Some("integer") => Kind::Whole,
        Some("number") => Kind::Number,
        Some("boolean") => Kind::Switch,
        Some("array") if item_kind("items") == Some("string") => Kind::Texts,
        Some("object") if item_kind("additionalProperties") == Some("string") => Kind::Variables,
        _ => Kind::Json,
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

pub(super) fn of(entry: &'static Entry) -> Vec<Arg> {
    entry
        .properties()
        .map(|(name, schema)| argument(entry, name, schema))
        .collect()
}

fn argument(entry: &'static Entry, name: &'static str, schema: &Value) -> Arg {
    let flag = flag(name);
    let help = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let help = help.replace('\n', " ");
    let argument = Arg::new(name).help(match name {
        name if name.ends_with("project_id") => "The project, by name or id".to_owned(),
        "schedule_id" => "The schedule, by name or id".to_owned(),
        _ => help.trim_end_matches('.').to_owned(),
    });
    let value = flag.to_uppercase().replace('-', "_");
    let kind = kind(name, schema);
    let required = entry.requires(name);
    // What to do is what these commands are for, though it has two names in the schema.
    let subject = name == "prompt" || (name == "session_id" && entry.name == "session_message");
    let positional = required && !matches!(kind, Kind::Places);
    let argument = match positional || subject || matches!(kind, Kind::Words) {
        true => argument.required(required).value_name(value),
        false => argument.long(flag).value_name(value),
    };
    match kind {
        Kind::Choice(choices) => argument.value_parser(PossibleValuesParser::new(choices)),
        Kind::Whole => argument
            .value_parser(value_parser!(i64))
            .allow_negative_numbers(true),
        Kind::Number => argument
            .value_parser(value_parser!(f64))
            .allow_negative_numbers(true),
        Kind::Switch => argument
            .value_parser(value_parser!(bool))
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("true|false"),
        Kind::Texts => argument.action(ArgAction::Append),
        Kind::Words => argument
            .num_args(1..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true),
        Kind::Variables => argument
            .action(ArgAction::Append)
            .value_name("NAME[=VALUE]"),
        Kind::Places => argument
            .action(ArgAction::Append)
            .required(required)
            .value_name("PROJECT[/WORKSPACE]")
            .help("A project that it is for, by name or id; may be given several times"),
        Kind::Json => argument.value_name("JSON"),
        Kind::Text => argument,
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
    Ok(match kind(name, schema) {
        Kind::Text | Kind::Choice(_) => text().map(Value::from),
        Kind::Whole => matches
            .get_one::<i64>(name)
            .map(|value| Value::from(*value)),
        Kind::Number => matches
            .get_one::<f64>(name)
            .map(|value| Value::from(*value)),
        Kind::Switch => matches
            .get_one::<bool>(name)
            .map(|value| Value::from(*value)),
        Kind::Texts => Some(Value::from(texts().collect::<Vec<_>>())),
        Kind::Words => match texts().collect::<Vec<_>>() {
            words if words.len() == 1 => words.into_iter().next().map(Value::from),
            words => Some(Value::from(words)),
        },
        Kind::Variables => {
            let pairs: Result<Map<_, _>, _> = texts().map(|text| variable(&text)).collect();
            Some(Value::Object(pairs?))
        }
        Kind::Places => Some(texts().map(|text| place(&text)).collect()),
        Kind::Json => {
            match text() {
                Some(text) => Some(serde_json::from_str(&text).map_err(|error| {
                    Failure::of(format!("--{} must be JSON", flag(name)), &error)
                })?),
                None => None,
            }
        }
    })
}

fn place(text: &str) -> Value {
    let (project, workspace) = match text.split_once('/') {
        Some((project, workspace)) => (project, Some(workspace)),
        None => (text, None),
    };
    let mut place = Map::from_iter([("project_id".to_owned(), Value::from(project))]);
    if let Some(workspace) = workspace {
        place.insert("workspace_id".to_owned(), Value::from(workspace));
    }
    Value::Object(place)
}

fn variable(text: &str) -> Result<(String, Value), Failure> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), Value::from(value)));
    }
    let value = std::env::var(text).map_err(|_| {
        Failure::new(format!(
            "{text} is not set here; write {text}=VALUE or set it first"
        ))
    })?;
    Ok((text.to_owned(), Value::from(value)))
}
