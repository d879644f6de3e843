//! TOML configurations, edited in place. The map of servers and our entry may be written as
//! tables, inline tables or dotted keys; each is kept as it was found.

use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, TomlError};

use super::{
    Connection, SERVER,
    clients::Client,
    merge::{self, FoundValue, Map, MergeError, Merged, Value},
};

pub(super) fn merge(
    text: &str,
    client: &Client,
    connection: &Connection,
) -> Result<Merged, MergeError> {
    // The library writes line feeds only; CRLF is restored below.
    let lines = text.replace("\r\n", "\n");
    let mut document: DocumentMut = lines.parse().map_err(|error| syntax(&lines, &error))?;
    let is_new = entry(&mut document, client).is_none();
    let mut root = Node {
        table: document.as_table_mut(),
        depth: 0,
    };
    let edits = merge::merge(&mut root, client, connection)?;
    if is_new && !lines.trim().is_empty() {
        move_to_end(&mut document, client);
    }
    let mut merged = document.to_string();
    if text.contains("\r\n") {
        merged = merged.replace('\n', "\r\n");
    }
    Ok(Merged {
        text: merged,
        edits,
    })
}

fn syntax(text: &str, error: &TomlError) -> MergeError {
    let start = error.span().map_or(0, |span| span.start);
    let line = 1 + text
        .bytes()
        .take(start)
        .filter(|byte| *byte == b'\n')
        .count();
    let reason = error.message().replace('\n', ", ");
    MergeError::Syntax(format!("line {line}: {reason}"))
}

fn entry<'a>(document: &'a mut DocumentMut, client: &Client) -> Option<&'a mut Item> {
    let servers = document.get_mut(client.servers)?.as_table_like_mut()?;
    servers.get_mut(SERVER)
}

/// Moves a new table behind the comments at the end of the file, which belong to the table above
/// them.
fn move_to_end(document: &mut DocumentMut, client: &Client) {
    let mut ending = document.trailing().as_str().unwrap_or_default().to_owned();
    let Some(Item::Table(table)) = entry(document, client) else {
        return;
    };
    if !ending.is_empty() && !ending.ends_with('\n') {
        ending.push('\n');
    }
    let ends_blank = ending == "\n" || ending.ends_with("\n\n");
    if !ends_blank {
        ending.push('\n');
    }
    table.decor_mut().set_prefix(ending);
    table.set_position(Some(isize::MAX));
    document.set_trailing("");
}

struct Node<'a> {
    table: &'a mut dyn TableLike,
    depth: u8,
}

impl Map for Node<'_> {
    fn keys(&self) -> Vec<String> {
        self.table.iter().map(|(key, _)| key.to_owned()).collect()
    }

    fn get(&self, key: &str) -> Option<FoundValue> {
        self.table.get(key).map(classify)
    }

    fn set(&mut self, key: &str, value: &Value) {
        let mut new = match value {
            Value::Text(text) => toml_edit::Value::from(text.as_str()),
            Value::Flag(flag) => toml_edit::Value::from(*flag),
        };
        match self.table.get_mut(key).and_then(Item::as_value_mut) {
            Some(old) => {
                *new.decor_mut() = old.decor().clone();
                *old = new;
            }
            None => drop(self.table.insert(key, Item::Value(new))),
        }
    }

    fn remove(&mut self, key: &str) {
        self.table.remove(key);
    }

    fn get_or_create_map(&mut self, key: &str) -> Result<Box<dyn Map + '_>, FoundValue> {
        if !self.table.contains_key(key) {
            self.table.insert(key, self.make());
        }
        let depth = self.depth + 1;
        let Some(item) = self.table.get_mut(key) else {
            return Err(FoundValue::Other("nothing"));
        };
        let found = classify(item);
        match item.as_table_like_mut() {
            Some(table) => Ok(Box::new(Node { table, depth })),
            None => Err(found),
        }
    }
}

impl Node<'_> {
    /// A new map: the map of servers and our entry are tables with headers, maps within our entry are
    /// inline. An inline table converts its values to inline ones.
    fn make(&self) -> Item {
        if self.depth >= 2 {
            return Item::Value(InlineTable::new().into());
        }
        let mut table = Table::new();
        table.set_implicit(self.depth == 0);
        Item::Table(table)
    }
}

fn classify(item: &Item) -> FoundValue {
    if let Some(text) = item.as_str() {
        return FoundValue::Value(Value::Text(text.to_owned()));
    }
    if let Some(flag) = item.as_bool() {
        return FoundValue::Value(Value::Flag(flag));
    }
    FoundValue::Other(match item {
        Item::ArrayOfTables(_) | Item::Value(toml_edit::Value::Array(_)) => "a list",
        Item::Table(_) | Item::Value(toml_edit::Value::InlineTable(_)) => "a map",
        Item::Value(toml_edit::Value::Datetime(_)) => "a date",
        _ => "a number",
    })
}
