//! The tools that a caller declares in `context`: each declaration is accepted or rejected in time, and every
//! accepted tool has a unique name that all agents support.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::Random;

use crate::{RunResult, Target, message_kind, mutate};

/// Far more than a declaration needs, also on a busy machine and without optimisation.
const DECLARATION_TIMEOUT: Duration = Duration::from_secs(10);

const WORDS: [&str; 40] = [
    "caller_id",
    "caller_tools",
    "name",
    "description",
    "inputSchema",
    "timeout_seconds",
    "type",
    "object",
    "string",
    "array",
    "number",
    "properties",
    "required",
    "items",
    "$ref",
    "$defs",
    "#",
    "#/$defs/a",
    "#/properties/a",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "pattern",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
    "dependentSchemas",
    "enum",
    "const",
    "format",
    "minLength",
    "$dynamicRef",
    "(a+)+$",
    "[",
    "a",
    "oubliette",
];

pub(crate) struct Declarations;

impl Target for Declarations {
    fn run(&mut self, input: &[u8], _: &mut Random) -> RunResult {
        let Ok(context) = serde_json::from_slice::<Value>(input) else {
            return Ok(vec!["not JSON".to_owned()]);
        };
        let arguments =
            json!({ "a": { "a": ["aaaaaaaaaaaaaaaaaaaaaaaaaaab", 1, null] }, "message": 7 });
        let started = Instant::now();
        let declared = oubliette_engine::dry_declaration(context, &arguments);
        if started.elapsed() > DECLARATION_TIMEOUT {
            return Err(format!("the declaration took {:?}", started.elapsed()));
        }
        let tools = match declared {
            Ok(tools) => tools,
            Err(reason) if reason.trim().is_empty() => {
                return Err("the declaration was rejected without a reason".to_owned());
            }
            Err(reason) => return Ok(vec![message_kind(&reason)]),
        };
        let mut names = HashSet::new();
        let mut kinds = vec![format!("{} tools", tools.len().min(3))];
        for (name, mismatch) in tools {
            let is_valid = (1..=64).contains(&name.len())
                && name
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-')
                && !name.starts_with("oubliette_");
            if !is_valid {
                return Err(format!("a tool has the invalid name `{name}`"));
            }
            if !names.insert(name.clone()) {
                return Err(format!("two tools have the name `{name}`"));
            }
            kinds.push(
                mismatch.map_or("valid arguments".to_owned(), |reason| message_kind(&reason)),
            );
        }
        Ok(kinds)
    }

    fn mutate(&self, inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
        let chosen: Vec<&Vec<u8>> = (0..3).map(|_| mutate::pick(inputs, random)).collect();
        let values: Vec<Value> = chosen
            .into_iter()
            .filter_map(|input| serde_json::from_slice(input).ok())
            .chain([json!({})])
            .collect();
        mutate::mutate_json(&values, &WORDS, random)
            .to_string()
            .into_bytes()
    }
}
