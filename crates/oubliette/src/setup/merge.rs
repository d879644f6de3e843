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
    List(Vec<String>),
}

/// A value in a file: of a type that we write, or the name of another type.
pub(super) enum FoundValue {
    Value(Value),
    Other(&'static str),
}

/// Our entry in a file.
pub(crate) struct FoundEntry {
    /// The key that the client sends, if the entry has one.
    pub(crate) token: Option<String>,
    /// Whether the client starts a program.
    pub(crate) is_stdio: bool,
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
    let (fields, other_fields) = client.fields(connection);
    let of_url: &[Key] = match connection {
        Connection::Http { .. } => client.conflicting_keys,
        Connection::Stdio { .. } => &[],
    };
    // An entry of the other kind would be both, or have a key that is not used any more.
    let of_other = other_fields.iter().map(|field| Key {
        within: None,
        name: field.key.first(),
    });
    let is_ours = |key: &Key| fields.iter().any(|field| field.key.first() == key.name);
    let of_other = of_other.filter(|key| !is_ours(key));
    // Two spellings of one header would both be sent.
    let spellings = fields.iter().filter(|field| field.is_secret());
    for conflicting in of_url
        .iter()
        .copied()
        .chain(spellings.map(|field| field.key))
        .chain(of_other)
    {
        drop_conflicting_key(entry.as_mut(), &conflicting, fields, &mut edits);
    }
    for field in fields {
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

/// Removes our entry; whether there was one.
pub(super) fn remove(root: &mut dyn Map, client: &Client) -> bool {
    if root.get(client.servers).is_none() {
        return false;
    }
    let Ok(mut servers) = root.get_or_create_map(client.servers) else {
        return false;
    };
    let is_there = servers.get(SERVER).is_some();
    if is_there {
        servers.remove(SERVER);
    }
    is_there
}

/// Our entry as it is in the file.
pub(super) fn find(root: &mut dyn Map, client: &Client) -> Option<FoundEntry> {
    root.get(client.servers)?;
    let mut servers = root.get_or_create_map(client.servers).ok()?;
    servers.get(SERVER)?;
    let mut entry = servers.get_or_create_map(SERVER).ok()?;
    let secrets = client.entry.iter().filter(|field| field.is_secret());
    let mut bearer = None;
    for field in secrets {
        let map = field.key.within.filter(|map| entry.get(map).is_some());
        let found = match map {
            Some(map) => {
                let inner = entry.get_or_create_map(map);
                inner.ok().and_then(|inner| inner.get(field.key.name))
            }
            None => entry.get(field.key.name),
        };
        if let Some(FoundValue::Value(Value::Text(text))) = found {
            bearer = text.strip_prefix("Bearer ").map(str::to_owned);
        }
    }
    Some(FoundEntry {
        token: bearer,
        is_stdio: entry.get("command").is_some(),
    })
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
    fields: &[Field],
    edits: &mut Vec<String>,
) {
    match conflicting.within {
        None => drop_spellings(entry, conflicting, fields, edits),
        Some(map) if entry.get(map).is_some() => {
            if let Ok(mut inner) = entry.get_or_create_map(map) {
                drop_spellings(inner.as_mut(), conflicting, fields, edits);
            }
        }
        Some(_) => {}
    }
}

fn drop_spellings(map: &mut dyn Map, conflicting: &Key, fields: &[Field], edits: &mut Vec<String>) {
    for name in map.keys() {
        let is_ours = fields
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
            Content::Url => Value::Text(connection.url().to_owned()),
            Content::Bearer => Value::Text(format!("Bearer {}", connection.token())),
            Content::Program => Value::Text(connection.program().to_owned()),
            Content::Arguments => Value::List(connection.arguments().to_vec()),
            Content::CommandLine => {
                let program = std::iter::once(connection.program().to_owned());
                Value::List(program.chain(connection.arguments().to_vec()).collect())
            }
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
            Value::List(items) => format!("{items:?}"),
        }
    }
}

impl Key {
    /// The key of our entry itself: that of the map, if it is within one.
    fn first(&self) -> &'static str {
        self.within.unwrap_or(self.name)
    }
}

impl FoundValue {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Value(Value::Text(_)) => "a string",
            Self::Value(Value::Flag(_)) => "a boolean",
            Self::Value(Value::List(_)) => "a list",
            Self::Other(kind) => kind,
        }
    }
}
