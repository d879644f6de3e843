//! JSON configurations, edited in their concrete syntax tree. Comments and trailing commas are
//! accepted, as most of the clients do; no other liberty is.

use jsonc_parser::{
    ParseOptions,
    cst::{CstInputValue, CstNode, CstObject, CstObjectProp, CstRootNode},
};

use super::{
    Connection,
    clients::Client,
    merge::{self, Fault, Found, Map, Merged, Value},
};

const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

pub(super) fn merge(text: &str, client: &Client, connection: &Connection) -> Result<Merged, Fault> {
    let root = CstRootNode::parse(text, &OPTIONS).map_err(|error| {
        let (line, column) = (error.line_display(), error.column_display());
        let reason = error.kind().to_string().to_lowercase();
        Fault::Syntax(format!("line {line}, column {column}: {reason}"))
    })?;
    let found = root.value().map_or("nothing", |node| look(&node).kind());
    let Some(mut top) = root.object_value_or_create() else {
        return Err(Fault::Shape {
            what: "the whole file".to_owned(),
            found,
        });
    };
    let edits = merge::merge(&mut top, client, connection)?;
    Ok(Merged {
        text: root.to_string(),
        edits,
    })
}

impl Map for CstObject {
    fn keys(&self) -> Vec<String> {
        let properties = self.properties();
        properties
            .iter()
            .filter_map(CstObjectProp::decoded_name)
            .collect()
    }

    fn get(&self, key: &str) -> Option<Found> {
        Some(look(&find(self, key)?.value()?))
    }

    fn set(&mut self, key: &str, value: &Value) {
        let value = match value {
            Value::Text(text) => CstInputValue::String(text.clone()),
            Value::Flag(flag) => CstInputValue::Bool(*flag),
        };
        match find(self, key) {
            Some(property) => property.set_value(value),
            None => drop(self.append(key, value)),
        }
    }

    fn remove(&mut self, key: &str) {
        while let Some(property) = find(self, key) {
            property.remove();
        }
    }

    fn enter(&mut self, key: &str) -> Result<Box<dyn Map + '_>, Found> {
        let property = match find(self, key) {
            Some(property) => property,
            None => self.append(key, CstInputValue::Object(Vec::new())),
        };
        match property.value() {
            Some(node) => match node.as_object() {
                Some(object) => Ok(Box::new(object)),
                None => Err(look(&node)),
            },
            None => Err(Found::Other("nothing")),
        }
    }
}

/// The last of several properties of one name, since that is the one every client goes by.
fn find(object: &CstObject, key: &str) -> Option<CstObjectProp> {
    let mut properties = object.properties().into_iter().rev();
    properties.find(|property| property.decoded_name().as_deref() == Some(key))
}

fn look(node: &CstNode) -> Found {
    match node.to_serde_value() {
        Some(serde_json::Value::String(text)) => Found::Value(Value::Text(text)),
        Some(serde_json::Value::Bool(flag)) => Found::Value(Value::Flag(flag)),
        Some(serde_json::Value::Number(_)) => Found::Other("a number"),
        Some(serde_json::Value::Array(_)) => Found::Other("a list"),
        Some(serde_json::Value::Object(_)) => Found::Other("a map"),
        Some(serde_json::Value::Null) | None => Found::Other("null"),
    }
}
