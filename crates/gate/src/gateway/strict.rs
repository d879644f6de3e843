//! What a call of a session with a budget must be, so that its provider reads in it what was reserved for it.

use std::collections::HashSet;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The names that say how much a call can cost. Numbers, if the second is true.
const READ_NAMES: [(&str, bool); 15] = [
    ("model", false),
    ("stream", false),
    ("background", false),
    ("n", true),
    ("best_of", true),
    ("max_tokens", true),
    ("max_completion_tokens", true),
    ("max_output_tokens", true),
    ("maxOutputTokens", true),
    ("candidateCount", true),
    ("candidate_count", true),
    ("generationConfig", false),
    ("generation_config", false),
    ("contents", false),
    ("messages", false),
];
/// The objects that have some of them.
const READ_OBJECTS: [&str; 2] = ["generationConfig", "generation_config"];

/// The error says why a call cannot be sent.
pub(crate) fn check(body: &[u8]) -> Result<(), String> {
    let fields = match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => fields,
        _ => return Err("the request is not a JSON object that can be read".to_owned()),
    };
    serde_json::from_slice::<Names>(body).map_err(|error| error.to_string())?;
    check_numbers(&fields)?;
    let nested = READ_OBJECTS.into_iter().filter_map(|name| fields.get(name));
    for object in nested.filter_map(Value::as_object) {
        check_numbers(object)?;
    }
    let is_background = fields
        .get("background")
        .is_some_and(|value| !value.is_null() && *value != Value::Bool(false));
    if is_background {
        return Err(
            "`background` is not available: what such a call costs is not known when it ends"
                .to_owned(),
        );
    }
    Ok(())
}

fn check_numbers(fields: &Map<String, Value>) -> Result<(), String> {
    let numbers = READ_NAMES.iter().filter(|(_, is_number)| *is_number);
    for (name, _) in numbers {
        let is_wrong = |value: &&Value| !value.is_null() && !value.is_u64();
        if fields.get(*name).is_some_and(|value| is_wrong(&value)) {
            return Err(format!("`{name}` must be a whole number"));
        }
    }
    Ok(())
}

/// The names of an object, each of them once: providers differ in which of two they take, and in whether case matters.
struct Names;

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamesVisitor)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
        use serde::de::Error;
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let is_read = READ_NAMES.iter().any(|(read, _)| *read == name);
            let is_like_read = READ_NAMES
                .iter()
                .any(|(read, _)| read.eq_ignore_ascii_case(&name));
            if is_like_read && !is_read {
                return Err(A::Error::custom("a field has a name in the wrong case"));
            }
            if READ_OBJECTS.contains(&name.as_str()) {
                map.next_value::<Names>()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            if !seen.insert(name) {
                return Err(A::Error::custom("a field occurs twice"));
            }
        }
        Ok(Names)
    }

    // `null` instead of an object.
    fn visit_unit<E>(self) -> Result<Names, E> {
        Ok(Names)
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn calls_of_agents_are_taken() {
        for body in [
            r#"{"model":"m","max_tokens":5,"stream":true,"messages":[{"N":1,"n":2.5}]}"#,
            r#"{"n":null,"background":false,"input":"x"}"#,
            r#"{"contents":[],"generationConfig":{"maxOutputTokens":9,"temperature":0.5}}"#,
            r#"{"generationConfig":null}"#,
        ] {
            assert_eq!(check(body.as_bytes()), Ok(()), "{body}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for body in [
            "not json",
            "[]",
            r#"{"n":128.0}"#,
            r#"{"max_tokens":1,"max_completion_tokens":1e5}"#,
            r#"{"max_tokens":"100"}"#,
            r#"{"max_tokens":-1}"#,
            r#"{"max_tokens":1,"max_tokens":2}"#,
            r#"{"max_tokens":1,"Max_Tokens":2}"#,
            r#"{"generationConfig":{"candidateCount":2.0}}"#,
            r#"{"generationConfig":{"candidateCount":1,"candidateCount":2}}"#,
            r#"{"generationConfig":[]}"#,
            r#"{"background":true}"#,
            r#"{"background":1}"#,
            r#"{"x":"\ud800","n":128}"#,
        ] {
            assert!(check(body.as_bytes()).is_err(), "{body}");
        }
    }
}
