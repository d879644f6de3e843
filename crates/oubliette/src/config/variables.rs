//! `OUBLIETTE_RUNTIME=x` sets `runtime`, `OUBLIETTE_A__B=x` sets `a.b`; other names are ignored.

use serde_json::Value;
use toml::Table;

use super::keys;

const PREFIX: &str = "OUBLIETTE_";

pub(super) fn apply(
    table: &mut Table,
    schema: &Value,
    variables: impl Iterator<Item = (String, String)>,
) -> Result<(), String> {
    for (name, text) in variables {
        let Some(rest) = setting(&name) else {
            continue;
        };
        let path: Vec<String> = rest.split("__").map(str::to_lowercase).collect();
        set(table, schema, "", &path, &text).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

/// The setting that a variable changes, as the variable spells it.
pub(super) fn setting(name: &str) -> Option<&str> {
    let rest = name.strip_prefix(PREFIX)?;
    (rest == "RUNTIME" || rest.contains("__")).then_some(rest)
}

fn set(
    table: &mut Table,
    schema: &Value,
    at: &str,
    path: &[String],
    text: &str,
) -> Result<(), String> {
    let [key, rest @ ..] = path else {
        return Ok(());
    };
    let inner = keys::child(schema, key).ok_or_else(|| keys::unknown(schema, at, key))?;
    if rest.is_empty() {
        table.insert(key.clone(), value(inner, text)?);
        return Ok(());
    }
    let entry = table
        .entry(key.clone())
        .or_insert_with(|| toml::Value::Table(Table::new()));
    match entry {
        toml::Value::Table(table) => set(table, inner, &format!("{at}{key}."), rest, text),
        _ => Err(format!("`{at}{key}` is not a table")),
    }
}

/// Text for a key of type string, otherwise a TOML value.
fn value(schema: &Value, text: &str) -> Result<toml::Value, String> {
    let is_text = match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => schema.get("enum").is_some(),
    };
    if is_text {
        return Ok(toml::Value::String(text.to_owned()));
    }
    let parsed: Result<Table, _> = toml::from_str(&format!("value = {text}"));
    parsed
        .ok()
        .and_then(|mut table| table.remove("value"))
        .ok_or_else(|| "the value is not valid TOML".to_owned())
}
