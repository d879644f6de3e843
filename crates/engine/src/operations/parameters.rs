//! From the JSON of a call to typed parameters, with sentences a model can mend its call by.

use oubliette_model::{nearest, quoted};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::schema;
use crate::error::did_you_mean;
use crate::{EngineError, Result};

/// Parses arguments against an operation's schema. Null for an optional parameter is absence.
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
        let suggestion = did_you_mean(nearest(unknown, known.iter().copied()));
        let takes = if suggestion.is_empty() {
            takes(&known)
        } else {
            suggestion
        };
        return Err(EngineError::invalid(format!(
            "unknown parameter {}{takes}",
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
        let why = shortened(&error.into_inner().to_string());
        let culprit = match path.as_str() {
            "." | "" => culprit::<T>(&arguments),
            path => Some(path.to_owned()),
        };
        EngineError::invalid(match culprit {
            Some(path) => format!("parameter `{path}`: {why}"),
            None => why,
        })
    })
}

/// The parameter without which the others are fine: serde loses the path of flattened fields.
fn culprit<T: DeserializeOwned>(arguments: &Map<String, Value>) -> Option<String> {
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

fn takes(known: &[&str]) -> String {
    match known {
        [] => "; this operation takes no parameters".to_owned(),
        known => format!("; the parameters are `{}`", known.join("`, `")),
    }
}

/// A value from outside may be megabytes long and is quoted in the parser's message.
fn shortened(text: &str) -> String {
    const MOST: usize = 400;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
