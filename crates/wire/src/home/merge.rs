//! Merges settings of the catalogue with those of the user.

use serde_json::Value;
use toml_edit::{DocumentMut, TableLike};

/// Merges two values: objects by name, lists one after the other without repeated values; otherwise
/// `over` wins.
pub fn merge_json(base: Value, over: Value) -> Value {
    match (base, over) {
        (Value::Object(mut base), Value::Object(over)) => {
            for (name, value) in over {
                let merged = match base.remove(&name) {
                    Some(own) => merge_json(own, value),
                    None => value,
                };
                base.insert(name, merged);
            }
            Value::Object(base)
        }
        (Value::Array(mut base), Value::Array(over)) => {
            for value in over {
                if !base.contains(&value) {
                    base.push(value);
                }
            }
            Value::Array(base)
        }
        (_, over) => over,
    }
}

/// Merges two documents of TOML: tables by name, otherwise `over` wins. What `over` does not set stays as
/// it is written, comments included.
pub(super) fn merge_toml(base: &str, over: &str) -> Option<String> {
    let mut base: DocumentMut = base.parse().ok()?;
    let over: DocumentMut = over.parse().ok()?;
    merge_tables(base.as_table_mut(), over.as_table());
    Some(base.to_string())
}

fn merge_tables(base: &mut dyn TableLike, over: &dyn TableLike) {
    for (name, value) in over.iter() {
        let own = base.get_mut(name).and_then(|own| own.as_table_like_mut());
        match (own, value.as_table_like()) {
            (Some(own), Some(over)) => merge_tables(own, over),
            _ => {
                base.insert(name, value.clone());
            }
        }
    }
}
