//! JSON schemas that every MCP host accepts: flat objects without references, and without `oneOf` or
//! the like at the top.

use schemars::JsonSchema;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Map, Value, json};

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

/// The keyword of a parameter with other names that are accepted for it, but not shown.
const ALIASES: &str = "x-aliases";
/// The keyword of a parameter that lists of tools leave out: for programs, and for people who set up a
/// server.
const UNLISTED: &str = "x-unlisted";

/// The schema of an operation's parameters. Optional parameters are absent rather than null. Values are
/// checked by the parser, whose errors say more than those of a client that validates.
pub(crate) fn parameters_schema<T: JsonSchema>() -> Map<String, Value> {
    let mut schema = generate::<T>(SchemaSettings::draft2020_12().with(|settings| {
        let loosen = RecursiveTransform(loosen);
        settings.transforms.push(Box::new(loosen));
    }));
    schema
        .entry("properties")
        .or_insert_with(|| Value::Object(Map::new()));
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    schema
}

/// Removes null, and what the parser checks: an id may also be a name, and limits are in errors.
fn loosen(schema: &mut Schema) {
    for keyword in ["format", "pattern", "minimum", "maximum", "default"] {
        schema.remove(keyword);
    }
    if let Some(fields) = schema.as_object_mut() {
        without_null(fields);
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = join_lines(text);
    }
}

/// A text of several paragraphs with one line for each.
fn join_lines(text: &str) -> String {
    let paragraphs = text
        .split("\n\n")
        .map(|paragraph| paragraph.replace('\n', " "));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

/// The first paragraph of a description: what lists of tools show. The others are for people.
pub(crate) fn brief(text: &str) -> &str {
    let first = text.split("\n\n").next().unwrap_or(text);
    first.strip_suffix('.').unwrap_or(first)
}

/// Whether lists of tools show a parameter.
pub(super) fn is_listed(schema: &Value) -> bool {
    schema.get(UNLISTED).is_none()
}

/// The parameter that has this alias.
pub(crate) fn aliased<'a>(schema: &'a Map<String, Value>, alias: &str) -> Option<&'a str> {
    properties(schema).find_map(|(name, schema)| {
        let aliases = schema.get(ALIASES)?.as_array()?;
        aliases.iter().any(|known| known == alias).then_some(name)
    })
}

/// The schema of a parameter as lists of tools show it: brief descriptions, and only what every client
/// understands.
pub(super) fn shown_parameter(schema: &Value) -> Value {
    let Value::Object(fields) = schema else {
        return schema.clone();
    };
    let shown = fields.iter().filter_map(|(key, value)| {
        let value = match (key.as_str(), value) {
            (ALIASES | UNLISTED, _) => return None,
            // The description says what a map has, and the parser refuses unknown fields.
            ("additionalProperties", _) => return None,
            ("description", Value::String(text)) => Value::from(brief(text)),
            ("properties", Value::Object(properties)) => {
                let shown =
                    |(name, schema): (&String, &Value)| (name.clone(), shown_parameter(schema));
                properties.iter().map(shown).collect()
            }
            ("items", schema) => shown_parameter(schema),
            (_, value) => value.clone(),
        };
        Some((key.clone(), value))
    });
    shown.collect()
}

/// The types of the fields of a result that are never null, without what is inside of them. Clients
/// validate results, and models seldom see this schema.
pub(super) fn shown_result(schema: &Map<String, Value>) -> Map<String, Value> {
    let mut shown = Map::new();
    for (name, schema) in properties(schema) {
        if let Some(kind @ Value::String(_)) = schema.get("type") {
            shown.insert(name.to_owned(), json!({ "type": kind }));
        }
    }
    Map::from_iter([
        ("type".to_owned(), "object".into()),
        ("properties".to_owned(), shown.into()),
    ])
}

/// The schema of an operation's result. Fields that may be absent are not required, because clients
/// validate results.
pub(super) fn result_schema<T: JsonSchema>() -> Map<String, Value> {
    generate::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn without_null(fields: &mut Map<String, Value>) {
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
