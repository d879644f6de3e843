//! Parses YAML settings files within limits.
//!
//! Values are built from parser events, so that neither nesting nor aliases can use much memory.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

const MAX_DEPTH: usize = 64;
const MAX_NODES: usize = 100_000;
const MAX_FILE_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(f64),
    String(String),
    List(Vec<Value>),
    /// In the order of the file, without duplicate keys.
    Map(Vec<(String, Value)>),
}

impl Value {
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Map(pairs) = self else {
            return None;
        };
        pairs
            .iter()
            .find_map(|(key, value)| (key == name).then_some(value))
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list that has only strings.
    pub(crate) fn as_strings(&self) -> Option<Vec<String>> {
        let Self::List(items) = self else {
            return None;
        };
        items
            .iter()
            .map(|item| item.as_str().map(str::to_owned))
            .collect()
    }
}

/// Parses a file with one document. The error is a clause for people.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    if text.len() > MAX_FILE_BYTES {
        return Err(format!("it is larger than {MAX_FILE_BYTES} bytes"));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut composer = Composer::default();
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|error| format!("it is not valid YAML: {error}"))?;
        documents += usize::from(matches!(event, Event::DocumentStart(_)));
        if documents > 1 {
            return Err("it has more than one YAML document".to_owned());
        }
        composer.handle_event(event)?;
    }
    Ok(composer.root.unwrap_or(Value::Null))
}

#[derive(Debug, Default)]
struct Composer {
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, Value>,
    nodes: usize,
    root: Option<Value>,
}

/// A list or map whose end has not been parsed yet, with its anchor.
#[derive(Debug)]
enum OpenCollection {
    List(usize, Vec<Value>),
    Map(usize, OpenMap),
}

/// The parsed part of a map.
#[derive(Debug, Default)]
struct OpenMap {
    pairs: Vec<(String, Value)>,
    keys: HashSet<String>,
    /// The key whose value comes next.
    next_key: Option<String>,
}

impl Composer {
    fn handle_event(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = parse_scalar(&text, style, tag.as_deref());
                self.store_anchor(anchor, &value);
                self.add_value(value, Some(text.into_owned()))
            }
            Event::SequenceStart(anchor, _) => {
                self.open_collection(OpenCollection::List(anchor, Vec::new()))
            }
            Event::MappingStart(anchor, _) => {
                self.open_collection(OpenCollection::Map(anchor, OpenMap::default()))
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let (anchor, value) = match self.open.pop() {
                    Some(OpenCollection::List(anchor, items)) => (anchor, Value::List(items)),
                    Some(OpenCollection::Map(anchor, map)) => (anchor, Value::Map(map.pairs)),
                    None => return Ok(()),
                };
                self.store_anchor(anchor, &value);
                self.add_value(value, None)
            }
            Event::Alias(anchor) => {
                let value = self
                    .anchors
                    .get(&anchor)
                    .cloned()
                    .ok_or("it has an alias inside of its own anchor")?;
                self.nodes += count_nodes(&value);
                let key = value.as_str().map(str::to_owned);
                self.add_value(value, key)
            }
            _ => Ok(()),
        }
    }

    fn open_collection(&mut self, open: OpenCollection) -> Result<(), String> {
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} levels deep"));
        }
        self.open.push(open);
        Ok(())
    }

    fn store_anchor(&mut self, anchor: usize, value: &Value) {
        if anchor > 0 {
            self.nodes += count_nodes(value);
            self.anchors.insert(anchor, value.clone());
        }
    }

    /// Adds a value to the innermost collection; `key` is its text, for use as a key of a map.
    fn add_value(&mut self, value: Value, key: Option<String>) -> Result<(), String> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(format!("it has more than {MAX_NODES} values"));
        }
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(OpenCollection::List(_, items)) => items.push(value),
            Some(OpenCollection::Map(_, map)) => match map.next_key.take() {
                Some(key) => map.pairs.push((key, value)),
                None => {
                    let key = key.unwrap_or_else(|| format!("{value:?}"));
                    if !map.keys.insert(key.clone()) {
                        return Err(format!("it has the duplicate key `{key}`"));
                    }
                    map.next_key = Some(key);
                }
            },
        }
        Ok(())
    }
}

/// The number of values in a value, itself included.
fn count_nodes(value: &Value) -> usize {
    1 + match value {
        Value::List(items) => items.iter().map(count_nodes).sum(),
        Value::Map(pairs) => pairs.iter().map(|(_, value)| 1 + count_nodes(value)).sum(),
        _ => 0,
    }
}

/// Resolves a scalar by the core schema of YAML 1.2.
fn parse_scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_string = match tag {
        Some(tag) => !tag.is_yaml_core_schema() || tag.suffix == "str",
        None => style != ScalarStyle::Plain,
    };
    if is_string {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => parse_number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}

fn parse_number(text: &str) -> Option<f64> {
    let radix = |digits: &str, radix| {
        let value = u64::from_str_radix(digits, radix).ok()?;
        (!digits.starts_with('+')).then_some(value as f64)
    };
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match unsigned {
        ".inf" | ".Inf" | ".INF" => return Some(f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" if unsigned.len() == text.len() => return Some(f64::NAN),
        _ => {}
    }
    // Rust accepts the same numbers, apart from its own words for infinity and NaN.
    let starts = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    starts.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parsing_takes_bounded_time() {
        for piece in [
            "- ", "? ", "a: ", "[", "{", "{a: ", "[a, ", "\"", "'", "&a ", "*a ", "!a ", "a\n",
            "#", "- a\n", "a: b\n", ": ", "|\n", "%", "---\n", "\t", " \n", ",", "a ", "\\",
            "x: |\n ",
        ] {
            let text = piece.repeat((64 << 10) / piece.len());
            let started = Instant::now();
            let _ = parse(&text);
            assert!(started.elapsed() < Duration::from_secs(5), "{piece:?}");
        }
        let keys: String = (0..49_000)
            .map(|number| format!("k{number}: 1\n"))
            .collect();
        let started = Instant::now();
        assert!(parse(&keys).is_ok());
        assert!(started.elapsed() < Duration::from_secs(5), "many keys");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-?:,\\[\\]{}#&*!|>'\"%@`\n\t a-c0é~.]{0,60}") {
            let _ = parse(&text);
        }
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        let text = |text: &str| Value::String(text.to_owned());
        for (yaml, value) in [
            ("yes", text("yes")),
            ("2026-01-31", text("2026-01-31")),
            ("'1'", text("1")),
            ("!!str 1", text("1")),
            ("!mine 1", text("1")),
            ("0x1F", Value::Number(31.0)),
            ("-1.5e3", Value::Number(-1500.0)),
            (".5", Value::Number(0.5)),
            ("infinity", text("infinity")),
            ("1_000", text("1_000")),
            ("True", Value::Bool(true)),
            ("", Value::Null),
            ("# only a comment", Value::Null),
        ] {
            assert_eq!(parse(yaml), Ok(value), "{yaml}");
        }
    }

    #[test]
    fn aliases_and_nesting_are_limited() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let alias = format!("*a{}", level - 1);
            let list = vec![alias; 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{list}]\n");
        }
        assert!(parse(&bomb).is_err());
        assert!(parse(&"[".repeat(10_000)).is_err());
        assert!(parse(&format!("{}{}", "[".repeat(100), "]".repeat(100))).is_err());
        let value = parse("a: &x [1]\nb: *x").unwrap();
        assert_eq!(value.get("a"), value.get("b"));
        for invalid in ["a: 1\na: 2", "a: *nothing", "a: 1\n---\nb: 2", "a: ["] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
    }
}
