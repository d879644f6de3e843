//! The known keys, from the schemas of the configuration types.

use oubliette_model::{nearest, quoted};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use toml::Table;

pub(super) fn schema<T: JsonSchema>() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    Value::from(settings.into_generator().into_root_schema_for::<T>())
}

/// Refuses unknown keys.
pub(super) fn check(table: &Table, schema: &Value) -> Result<(), String> {
    check_at(table, schema, "")
}

fn check_at(table: &Table, schema: &Value, path: &str) -> Result<(), String> {
    for (key, value) in table {
        let inner = child(schema, key).ok_or_else(|| unknown(schema, path, key))?;
        // The parser refuses a table in place of another type.
        let holds_keys =
            inner.get("properties").is_some() || inner.get("additionalProperties").is_some();
        if let (toml::Value::Table(table), true) = (value, holds_keys) {
            check_at(table, inner, &format!("{path}{key}."))?;
        }
    }
    Ok(())
}

/// The schema of a key in a table: a known property, or any name in a map.
pub(super) fn child<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    let known = schema
        .get("properties")
        .and_then(|properties| properties.get(key));
    known.or_else(|| {
        schema
            .get("additionalProperties")
            .filter(|schema| schema.is_object())
    })
}

pub(super) fn unknown(schema: &Value, path: &str, key: &str) -> String {
    let known = schema.get("properties").and_then(Value::as_object);
    let names = known
        .into_iter()
        .flat_map(|properties| properties.keys().map(String::as_str));
    let name = quoted(&format!("{path}{key}"));
    match nearest(key, names) {
        Some(near) => format!("unknown key {name}; did you mean `{path}{near}`?"),
        None => format!("unknown key {name}; docs/configuration.md lists the keys"),
    }
}
