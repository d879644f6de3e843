//! JSON configurations, edited in their concrete syntax tree. Comments and trailing commas are
//! accepted, as by most clients; other extensions are not.

use jsonc_parser::{
    ParseOptions,
    cst::{CstInputValue, CstNode, CstObject, CstObjectProp, CstRootNode},
};

use super::{
    Connection,
    clients::Client,
    merge::{self, FoundEntry, FoundValue, Map, MergeError, Merged, Value},
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

fn parse(text: &str) -> Result<CstRootNode, MergeError> {
    CstRootNode::parse(text, &OPTIONS).map_err(|error| {
        let (line, column) = (error.line_display(), error.column_display());
        let reason = error.kind().to_string().to_lowercase();
        MergeError::Syntax(format!("line {line}, column {column}: {reason}"))
    })
}

/// The text without our entry; none if it has none.
pub(super) fn remove(text: &str, client: &Client) -> Result<Option<String>, MergeError> {
    let root = parse(text)?;
    let top = root.object_value();
    let removed = top.is_some_and(|mut top| merge::remove(&mut top, client));
    Ok(removed.then(|| root.to_string()))
}

pub(super) fn find_entry(text: &str, client: &Client) -> Result<Option<FoundEntry>, MergeError> {
    let top = parse(text)?.object_value();
    Ok(top.and_then(|mut top| merge::find(&mut top, client)))
}

pub(super) fn merge(
    text: &str,
    client: &Client,
    connection: &Connection,
) -> Result<Merged, MergeError> {
    let root = parse(text)?;
    let found = root
        .value()
        .map_or("nothing", |node| classify(&node).kind());
    let Some(mut top) = root.object_value_or_create() else {
        return Err(MergeError::Shape {
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

    fn get(&self, key: &str) -> Option<FoundValue> {
        Some(classify(&find(self, key)?.value()?))
    }

    fn set(&mut self, key: &str, value: &Value) {
        let value = match value {
            Value::Text(text) => CstInputValue::String(text.clone()),
            Value::Flag(flag) => CstInputValue::Bool(*flag),
            Value::List(items) => {
                let items = items.iter().cloned().map(CstInputValue::String);
                CstInputValue::Array(items.collect())
            }
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

    fn get_or_create_map(&mut self, key: &str) -> Result<Box<dyn Map + '_>, FoundValue> {
        let property = match find(self, key) {
            Some(property) => property,
            None => self.append(key, CstInputValue::Object(Vec::new())),
        };
        match property.value() {
            Some(node) => match node.as_object() {
                Some(object) => Ok(Box::new(object)),
                None => Err(classify(&node)),
            },
            None => Err(FoundValue::Other("nothing")),
        }
    }
}

/// The last of several properties with the same name, which is the one that clients use.
fn find(object: &CstObject, key: &str) -> Option<CstObjectProp> {
    let mut properties = object.properties().into_iter().rev();
    properties.find(|property| property.decoded_name().as_deref() == Some(key))
}

fn classify(node: &CstNode) -> FoundValue {
    match node.to_serde_value() {
        Some(serde_json::Value::String(text)) => FoundValue::Value(Value::Text(text)),
        Some(serde_json::Value::Bool(flag)) => FoundValue::Value(Value::Flag(flag)),
        Some(serde_json::Value::Number(_)) => FoundValue::Other("a number"),
        Some(serde_json::Value::Array(items)) => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
            match texts.collect() {
                Some(texts) => FoundValue::Value(Value::List(texts)),
                None => FoundValue::Other("a list"),
            }
        }
        Some(serde_json::Value::Object(_)) => FoundValue::Other("a map"),
        Some(serde_json::Value::Null) | None => FoundValue::Other("null"),
    }
}
