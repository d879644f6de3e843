//! Merges our entry into a configuration of any format: finds or creates the map of servers and our
//! entry in it, removes conflicting keys, sets our fields. Values that are already right are not
//! touched.

use super::{
    Connection, SERVER,
    clients::{Client, Content, Field, Key},
};

/// A map in a configuration file, seen through the format's own syntax tree.
pub(super) trait Map {
    fn keys(&self) -> Vec<String>;
    fn get(&self, key: &str) -> Option<FoundValue>;
    fn set(&mut self, key: &str, value: &Value);
    fn remove(&mut self, key: &str);
    /// The map at `key`, created if the key is missing; the error is the value that is not a map.
    fn get_or_create_map(&mut self, key: &str) -> Result<Box<dyn Map + '_>, FoundValue>;
}

/// A value that we write.
#[derive(PartialEq)]
pub(super) enum Value {
    Text(String),
    Flag(bool),
}

/// A value in a file: of a type that we write, or the name of another type.
pub(super) enum FoundValue {
    Value(Value),
    Other(&'static str),
}

/// The new text, and one line for each changed key. The text contains the token, the edits do not.
pub(super) struct Merged {
    pub(super) text: String,
    pub(super) edits: Vec<String>,
}

/// Why a file cannot be merged into.
pub(super) enum MergeError {
    Syntax(String),
    Shape { what: String, found: &'static str },
}

pub(super) fn merge(
    root: &mut dyn Map,
    client: &Client,
    connection: &Connection,
) -> Result<Vec<String>, MergeError> {
    let mut edits = Vec::new();
    let mut servers = get_or_create_map(root, client.servers, client.servers)?;
    let path = format!("{}.{SERVER}", client.servers);
    let mut entry = get_or_create_map(servers.as_mut(), SERVER, &path)?;
    // Two spellings of one header would both be sent.
    let spellings = client.entry.iter().filter(|field| field.is_secret());
    for conflicting in client
        .conflicting_keys
        .iter()
        .chain(spellings.map(|field| &field.key))
    {
        drop_conflicting_key(entry.as_mut(), conflicting, client, &mut edits);
    }
    for field in client.entry {
        let value = field.value(connection);
        match field.key.within {
            None => put(entry.as_mut(), field, &value, &mut edits),
            Some(map) => {
                let mut inner = get_or_create_map(entry.as_mut(), map, &format!("{path}.{map}"))?;
                put(inner.as_mut(), field, &value, &mut edits);
            }
        }
    }
    Ok(edits)
}

fn get_or_create_map<'a>(
    map: &'a mut dyn Map,
    key: &str,
    path: &str,
) -> Result<Box<dyn Map + 'a>, MergeError> {
    map.get_or_create_map(key)
        .map_err(|found| MergeError::Shape {
            what: format!("`{path}`"),
            found: found.kind(),
        })
}

fn drop_conflicting_key(
    entry: &mut dyn Map,
    conflicting: &Key,
    client: &Client,
    edits: &mut Vec<String>,
) {
    match conflicting.within {
        None => drop_spellings(entry, conflicting, client, edits),
        Some(map) if entry.get(map).is_some() => {
            if let Ok(mut inner) = entry.get_or_create_map(map) {
                drop_spellings(inner.as_mut(), conflicting, client, edits);
            }
        }
        Some(_) => {}
    }
}

fn drop_spellings(map: &mut dyn Map, conflicting: &Key, client: &Client, edits: &mut Vec<String>) {
    for name in map.keys() {
        let is_ours = client
            .entry
            .iter()
            .any(|field| field.key.within == conflicting.within && field.key.name == name);
        if name.eq_ignore_ascii_case(conflicting.name) && !is_ours {
            map.remove(&name);
            // Without the value, which may be a secret.
            edits.push(format!("- {conflicting}"));
        }
    }
}

fn put(map: &mut dyn Map, field: &Field, value: &Value, edits: &mut Vec<String>) {
    let key = &field.key;
    match map.get(key.name) {
        Some(FoundValue::Value(old)) if old == *value => return,
        Some(FoundValue::Value(old)) => edits.push(format!("- {key}: {}", field.show(&old))),
        Some(FoundValue::Other(kind)) => edits.push(format!("- {key}: ({kind})")),
        None => {}
    }
    map.set(key.name, value);
    edits.push(format!("+ {key}: {}", field.show(value)));
}

impl Field {
    fn is_secret(&self) -> bool {
        matches!(self.content, Content::Bearer)
    }

    fn value(&self, connection: &Connection) -> Value {
        match self.content {
            Content::Text(text) => Value::Text(text.to_owned()),
            Content::Flag(flag) => Value::Flag(flag),
            Content::Url => Value::Text(connection.url.clone()),
            Content::Bearer => Value::Text(format!("Bearer {}", connection.token)),
        }
    }

    fn show(&self, value: &Value) -> String {
        match value {
            Value::Text(text) if !self.is_secret() => format!("{text:?}"),
            Value::Text(text) if text.starts_with("Bearer oub_") => {
                "\"Bearer oub_****\"".to_owned()
            }
            Value::Text(_) => "\"****\"".to_owned(),
            Value::Flag(flag) => flag.to_string(),
        }
    }
}

impl FoundValue {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Value(Value::Text(_)) => "a string",
            Self::Value(Value::Flag(_)) => "a boolean",
            Self::Other(kind) => kind,
        }
    }
}
