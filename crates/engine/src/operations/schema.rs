//! JSON schemas that every MCP host accepts: flat objects without references, and without `oneOf` or
//! the like at the top.

use schemars::JsonSchema;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Map, Value};

fn generate<T: JsonSchema>(settings: SchemaSettings) -> Map<String, Value> {
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
        settings
            .transforms
            .push(Box::new(RecursiveTransform(without_number_format)));
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    schema.remove("description");
    match Value::from(schema) {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// Removes number formats, which are names of Rust types: some clients warn about unknown formats.
fn without_number_format(schema: &mut Schema) {
    let is_number = |kind: &Value| kind == "integer" || kind == "number";
    let number = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(is_number),
        kind => kind.is_some_and(is_number),
    };
    if number {
        schema.remove("format");
    }
}

/// The schema of an operation's parameters. Optional parameters are absent rather than null.
pub(crate) fn parameters_schema<T: JsonSchema>() -> Map<String, Value> {
    let mut schema = generate::<T>(SchemaSettings::draft2020_12());
    schema
        .entry("properties")
        .or_insert_with(|| Value::Object(Map::new()));
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(without_null);
    }
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    schema
}

/// The schema of an operation's result. Fields that may be absent are not required, because clients
/// validate results.
pub(super) fn result_schema<T: JsonSchema>() -> Map<String, Value> {
    generate::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn without_null(schema: &mut Value) {
    let Value::Object(fields) = schema else {
        return;
    };
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|kind| kind != "null");
        if types.len() == 1 {
            fields["type"] = types.remove(0);
        }
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
        choices.retain(|choice| choice.get("type") != Some(&Value::from("null")));
        if choices.len() == 1
            && let Value::Object(only) = choices.remove(0)
        {
            fields.remove("anyOf");
            for (key, value) in only {
                fields.entry(key).or_insert(value);
            }
        }
    }
    fields.remove("default");
}

pub(super) fn properties(schema: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, schema)| (name.as_str(), schema))
}

pub(super) fn required(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::json;

    use super::*;

    #[derive(Serialize, JsonSchema)]
    struct Output {
        always: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        word: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        words: Vec<String>,
    }

    #[test]
    fn result_fields_that_may_be_absent_are_not_required() {
        let schema = result_schema::<Output>();
        assert_eq!(schema["required"], json!(["always"]));
        let output = Output {
            always: None,
            word: None,
            words: Vec::new(),
        };
        assert_eq!(json!(output), json!({ "always": null }));
    }
}
