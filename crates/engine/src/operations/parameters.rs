//! Parses the JSON arguments of a call, with errors from which a model can correct its call.

use oubliette_model::{nearest, quoted};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{find, schema};
use crate::error::did_you_mean;
use crate::{EngineError, Result};

/// Parses arguments against a schema. A null value counts as absent. The errors about an operation name it.
pub(crate) fn parse<T: DeserializeOwned>(
    operation: Option<&str>,
    schema: &Map<String, Value>,
    mut arguments: Map<String, Value>,
) -> Result<T> {
    arguments.retain(|_, value| !value.is_null());
    rename_aliases(schema, &mut arguments)?;
    let known: Vec<&str> = schema::properties(schema).map(|(name, _)| name).collect();
    if let Some(unknown) = arguments
        .keys()
        .find(|name| !known.contains(&name.as_str()))
    {
        let near = nearest(unknown, known.iter().copied());
        let hint = match near.or_else(|| only_with_word(unknown, &known)) {
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
            .map(|about| format!(": {}", schema::brief(about)))
            .unwrap_or_default();
        let (of_operation, listed) = match operation {
            Some(name) => (format!(" of `{name}`"), where_listed(missing)),
            // The tools for children have no list.
            None => (String::new(), String::new()),
        };
        return Err(EngineError::invalid(format!(
            "missing parameter `{missing}`{of_operation}{about}{listed}"
        )));
    }
    serde_path_to_error::deserialize(Value::Object(arguments.clone())).map_err(|error| {
        let path = error.path().to_string();
        let why = in_plain_words(&shorten(&error.into_inner().to_string()));
        let parameter = match path.as_str() {
            "." | "" => find_invalid::<T>(&arguments),
            path => Some(path.to_owned()),
        };
        EngineError::invalid(match parameter {
            Some(path) if path.starts_with("targets[") && why.starts_with("must be an object") => {
                format!("parameter `{path}` {why}; for example {{\"project_id\": \"NAME OR ID\"}}")
            }
            Some(path) if why.starts_with("must ") => format!("parameter `{path}` {why}"),
            Some(path) => format!("parameter `{path}`: {why}"),
            None => why,
        })
    })
}

/// The operation that lists the ids of a parameter, as a hint.
fn where_listed(parameter: &str) -> String {
    let noun = parameter.strip_suffix("_id").unwrap_or_default();
    match find(&format!("{noun}_list")) {
        Some(list) => format!("; `{}` shows them", list.name),
        None => String::new(),
    }
}

/// Gives aliases the names of their parameters.
fn rename_aliases(schema: &Map<String, Value>, arguments: &mut Map<String, Value>) -> Result<()> {
    let given: Vec<String> = arguments.keys().cloned().collect();
    for alias in given {
        let Some(name) = schema::aliased(schema, &alias) else {
            continue;
        };
        if arguments.contains_key(name) {
            return Err(EngineError::invalid(format!(
                "`{alias}` is an alias of `{name}`; give one of them"
            )));
        }
        if let Some(value) = arguments.remove(&alias) {
            arguments.insert(name.to_owned(), value);
        }
    }
    Ok(())
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

/// The one parameter that has this word in its name: `remote_url` for `url`.
fn only_with_word<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let mut with_word = known
        .iter()
        .filter(|name| name.split('_').any(|part| part == word));
    let first = with_word.next().copied();
    first.filter(|_| with_word.next().is_none())
}

fn list_parameters(known: &[&str]) -> String {
    match known {
        [] => "; this operation takes no parameters".to_owned(),
        known => format!("; the parameters are `{}`", known.join("`, `")),
    }
}

/// Says what the parser's message says, without names of Rust types.
fn in_plain_words(why: &str) -> String {
    if let Some(field) = why.strip_prefix("missing field ") {
        return format!("{field} is missing");
    }
    let kinds = ["invalid type: ", "invalid value: ", "unknown variant "];
    let Some(rest) = kinds.iter().find_map(|kind| why.strip_prefix(kind)) else {
        return why.to_owned();
    };
    let Some((found, expected)) = rest.rsplit_once(", expected ") else {
        return why.to_owned();
    };
    let found = match found.split_once(' ') {
        _ if found == "map" => "an object",
        _ if found == "sequence" => "a list",
        Some(("string" | "integer" | "boolean", value)) => value,
        _ => found.strip_prefix("floating point ").unwrap_or(found),
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    format!("must be {expected}, not {found}")
}

/// The parser's message quotes a value that can be megabytes long.
fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use oubliette_model::Level;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Target {
        #[expect(dead_code, reason = "only parsed")]
        id: String,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only parsed")]
    struct Params {
        memory_mb: Option<u32>,
        autonomy: Option<Level>,
        targets: Option<Vec<Target>>,
        force: Option<bool>,
    }

    #[test]
    fn a_word_of_one_name_suggests_that_parameter() {
        let known = ["remote_url", "max_cost_usd", "max_processes"];
        assert_eq!(only_with_word("url", &known), Some("remote_url"));
        assert_eq!(only_with_word("max", &known), None);
        assert_eq!(only_with_word("other", &known), None);
    }

    #[test]
    fn a_missing_id_is_named_with_its_operation_and_where_to_find_it() {
        let diff = find("session_diff").unwrap();
        let missing = |operation| {
            let parsed = parse::<Params>(operation, &diff.input, Map::new());
            parsed.unwrap_err().to_string()
        };
        assert_eq!(
            missing(Some(diff.name)),
            "missing parameter `session_id` of `session_diff`: Session id, or the start of it; `session_list` shows \
             them"
        );
        assert_eq!(
            missing(None),
            "missing parameter `session_id`: Session id, or the start of it"
        );
    }

    #[test]
    fn errors_name_the_parameter_and_no_type_of_rust() {
        let schema = json!({ "properties": {
            "memory_mb": {}, "autonomy": {}, "targets": {}, "force": {} } });
        let schema = schema.as_object().unwrap();
        let sentence = |arguments: Value| {
            let arguments = arguments.as_object().unwrap().clone();
            let parsed = parse::<Params>(None, schema, arguments);
            parsed.unwrap_err().to_string()
        };
        for (arguments, expected) in [
            (
                json!({ "memory_mb": "1g" }),
                "parameter `memory_mb` must be a whole number, 0 or more, not \"1g\"",
            ),
            (
                json!({ "memory_mb": 1.5 }),
                "parameter `memory_mb` must be a whole number, 0 or more, not `1.5`",
            ),
            (
                json!({ "force": [] }),
                "parameter `force` must be true or false, not a list",
            ),
            (
                json!({ "targets": {} }),
                "parameter `targets` must be a list, not an object",
            ),
            (
                json!({ "targets": ["x"] }),
                "parameter `targets[0]` must be an object, not \"x\"; for example {\"project_id\": \"NAME OR ID\"}",
            ),
            (
                json!({ "targets": [{}] }),
                "parameter `targets[0]`: `id` is missing",
            ),
            (
                json!({ "autonomy": "full" }),
                "parameter `autonomy` must be one of `off`, `low`, `medium`, `high`, not `full`",
            ),
        ] {
            assert_eq!(sentence(arguments), expected);
        }
    }
}
