//! The steps that bring our entry into a configuration, the same for every format: find or make
//! the map of servers and our entry in it, drop what contradicts us, set what we own. Everything
//! else is never looked at. A step that finds things as they should be touches nothing.

use super::{
    Connection, SERVER,
    clients::{Client, Content, Field, Key},
};

/// A map in a configuration file, seen through the format's own syntax tree.
pub(super) trait Map {
    fn keys(&self) -> Vec<String>;
    fn get(&self, key: &str) -> Option<Found>;
    fn set(&mut self, key: &str, value: &Value);
    fn remove(&mut self, key: &str);
    /// The map at `key`, made if the key is missing; what is there instead if it is no map.
    fn enter(&mut self, key: &str) -> Result<Box<dyn Map + '_>, Found>;
}

/// What we write.
#[derive(PartialEq)]
pub(super) enum Value {
    Text(String),
    Flag(bool),
}

/// What a file may hold: a value such as ours, or something else by what people call it.
pub(super) enum Found {
    Value(Value),
    Other(&'static str),
}

/// The new text and what was edited, a line for each key. The text holds the token, the edits
/// do not.
pub(super) struct Merged {
    pub(super) text: String,
    pub(super) edits: Vec<String>,
}

/// Why a file cannot be merged into.
pub(super) enum Fault {
    Syntax(String),
    Shape { what: String, found: &'static str },
}

pub(super) fn merge(
    root: &mut dyn Map,
    client: &Client,
    connection: &Connection,
) -> Result<Vec<String>, Fault> {
    let mut edits = Vec::new();
    let mut servers = enter(root, client.servers, client.servers)?;
    let place = format!("{}.{SERVER}", client.servers);
    let mut entry = enter(servers.as_mut(), SERVER, &place)?;
    // Two spellings of one header would both be sent.
    let spellings = client.entry.iter().filter(|field| field.is_secret());
    for rival in client
        .rivals
        .iter()
        .chain(spellings.map(|field| &field.key))
    {
        drop_rival(entry.as_mut(), rival, client, &mut edits);
    }
    for field in client.entry {
        let value = field.value(connection);
        match field.key.within {
            None => put(entry.as_mut(), field, &value, &mut edits),
            Some(map) => {
                let mut inner = enter(entry.as_mut(), map, &format!("{place}.{map}"))?;
                put(inner.as_mut(), field, &value, &mut edits);
            }
        }
    }
    Ok(edits)
}

fn enter<'a>(map: &'a mut dyn Map, key: &str, place: &str) -> Result<Box<dyn Map + 'a>, Fault> {
    map.enter(key).map_err(|found| Fault::Shape {
        what: format!("`{place}`"),
        found: found.kind(),
    })
}

fn drop_rival(entry: &mut dyn Map, rival: &Key, client: &Client, edits: &mut Vec<String>) {
    match rival.within {
        None => drop_spellings(entry, rival, client, edits),
        Some(map) if entry.get(map).is_some() => {
            if let Ok(mut inner) = entry.enter(map) {
                drop_spellings(inner.as_mut(), rival, client, edits);
            }
        }
        Some(_) => {}
    }
}

fn drop_spellings(map: &mut dyn Map, rival: &Key, client: &Client, edits: &mut Vec<String>) {
    for name in map.keys() {
        let is_ours = client
            .entry
            .iter()
            .any(|field| field.key.within == rival.within && field.key.name == name);
        if name.eq_ignore_ascii_case(rival.name) && !is_ours {
            map.remove(&name);
            // The value stays unsaid: it may be a secret.
            edits.push(format!("- {rival}"));
        }
    }
}

fn put(map: &mut dyn Map, field: &Field, value: &Value, edits: &mut Vec<String>) {
    let key = &field.key;
    match map.get(key.name) {
        Some(Found::Value(old)) if old == *value => return,
        Some(Found::Value(old)) => edits.push(format!("- {key}: {}", field.show(&old))),
        Some(Found::Other(kind)) => edits.push(format!("- {key}: ({kind})")),
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

impl Found {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Value(Value::Text(_)) => "a string",
            Self::Value(Value::Flag(_)) => "a boolean",
            Self::Other(kind) => kind,
        }
    }
}
