//! Schemas of callers' tools. They come from outside: what would take for ever is refused when it is
//! declared.

use std::collections::HashMap;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

const LONGEST: usize = 64 << 10;
/// Nodes of a schema with every reference followed.
const LARGEST: u64 = 20_000;
/// The largest program that a pattern may become.
const PATTERN: usize = 64 << 10;
const MOST_PATTERNS: usize = 64;

/// Keywords whose schemas are about the same value as the schema they are in.
const IN_PLACE: [&str; 9] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "$ref",
];

/// Checks the schema of a tool; the sentence says what is wrong with it.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let Value::Object(fields) = schema else {
        return Err("is not an object".to_owned());
    };
    if fields.get("type").and_then(Value::as_str) != Some("object") {
        return Err("must have `\"type\": \"object\"`: arguments are an object".to_owned());
    }
    let bytes = schema.to_string().len();
    if bytes > LONGEST {
        return Err(format!("has {bytes} bytes; at most {LONGEST} are taken"));
    }
    Walk::new(schema).whole()?;
    compiled(schema).map(drop)
}

pub(super) fn compiled(schema: &Value) -> Result<Validator, String> {
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .with_pattern_options(PatternOptions::regex().size_limit(PATTERN))
        .build(schema)
        .map_err(|error| {
            let hint = match is_about_pattern(&error) {
                true => format!(
                    "; a pattern is a regular expression without look-around and back-references \
                     that takes at most {PATTERN} bytes when it is compiled"
                ),
                false => String::new(),
            };
            format!("is not a schema: {}{hint}", short(&error.to_string()))
        })
}

fn is_about_pattern(error: &ValidationError<'_>) -> bool {
    matches!(error.kind(), ValidationErrorKind::Format { format } if format == "regex")
}

/// Checks arguments; the sentence says what is wrong with them.
pub(super) fn validate(validator: &Validator, arguments: &Value) -> Result<(), String> {
    match validator.iter_errors(arguments).next() {
        None => Ok(()),
        Some(error) => {
            let path = error.instance_path().to_string();
            let place = match path.as_str() {
                "" => "the arguments".to_owned(),
                path => format!("`{}`", path.trim_start_matches('/').replace('/', ".")),
            };
            Err(format!("{place}: {}", short(&error.to_string())))
        }
    }
}

fn short(text: &str) -> String {
    const MOST: usize = 300;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// How large a schema is when every reference is followed.
struct Walk<'a> {
    root: &'a Value,
    known: HashMap<String, Size>,
    /// References that are being followed.
    open: Vec<String>,
}

#[derive(Clone, Copy, Default)]
struct Size {
    nodes: u64,
    /// Whether it leads back to something that it is part of.
    recursive: bool,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Value) -> Self {
        Self {
            root,
            known: HashMap::new(),
            open: vec!["#".to_owned()],
        }
    }

    fn whole(mut self) -> Result<(), String> {
        let patterns = patterns(self.root);
        if patterns > MOST_PATTERNS {
            return Err(format!(
                "has {patterns} patterns; at most {MOST_PATTERNS} are taken"
            ));
        }
        let size = self.size(self.root)?;
        if size.nodes > LARGEST {
            return Err(format!(
                "is too large when its references are followed: more than {LARGEST} parts"
            ));
        }
        Ok(())
    }

    fn size(&mut self, node: &Value) -> Result<Size, String> {
        let mut size = Size {
            nodes: 1,
            recursive: false,
        };
        match node {
            Value::Array(items) => {
                for item in items {
                    size = add(size, self.size(item)?);
                }
            }
            Value::Object(fields) => {
                // Who goes deeper in two ways at the same place does so twice as often with every step.
                let (mut deeper, mut beside) = (false, 0);
                for (key, value) in fields {
                    let part = match (key.as_str(), value) {
                        ("$ref", Value::String(to)) => self.follow(to)?,
                        ("$dynamicRef" | "$recursiveRef", _) => {
                            return Err(format!("uses `{key}`, which is not taken"));
                        }
                        ("const" | "enum" | "default" | "examples", _) => continue,
                        _ => {
                            let in_place = IN_PLACE.contains(&key.as_str());
                            let branches = match (in_place, value) {
                                (true, Value::Array(branches)) => branches.iter().collect(),
                                (true, Value::Object(branches)) if key == "dependentSchemas" => {
                                    branches.values().collect()
                                }
                                _ => vec![value],
                            };
                            let mut sum = Size::default();
                            for branch in branches {
                                let part = self.size(branch)?;
                                beside += u32::from(in_place && part.recursive);
                                sum = add(sum, part);
                            }
                            deeper |= !in_place && sum.recursive;
                            sum
                        }
                    };
                    beside += u32::from(key == "$ref" && part.recursive);
                    size = add(size, part);
                }
                if beside + u32::from(deeper) > 1 {
                    return Err("leads back to itself in more than one way at once".to_owned());
                }
            }
            _ => {}
        }
        Ok(size)
    }

    fn follow(&mut self, to: &str) -> Result<Size, String> {
        if self.open.iter().any(|open| open == to) {
            return Ok(Size {
                nodes: 1,
                recursive: true,
            });
        }
        if let Some(known) = self.known.get(to) {
            return Ok(*known);
        }
        let target = to
            .strip_prefix('#')
            .filter(|pointer| pointer.is_empty() || pointer.starts_with('/'))
            .and_then(|pointer| self.root.pointer(pointer));
        let Some(target) = target else {
            return Err(format!(
                "refers to `{}`; only places inside it can be, as in `#/$defs/name`",
                short(to)
            ));
        };
        self.open.push(to.to_owned());
        let size = self.size(target);
        self.open.pop();
        let size = size?;
        self.known.insert(to.to_owned(), size);
        Ok(size)
    }
}

/// How many patterns stand in a schema. References need not be followed, as each pattern is compiled
/// once; but they may lead anywhere, so that values count like schemas.
fn patterns(node: &Value) -> usize {
    match node {
        Value::Array(items) => items.iter().map(patterns).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| {
                let own = match (key.as_str(), value) {
                    ("pattern", Value::String(_)) => 1,
                    ("patternProperties", Value::Object(by_pattern)) => by_pattern.len(),
                    _ => 0,
                };
                own + patterns(value)
            })
            .sum(),
        _ => 0,
    }
}

fn add(one: Size, other: Size) -> Size {
    Size {
        nodes: one.nodes.saturating_add(other.nodes),
        recursive: one.recursive || other.recursive,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{Map, json};

    use super::*;

    fn object(properties: Value) -> Value {
        json!({ "type": "object", "properties": properties })
    }

    #[test]
    fn ordinary_schemas_are_taken_and_hold() {
        let schema = json!({
            "type": "object",
            "properties": {
                "message": { "type": "string", "pattern": "^[a-z ]+$" },
                "to": { "type": "array", "items": { "type": "string" }, "minItems": 1 },
                "tree": { "$ref": "#/$defs/node" },
            },
            "required": ["message"],
            "$defs": { "node": { "anyOf": [
                { "type": "null" },
                { "type": "object", "properties": {
                    "left": { "$ref": "#/$defs/node" }, "right": { "$ref": "#/$defs/node" },
                } },
            ] } },
        });
        assert_eq!(check(&schema), Ok(()));
        let validator = compiled(&schema).unwrap();
        let tree = json!({ "left": { "left": null }, "right": null });
        let good = json!({ "message": "hello you", "to": ["a"], "tree": tree });
        assert_eq!(validate(&validator, &good), Ok(()));
        for (bad, word) in [
            (json!({}), "message"),
            (json!({ "message": 7 }), "message"),
            (json!({ "message": "x", "to": [1] }), "to.0"),
            (json!({ "message": "x", "tree": { "left": 1 } }), "tree"),
        ] {
            let error = validate(&validator, &bad).unwrap_err();
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn patterns_are_few_and_small() {
        let numbered = |count: usize, value: fn(usize) -> Value| -> Value {
            let pairs = (0..count).map(|n| (format!("x{n}"), value(n)));
            Value::Object(pairs.collect())
        };
        let named = |count| {
            let pattern = |n: usize| json!({ "pattern": format!("\\w{{9}}{n}") });
            object(numbered(count, pattern))
        };
        let keyed = |count| {
            let keys = numbered(count, |_| json!({ "type": "string" }));
            json!({ "type": "object", "patternProperties": keys })
        };
        for (most, more) in [
            (named(MOST_PATTERNS), named(MOST_PATTERNS + 1)),
            (keyed(MOST_PATTERNS), keyed(MOST_PATTERNS + 1)),
        ] {
            assert_eq!(check(&most), Ok(()));
            let error = check(&more).unwrap_err();
            assert!(error.contains("at most 64 are taken"), "{error}");
        }
        let hidden = json!({
            "type": "object",
            "properties": { "x": { "$ref": "#/default" } },
            "default": named(MOST_PATTERNS + 1),
        });
        assert!(check(&hidden).is_err());
        let large = "\\w{5000}";
        for large in [
            object(json!({ "x": { "pattern": large } })),
            json!({ "type": "object", "patternProperties": { large: {} } }),
        ] {
            let error = check(&large).unwrap_err();
            assert!(error.contains("at most 65536 bytes"), "{error}");
        }
    }

    #[test]
    fn what_is_no_object_schema_or_would_take_for_ever_is_refused() {
        let mut doubling = json!({ "type": "string" });
        let mut defs = Map::new();
        for n in 0..40 {
            defs.insert(n.to_string(), doubling);
            let below = format!("#/$defs/{n}");
            doubling = json!({ "allOf": [{ "$ref": below }, { "$ref": below }] });
        }
        let doubling = json!({ "type": "object", "properties": { "x": doubling }, "$defs": defs });
        let twice = json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }] });
        let two_ways = json!({
            "type": "object",
            "properties": { "a": { "$ref": "#" } },
            "allOf": [{ "properties": { "a": { "$ref": "#" } } }],
        });
        for bad in [
            json!("x"),
            json!({}),
            json!({ "type": "string" }),
            json!({ "type": ["object", "null"] }),
            object(json!({ "x": { "type": "nothing" } })),
            object(json!({ "x": { "pattern": "(" } })),
            object(json!({ "x": { "pattern": "(?=a)b" } })),
            object(json!({ "x": { "$ref": "https://example.com/schema" } })),
            object(json!({ "x": { "$ref": "file:///etc/passwd" } })),
            object(json!({ "x": { "$ref": "#/$defs/missing" } })),
            object(json!({ "x": { "$dynamicRef": "#x" } })),
            object(json!({ "x": { "description": "y".repeat(100_000) } })),
            object(json!({ "x": twice })),
            two_ways,
            doubling,
        ] {
            let begun = Instant::now();
            assert!(check(&bad).is_err(), "{bad:.200}");
            assert!(begun.elapsed() < Duration::from_secs(2));
        }
        let slow = object(json!({ "x": { "type": "string", "pattern": "^(a+)+$" } }));
        assert_eq!(check(&slow), Ok(()));
        let begun = Instant::now();
        let text = format!("{}b", "a".repeat(50_000));
        let slow = compiled(&slow).unwrap();
        assert!(validate(&slow, &json!({ "x": text })).is_err());
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
