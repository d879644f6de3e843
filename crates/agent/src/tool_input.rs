//! What a tool call is about to do, from whichever fields of the protocol an agent uses for it.
//!
//! Agents send the input of a tool in `rawInput`, edits as `diff` blocks of `content`, and files in
//! `locations`; some send only one of them.

use serde_json::{Map, Value, json};

/// How many bytes of the input of one tool call are kept.
pub(crate) const MAX_INPUT_BYTES: usize = 256 << 10;
/// How many bytes of one text of a change are kept.
const MAX_CHANGE_TEXT_BYTES: usize = 48 << 10;
const MAX_CHANGES: usize = 64;
const MAX_PATHS: usize = 256;
const MAX_PATH_CHARS: usize = 4096;
/// What agents call the path in the input of a tool, in lower case.
const PATH_NAMES: [&str; 12] = [
    "absolute_path",
    "destination",
    "directory",
    "file",
    "file_path",
    "filename",
    "filepath",
    "new_path",
    "notebook_path",
    "old_path",
    "path",
    "source",
];

/// The input of a tool call; none if the agent says nothing about it.
pub(crate) fn tool_input(call: &Value) -> Option<Value> {
    let raw = call.get("rawInput").filter(|input| !is_empty(input));
    let mut diffs: Vec<&Value> = blocks(call, "diff").collect();
    if let Some(raw) = raw {
        diffs.retain(|diff| !contains_text(raw, diff["newText"].as_str().unwrap_or_default()));
    }
    let changes: Vec<Value> = diffs
        .iter()
        .take(MAX_CHANGES)
        .map(|it| change(it))
        .collect();
    let input = match (raw, changes.is_empty()) {
        (Some(raw), true) => raw.clone(),
        (Some(Value::Object(raw)), false) => with_changes(raw.clone(), changes),
        (Some(raw), false) => json!({ "input": raw, "changes": changes }),
        (None, false) => json!({ "changes": changes }),
        (None, true) => json!({ "paths": paths(call)? }),
    };
    Some(bounded(input, call))
}

/// The text that an agent shows with a request for permission, for example a plan.
pub(crate) fn shown_text(call: &Value) -> Option<Value> {
    let texts = blocks(call, "content").filter_map(|block| block["content"]["text"].as_str());
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    if texts.is_empty() {
        return None;
    }
    let (text, _) = truncated(&texts.join("\n"), MAX_CHANGE_TEXT_BYTES);
    Some(json!({ "text": text }))
}

fn blocks<'a>(call: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    let blocks = call["content"].as_array().into_iter().flatten();
    blocks.filter(move |block| block["type"] == kind)
}

fn with_changes(mut input: Map<String, Value>, changes: Vec<Value>) -> Value {
    input
        .entry("changes")
        .or_insert_with(|| Value::Array(changes));
    Value::Object(input)
}

/// A `diff` block in the form that events show.
fn change(diff: &Value) -> Value {
    let mut change = Map::new();
    let path = diff["path"].as_str().unwrap_or_default();
    change.insert("path".to_owned(), short_path(path).into());
    let mut is_truncated = false;
    for (name, field) in [("old_text", "oldText"), ("new_text", "newText")] {
        if let Some(text) = diff[field].as_str() {
            let (text, was_cut) = truncated(text, MAX_CHANGE_TEXT_BYTES);
            is_truncated |= was_cut;
            change.insert(name.to_owned(), text.into());
        }
    }
    if is_truncated {
        change.insert("truncated".to_owned(), true.into());
    }
    Value::Object(change)
}

fn paths(call: &Value) -> Option<Vec<String>> {
    let locations = call["locations"].as_array().into_iter().flatten();
    let diffs = blocks(call, "diff");
    let mut paths = Vec::new();
    for path in locations.chain(diffs).filter_map(|it| it["path"].as_str()) {
        let path = short_path(path);
        if paths.len() < MAX_PATHS && !path.is_empty() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    (!paths.is_empty()).then_some(paths)
}

/// The files that a call names anywhere: in its input, as locations and as diffs. A path that is cut is
/// not one that could be allowed.
pub(crate) fn named_paths(call: &Value) -> Vec<String> {
    let mut paths = paths(call).unwrap_or_default();
    let input = &call["rawInput"];
    let mut add = |path: Option<&str>| {
        if let Some(path) = path.map(short_path)
            && !paths.contains(&path)
            && paths.len() < MAX_PATHS
        {
            paths.push(path);
        }
    };
    for (name, value) in input.as_object().into_iter().flatten() {
        if PATH_NAMES.contains(&name.to_ascii_lowercase().as_str()) {
            add(value.as_str());
        }
    }
    for path in input["paths"].as_array().into_iter().flatten() {
        add(path.as_str());
    }
    let changes = input["changes"].as_array().into_iter().flatten();
    for change in changes {
        add(change["path"].as_str());
    }
    // Codex has an object from paths to changes.
    let changes = input["changes"].as_object().into_iter().flatten();
    for (path, change) in changes {
        add(Some(path));
        add(change["move_path"].as_str());
    }
    paths
}

fn short_path(path: &str) -> String {
    path.chars().take(MAX_PATH_CHARS).collect()
}

/// An input that is too large is replaced by its size and the files that it names.
fn bounded(input: Value, call: &Value) -> Value {
    let size = input.to_string().len();
    if size <= MAX_INPUT_BYTES {
        return input;
    }
    match paths(call) {
        Some(paths) => json!({ "paths": paths, "input": format!("{size} bytes of input") }),
        None => Value::String(format!("{size} bytes of input")),
    }
}

/// Whether a text stands in one of the strings of a value.
fn contains_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string.contains(text),
        Value::Array(list) => list.iter().any(|item| contains_text(item, text)),
        Value::Object(map) => map.values().any(|item| contains_text(item, text)),
        _ => false,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// A text of at most `max_bytes`, and whether it is shorter than before.
pub(crate) fn truncated(text: &str, max_bytes: usize) -> (String, bool) {
    let end = text.floor_char_boundary(max_bytes);
    (text[..end].to_owned(), end < text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_shown_whichever_field_has_it() {
        // Codex and Gemini send a diff and no input.
        let diff =
            json!({ "type": "diff", "path": "/workspace/a", "oldText": "x", "newText": "rm -rf" });
        let call = json!({ "content": [diff], "locations": [{ "path": "/workspace/a" }] });
        let change = json!({ "path": "/workspace/a", "old_text": "x", "new_text": "rm -rf" });
        assert_eq!(tool_input(&call), Some(json!({ "changes": [change] })));
        // An input that has the new text already needs no copy of it; another one does.
        let whole =
            json!({ "content": [diff], "rawInput": { "file": "a", "content": "rm -rf\n" } });
        assert_eq!(tool_input(&whole), Some(whole["rawInput"].clone()));
        let name_only = json!({ "content": [diff], "rawInput": { "file": "a" } });
        let expected = json!({ "file": "a", "changes": [change] });
        assert_eq!(tool_input(&name_only), Some(expected));
    }

    #[test]
    fn the_files_of_a_call_are_its_input_if_there_is_no_other() {
        let call =
            json!({ "rawInput": {}, "locations": [{ "path": "/a" }, { "path": "/a", "line": 3 }] });
        assert_eq!(tool_input(&call), Some(json!({ "paths": ["/a"] })));
        for call in [
            json!({}),
            json!({ "rawInput": {}, "locations": [] }),
            Value::Null,
        ] {
            assert_eq!(tool_input(&call), None, "{call}");
        }
    }

    #[test]
    fn a_plan_is_the_text_of_a_request() {
        let call = json!({ "content": [
            { "type": "content", "content": { "type": "text", "text": "1. look" } } ] });
        assert_eq!(shown_text(&call), Some(json!({ "text": "1. look" })));
        assert_eq!(shown_text(&json!({ "content": 3 })), None);
    }

    #[test]
    fn every_size_is_bounded() {
        let diff = |n: usize| {
            json!({ "type": "diff", "path": format!("/{n}{}", "p".repeat(9000)),
                "newText": "ü".repeat(100 << 10) })
        };
        let one = tool_input(&json!({ "content": [diff(1)] })).unwrap();
        let text = one["changes"][0]["new_text"].as_str().unwrap();
        assert!(text.len() <= MAX_CHANGE_TEXT_BYTES && text.ends_with('ü'));
        assert_eq!(one["changes"][0]["truncated"], true);
        let many: Vec<Value> = (0..1000).map(diff).collect();
        let many = tool_input(&json!({ "content": many })).unwrap();
        assert_eq!(many["paths"].as_array().unwrap().len(), MAX_PATHS);
        assert!(many["input"].as_str().unwrap().ends_with("bytes of input"));
        let raw = json!({ "rawInput": { "x": "y".repeat(MAX_INPUT_BYTES) } });
        let input = tool_input(&raw).unwrap();
        assert!(input.as_str().unwrap().ends_with("bytes of input"));
    }
}
