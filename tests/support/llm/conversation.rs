//! A request to a model, in any of the protocols.

use serde_json::{Map, Value};

#[derive(Debug, Default)]
pub(super) struct Conversation {
    pub(super) tools: Vec<Tool>,
    pub(super) entries: Vec<Entry>,
    /// The whole request: the names of tools that are kept back can stand anywhere in it.
    pub(super) body: Value,
    /// Whether JSON is wanted and not text.
    pub(super) wants_json: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Tool {
    pub(super) name: String,
    /// Codex has its MCP tools in namespaces.
    pub(super) namespace: Option<String>,
    pub(super) schema: Value,
    /// Whether it takes a program that calls other tools, and not arguments.
    pub(super) runs_code: bool,
}

#[derive(Debug)]
pub(super) enum Entry {
    User(String),
    Assistant,
    Call { name: String },
    Result(String),
}

impl Conversation {
    pub(super) fn user(&mut self, text: String) {
        self.entries.push(Entry::User(text));
    }
}

impl Tool {
    /// Arguments that fit the tool: the given ones, and placeholders for the other required ones.
    pub(super) fn arguments(&self, given: Map<String, Value>) -> Map<String, Value> {
        let mut arguments = given;
        let required = self.schema["required"].as_array();
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if arguments.contains_key(name) {
                continue;
            }
            let property = &self.schema["properties"][name];
            let value = match (&property["enum"][0], property["type"].as_str()) {
                (Value::Null, Some("number" | "integer")) => Value::from(1),
                (Value::Null, Some("boolean")) => Value::from(false),
                (Value::Null, Some("array")) => Value::Array(Vec::new()),
                (Value::Null, Some("object")) => Value::Object(Map::new()),
                (Value::Null, _) => Value::from("Do what was asked"),
                (first, _) => first.clone(),
            };
            arguments.insert(name.to_owned(), value);
        }
        arguments
    }
}

/// The text of content that is a string, or a list of parts that have `text`.
pub(super) fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let parts: Vec<String> = parts.iter().map(text).collect();
            parts.join("\n")
        }
        Value::Object(part) => part.get("text").map(text).unwrap_or_default(),
        _ => String::new(),
    }
}
