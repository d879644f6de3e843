//! Parses the JSON arguments of a call, with errors from which a model can correct its call.

use oubliette_model::{nearest, quoted};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::schema;
use crate::error::did_you_mean;
use crate::{EngineError, Result};

/// Parses arguments against an operation's schema. A null value counts as absent.
pub(crate) fn parse<T: DeserializeOwned>(
    schema: &Map<String, Value>,
    mut arguments: Map<String, Value>,
) -> Result<T> {
    arguments.retain(|_, value| !value.is_null());
    let known: Vec<&str> = schema::properties(schema).map(|(name, _)| name).collect();
    if let Some(unknown) = arguments
        .keys()
        .find(|name| !known.contains(&name.as_str()))
    {
        let hint = match nearest(unknown, known.iter().copied()) {
            Some(near) => did_you_mean(Some(near)),
            None => list_parameters(&known),
        };
        return Err(EngineError::invalid(format!(
            "unknown parameter {}{hint}",
            quoted(unknown)
        )));
    }
    if let Some(missing) = schema::required(schema).find(|name| !arguments.contains_key(*name)) {
        let about = schema::properties(schema)
            .find(|(name, _)| *name == missing)
            .and_then(|(_, schema)| schema.get("description")?.as_str())
            .map(|about| format!(": {about}"))
            .unwrap_or_default();
        return Err(EngineError::invalid(format!(
            "missing parameter `{missing}`{about}"
        )));
    }
    serde_path_to_error::deserialize(Value::Object(arguments.clone())).map_err(|error| {
        let path = error.path().to_string();
        let why = shorten(&error.into_inner().to_string());
        let parameter = match path.as_str() {
            "." | "" => find_invalid::<T>(&arguments),
            path => Some(path.to_owned()),
        };
        EngineError::invalid(match parameter {
            Some(path) => format!("parameter `{path}`: {why}"),
            None => why,
        })
    })
}

/// The parameter without which the others can be parsed. Serde reports no path for flattened fields.
fn find_invalid<T: DeserializeOwned>(arguments: &Map<String, Value>) -> Option<String> {
    let without = |name: &String| {
        let mut rest = arguments.clone();
        rest.remove(name);
        Value::Object(rest)
    };
    arguments
        .keys()
        .find(|name| T::deserialize(without(name)).is_ok())
        .cloned()
}

fn list_parameters(known: &[&str]) -> String {
    match known {
        [] => "; this operation takes no parameters".to_owned(),
        known => format!("; the parameters are `{}`", known.join("`, `")),
    }
}

/// The parser's message quotes a value that can be megabytes long.
fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
