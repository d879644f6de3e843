//! JSON Schemas of callers' tools. They are untrusted: one that would be slow to compile or to
//! validate with is rejected when it is declared.

use std::collections::HashMap;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// With every reference followed.
const MAX_SCHEMA_NODES: u64 = 20_000;
/// Of a compiled pattern.
const MAX_PATTERN_BYTES: usize = 64 << 10;
const MAX_PATTERNS: usize = 64;

/// Keywords whose schemas apply to the same value as the schema they are in.
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

/// Checks the schema of a tool; the error says what is wrong with it.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let Value::Object(fields) = schema else {
        return Err("is not an object".to_owned());
    };
    if fields.get("type").and_then(Value::as_str) != Some("object") {
        return Err("must have `\"type\": \"object\"`: arguments are an object".to_owned());
    }
    let bytes = schema.to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        return Err(format!(
            "has {bytes} bytes; the maximum is {MAX_SCHEMA_BYTES}"
        ));
    }
    SizeCheck::new(schema).check()?;
    compile(schema).map(drop)
}

pub(super) fn compile(schema: &Value) -> Result<Validator, String> {
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN_BYTES))
        .build(schema)
        .map_err(|error| {
            let hint = if is_about_pattern(&error) {
                format!(
                    "; a pattern is a regular expression without look-around and back-references \
                     that takes at most {MAX_PATTERN_BYTES} bytes when it is compiled"
                )
            } else {
                String::new()
            };
            format!("is not a schema: {}{hint}", shorten(&error.to_string()))
        })
}

fn is_about_pattern(error: &ValidationError<'_>) -> bool {
    matches!(error.kind(), ValidationErrorKind::Format { format } if format == "regex")
}

/// Validates arguments; the error says what is wrong with them.
pub(super) fn validate(validator: &Validator, arguments: &Value) -> Result<(), String> {
    match validator.iter_errors(arguments).next() {
        None => Ok(()),
        Some(error) => {
            let path = error.instance_path().to_string();
            let location = match path.as_str() {
                "" => "the arguments".to_owned(),
                path => format!("`{}`", path.trim_start_matches('/').replace('/', ".")),
            };
            Err(format!("{location}: {}", shorten(&error.to_string())))
        }
    }
}

fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Measures a schema with every reference followed.
struct SizeCheck<'a> {
    root: &'a Value,
    /// The sizes of references that were followed.
    sizes: HashMap<String, Size>,
    /// References that are being followed.
    open: Vec<String>,
}

#[derive(Clone, Copy, Default)]
struct Size {
    nodes: u64,
    /// Whether it refers to something that it is part of.
    recursive: bool,
}

impl<'a> SizeCheck<'a> {
    fn new(root: &'a Value) -> Self {
        Self {
            root,
            sizes: HashMap::new(),
            open: vec!["#".to_owned()],
        }
    }

    fn check(mut self) -> Result<(), String> {
        let patterns = count_patterns(self.root);
        if patterns > MAX_PATTERNS {
            return Err(format!(
                "has {patterns} patterns; the maximum is {MAX_PATTERNS}"
            ));
        }
        let size = self.size(self.root)?;
        if size.nodes > MAX_SCHEMA_NODES {
            return Err(format!(
                "is too large: more than {MAX_SCHEMA_NODES} parts when its references are followed"
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
                // A schema that recurses in two ways for the same value takes time exponential in depth.
                let (mut nested_recursion, mut in_place_recursions) = (false, 0);
                for (key, value) in fields {
                    let part = match (key.as_str(), value) {
                        ("$ref", Value::String(to)) => self.follow(to)?,
                        ("$dynamicRef" | "$recursiveRef", _) => {
                            return Err(format!("uses `{key}`, which is not supported"));
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
                                in_place_recursions += u32::from(in_place && part.recursive);
                                sum = add(sum, part);
                            }
                            nested_recursion |= !in_place && sum.recursive;
                            sum
                        }
                    };
                    in_place_recursions += u32::from(key == "$ref" && part.recursive);
                    size = add(size, part);
                }
                if in_place_recursions + u32::from(nested_recursion) > 1 {
                    return Err(
                        "refers to itself in more than one way for the same value".to_owned()
                    );
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
        if let Some(size) = self.sizes.get(to) {
            return Ok(*size);
        }
        let target = to
            .strip_prefix('#')
            .filter(|pointer| pointer.is_empty() || pointer.starts_with('/'))
            .and_then(|pointer| self.root.pointer(pointer));
        let Some(target) = target else {
            return Err(format!(
                "refers to `{}`; a reference must be inside the schema, for example `#/$defs/name`",
                shorten(to)
            ));
        };
        self.open.push(to.to_owned());
        let followed = self.size(target);
        self.open.pop();
        let size = followed?;
        self.sizes.insert(to.to_owned(), size);
        Ok(size)
    }
}

/// The number of patterns in a schema. Each is compiled once, so references are not followed; but a
/// reference may point anywhere, so patterns in plain values count too.
fn count_patterns(node: &Value) -> usize {
    match node {
        Value::Array(items) => items.iter().map(count_patterns).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| {
                let own = match (key.as_str(), value) {
                    ("pattern", Value::String(_)) => 1,
                    ("patternProperties", Value::Object(by_pattern)) => by_pattern.len(),
                    _ => 0,
                };
                own + count_patterns(value)
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
    fn ordinary_schemas_are_accepted_and_enforced() {
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
        let validator = compile(&schema).unwrap();
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
    fn the_number_and_size_of_patterns_are_limited() {
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
        for (allowed, excessive) in [
            (named(MAX_PATTERNS), named(MAX_PATTERNS + 1)),
            (keyed(MAX_PATTERNS), keyed(MAX_PATTERNS + 1)),
        ] {
            assert_eq!(check(&allowed), Ok(()));
            let error = check(&excessive).unwrap_err();
            assert!(error.contains("the maximum is 64"), "{error}");
        }
        let hidden = json!({
            "type": "object",
            "properties": { "x": { "$ref": "#/default" } },
            "default": named(MAX_PATTERNS + 1),
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
    fn schemas_that_are_not_of_objects_or_would_be_slow_are_rejected() {
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
            let started = Instant::now();
            assert!(check(&bad).is_err(), "{bad:.200}");
            assert!(started.elapsed() < Duration::from_secs(2));
        }
        let slow = object(json!({ "x": { "type": "string", "pattern": "^(a+)+$" } }));
        assert_eq!(check(&slow), Ok(()));
        let started = Instant::now();
        let text = format!("{}b", "a".repeat(50_000));
        let slow = compile(&slow).unwrap();
        assert!(validate(&slow, &json!({ "x": text })).is_err());
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
