//! What a caller declares in `context`: taken or refused in good time, and every tool that is taken has a
//! name of its own that every agent can say.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::Random;

use crate::{Outcome, Target, kind_of, mutate};

/// Far longer than anything may take, on a busy machine and without optimisation too.
const LONGEST: Duration = Duration::from_secs(10);

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
    fn feed(&mut self, input: &[u8], _: &mut Random) -> Outcome {
        let Ok(context) = serde_json::from_slice::<Value>(input) else {
            return Ok(vec!["no JSON".to_owned()]);
        };
        let arguments =
            json!({ "a": { "a": ["aaaaaaaaaaaaaaaaaaaaaaaaaaab", 1, null] }, "message": 7 });
        let begun = Instant::now();
        let declared = oubliette_engine::dry_declaration(context, &arguments);
        if begun.elapsed() > LONGEST {
            return Err(format!("it took {:?}", begun.elapsed()));
        }
        let declared = match declared {
            Ok(declared) => declared,
            Err(why) if why.trim().is_empty() => return Err("refused without a word".to_owned()),
            Err(why) => return Ok(vec![kind_of(&why)]),
        };
        let mut names = HashSet::new();
        let mut kinds = vec![format!("{} tools", declared.len().min(3))];
        for (name, wrong) in declared {
            let sound = (1..=64).contains(&name.len())
                && name
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-')
                && !name.starts_with("oubliette_");
            if !sound {
                return Err(format!("a tool has the name `{name}`"));
            }
            if !names.insert(name.clone()) {
                return Err(format!("two tools have the name `{name}`"));
            }
            kinds.push(wrong.map_or("fits".to_owned(), |why| kind_of(&why)));
        }
        Ok(kinds)
    }

    fn mutate(&self, inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
        let some = (0..3).map(|_| mutate::one_of(inputs, random).clone());
        let some: Vec<Vec<u8>> = some.collect();
        let whole = some
            .iter()
            .filter_map(|input| serde_json::from_slice(input).ok());
        let whole: Vec<Value> = whole.chain([json!({})]).collect();
        mutate::tree(&whole, &WORDS, random)
            .to_string()
            .into_bytes()
    }
}
