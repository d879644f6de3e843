//! TOML configurations, edited in place. The map of servers and our entry may be written as
//! tables, inline tables or dotted keys; each is kept as it was found.

use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, TomlError};

use super::{
    Connection, SERVER,
    clients::Client,
    merge::{self, FoundEntry, FoundValue, Map, MergeError, Merged, Value},
};

/// The library writes line feeds only; CRLF is restored in what is written.
fn parse(text: &str) -> Result<(String, DocumentMut), MergeError> {
    let lines = text.replace("\r\n", "\n");
    let document = lines.parse().map_err(|error| syntax(&lines, &error))?;
    Ok((lines, document))
}

/// The text without our entry; none if it has none.
pub(super) fn remove(text: &str, client: &Client) -> Result<Option<String>, MergeError> {
    let (_, mut document) = parse(text)?;
    let above = entry(&mut document, client).and_then(|entry| {
        let table = entry.as_table()?;
        let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str());
        Some((table.position(), prefix.unwrap_or_default().to_owned()))
    });
    let mut root = Node {
        table: document.as_table_mut(),
        depth: 0,
    };
    let removed = merge::remove(&mut root, client);
    if let Some((position, prefix)) = above {
        keep_comments(&mut document, position.unwrap_or(isize::MAX), &prefix);
    }
    Ok(removed.then(|| with_line_ends_of(text, &document)))
}

/// Puts what was above a removed table above the next one, or at the end: it belongs to what is before it.
fn keep_comments(document: &mut DocumentMut, position: isize, prefix: &str) {
    if prefix.trim().is_empty() {
        return;
    }
    let next = tables(document.as_table())
        .into_iter()
        .filter_map(Table::position)
        .filter(|other| *other > position)
        .min();
    match next.and_then(|next| table_at(document.as_table_mut(), next)) {
        Some(table) => {
            let own = table.decor().prefix().and_then(|own| own.as_str());
            let both = format!("{prefix}{}", own.unwrap_or_default());
            table.decor_mut().set_prefix(both);
        }
        None => {
            let end = document.trailing().as_str().unwrap_or_default();
            let both = format!("{}\n{end}", prefix.trim_end_matches('\n'));
            document.set_trailing(both);
        }
    }
}

/// The tables below a table.
fn tables(table: &Table) -> Vec<&Table> {
    let below = table.iter().filter_map(|(_, item)| item.as_table());
    let mut all = Vec::new();
    for table in below {
        all.push(table);
        all.extend(tables(table));
    }
    all
}

fn table_at(table: &mut Table, position: isize) -> Option<&mut Table> {
    for (_, item) in table.iter_mut() {
        let Some(below) = item.as_table_mut() else {
            continue;
        };
        if below.position() == Some(position) {
            return Some(below);
        }
        if tables(below)
            .into_iter()
            .any(|table| table.position() == Some(position))
        {
            return table_at(below, position);
        }
    }
    None
}

pub(super) fn find_entry(text: &str, client: &Client) -> Result<Option<FoundEntry>, MergeError> {
    let (_, mut document) = parse(text)?;
    let mut root = Node {
        table: document.as_table_mut(),
        depth: 0,
    };
    Ok(merge::find(&mut root, client))
}

fn with_line_ends_of(text: &str, document: &DocumentMut) -> String {
    let written = document.to_string();
    if text.contains("\r\n") {
        return written.replace('\n', "\r\n");
    }
    written
}

pub(super) fn merge(
    text: &str,
    client: &Client,
    connection: &Connection,
) -> Result<Merged, MergeError> {
    let (lines, mut document) = parse(text)?;
    let is_new = entry(&mut document, client).is_none();
    let mut root = Node {
        table: document.as_table_mut(),
        depth: 0,
    };
    let edits = merge::merge(&mut root, client, connection)?;
    if is_new && !lines.trim().is_empty() {
        move_to_end(&mut document, client);
    }
    Ok(Merged {
        text: with_line_ends_of(text, &document),
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
            Value::List(items) => {
                toml_edit::Value::Array(items.iter().map(String::as_str).collect())
            }
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
    if let Some(items) = item.as_array() {
        let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
        if let Some(texts) = texts.collect() {
            return FoundValue::Value(Value::List(texts));
        }
    }
    FoundValue::Other(match item {
        Item::ArrayOfTables(_) | Item::Value(toml_edit::Value::Array(_)) => "a list",
        Item::Table(_) | Item::Value(toml_edit::Value::InlineTable(_)) => "a map",
        Item::Value(toml_edit::Value::Datetime(_)) => "a date",
        _ => "a number",
    })
}
