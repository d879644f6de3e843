//! YAML as people write settings in it: values without identity, within bounds.
//!
//! Built from the parser's events, so that neither depth nor aliases can make much of little.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

const DEEPEST: usize = 64;
const MOST: usize = 100_000;
const LONGEST: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    /// In the order of the file; no name comes twice.
    Map(Vec<(String, Value)>),
}

impl Value {
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Map(pairs) = self else {
            return None;
        };
        pairs
            .iter()
            .find_map(|(key, value)| (key == name).then_some(value))
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The texts of a list that has nothing else in it.
    pub(super) fn as_texts(&self) -> Option<Vec<String>> {
        let Self::List(items) = self else {
            return None;
        };
        items
            .iter()
            .map(|item| item.as_text().map(str::to_owned))
            .collect()
    }
}

/// Reads a file of one document. The error is a fragment for people.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    if text.len() > LONGEST {
        return Err(format!("it is larger than {LONGEST} bytes"));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut composer = Composer::default();
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|error| format!("it is not valid YAML: {error}"))?;
        documents += usize::from(matches!(event, Event::DocumentStart(_)));
        if documents > 1 {
            return Err("it holds more than one YAML document".to_owned());
        }
        composer.take(event)?;
    }
    Ok(composer.whole.unwrap_or(Value::Null))
}

#[derive(Debug, Default)]
struct Composer {
    open: Vec<Open>,
    anchors: HashMap<usize, Value>,
    nodes: usize,
    whole: Option<Value>,
}

/// A list or map whose end has not come.
#[derive(Debug)]
enum Open {
    List(usize, Vec<Value>),
    Map(usize, Pairs),
}

/// What of a map is known: its pairs, their names, and the name whose value comes next.
#[derive(Debug, Default)]
struct Pairs {
    pairs: Vec<(String, Value)>,
    names: HashSet<String>,
    next: Option<String>,
}

impl Composer {
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref());
                self.keep(anchor, &value);
                self.put(value, Some(text.into_owned()))
            }
            Event::SequenceStart(anchor, _) => self.begin(Open::List(anchor, Vec::new())),
            Event::MappingStart(anchor, _) => self.begin(Open::Map(anchor, Pairs::default())),
            Event::SequenceEnd | Event::MappingEnd => {
                let (anchor, value) = match self.open.pop() {
                    Some(Open::List(anchor, items)) => (anchor, Value::List(items)),
                    Some(Open::Map(anchor, map)) => (anchor, Value::Map(map.pairs)),
                    None => return Ok(()),
                };
                self.keep(anchor, &value);
                self.put(value, None)
            }
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned();
                let value = value.ok_or("an alias in it stands within what it names")?;
                self.nodes += size(&value);
                let key = value.as_text().map(str::to_owned);
                self.put(value, key)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, open: Open) -> Result<(), String> {
        if self.open.len() >= DEEPEST {
            return Err(format!("it is nested more than {DEEPEST} levels deep"));
        }
        self.open.push(open);
        Ok(())
    }

    fn keep(&mut self, anchor: usize, value: &Value) {
        if anchor > 0 {
            self.nodes += size(value);
            self.anchors.insert(anchor, value.clone());
        }
    }

    /// Puts a value where it belongs; `name` is how it is called if it is the name of another.
    fn put(&mut self, value: Value, name: Option<String>) -> Result<(), String> {
        self.nodes += 1;
        if self.nodes > MOST {
            return Err(format!("it holds more than {MOST} values"));
        }
        match self.open.last_mut() {
            None => self.whole = Some(value),
            Some(Open::List(_, items)) => items.push(value),
            Some(Open::Map(_, map)) => match map.next.take() {
                Some(name) => map.pairs.push((name, value)),
                None => {
                    let name = name.unwrap_or_else(|| format!("{value:?}"));
                    if !map.names.insert(name.clone()) {
                        return Err(format!("`{name}` comes twice in it"));
                    }
                    map.next = Some(name);
                }
            },
        }
        Ok(())
    }
}

/// How many values are in one.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::List(items) => items.iter().map(size).sum(),
        Value::Map(pairs) => pairs.iter().map(|(_, value)| 1 + size(value)).sum(),
        _ => 0,
    }
}

/// What a scalar is by the core schema of YAML 1.2.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = match tag {
        Some(tag) => !tag.is_yaml_core_schema() || tag.suffix == "str",
        None => style != ScalarStyle::Plain,
    };
    if is_text {
        return Value::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::Text(text.to_owned()), Value::Number),
    }
}

fn number(text: &str) -> Option<f64> {
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
    // What remains are numbers as Rust reads them too, besides its words for the two above.
    let starts = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    starts.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_text_takes_long() {
        for piece in [
            "- ", "? ", "a: ", "[", "{", "{a: ", "[a, ", "\"", "'", "&a ", "*a ", "!a ", "a\n",
            "#", "- a\n", "a: b\n", ": ", "|\n", "%", "---\n", "\t", " \n", ",", "a ", "\\",
            "x: |\n ",
        ] {
            let text = piece.repeat((64 << 10) / piece.len());
            let begun = Instant::now();
            let _ = parse(&text);
            assert!(begun.elapsed() < Duration::from_secs(5), "{piece:?}");
        }
        let names: String = (0..49_000)
            .map(|number| format!("k{number}: 1\n"))
            .collect();
        let begun = Instant::now();
        assert!(parse(&names).is_ok());
        assert!(begun.elapsed() < Duration::from_secs(5), "many names");
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "[-?:,\\[\\]{}#&*!|>'\"%@`\n\t a-c0é~.]{0,60}") {
            let _ = parse(&text);
        }
    }

    #[test]
    fn scalars_are_what_the_core_schema_says() {
        let text = |text: &str| Value::Text(text.to_owned());
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
    fn aliases_and_depth_cannot_make_much_of_little() {
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
        for wrong in ["a: 1\na: 2", "a: *nothing", "a: 1\n---\nb: 2", "a: ["] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
