//! The settings of a project (`config.yaml`) and of a change (`.openspec.yaml`).

use crate::yaml::{self, Value};
use crate::{METADATA_FILE, trim_js_whitespace};
use oubliette_model::{FileTree, ReadError};

/// A longer `context` is ignored, as the command does.
const MAX_CONTEXT_BYTES: usize = 50 * 1024;

/// The valid settings of `openspec/config.yaml`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Config {
    pub(crate) schema: Option<String>,
    pub(crate) context: Option<String>,
    /// The project's instructions for applying changes.
    pub(crate) guidance: Vec<String>,
}

/// The settings of a change.
#[derive(Debug, PartialEq)]
pub(crate) struct Metadata {
    pub(crate) schema: String,
    pub(crate) skip_specs: bool,
}

pub(crate) fn load_config(tree: &dyn FileTree) -> Config {
    let path = ["openspec/config.yaml", "openspec/config.yml"]
        .into_iter()
        .find(|path| tree.find(path).is_ok());
    path.and_then(|path| tree.read(path).ok())
        .and_then(|text| yaml::parse(&text).ok())
        .map(|raw| parse_config(&raw))
        .unwrap_or_default()
}

fn parse_config(raw: &Value) -> Config {
    let text = |name: &str| raw.get(name).and_then(Value::as_str).map(str::to_owned);
    let guidance = raw
        .get("operations")
        .and_then(|operations| operations.get("apply"))
        .and_then(|apply| apply.get("guidance"))
        .and_then(Value::as_strings)
        .unwrap_or_default();
    Config {
        schema: text("schema").filter(|schema| !schema.is_empty()),
        context: text("context").filter(|context| {
            context.len() <= MAX_CONTEXT_BYTES && !trim_js_whitespace(context).is_empty()
        }),
        guidance: guidance.into_iter().filter(|one| !one.is_empty()).collect(),
    }
}

/// Loads the settings of a change; `None` if it has none. The error is a sentence for people.
/// `schema_names` lists the existing schemas.
pub(crate) fn load_metadata<'a>(
    tree: &dyn FileTree,
    change_dir: &str,
    schema_names: impl Fn() -> &'a [String],
) -> Result<Option<Metadata>, String> {
    let path = format!("{change_dir}/{METADATA_FILE}");
    let invalid = |why: String| format!("`{path}` cannot be used: {why}");
    let text = match tree.read(&path) {
        Ok(text) => text,
        Err(
            ReadError::NotFound(_)
            | ReadError::DanglingLink
            | ReadError::LinkLoop
            | ReadError::NotADirectory,
        ) => {
            return Ok(None);
        }
        Err(error) => return Err(invalid(error.to_string())),
    };
    let raw = yaml::parse(&text).map_err(invalid)?;
    let metadata = parse_metadata(&raw).map_err(|why| invalid(why.to_owned()))?;
    let known = schema_names();
    if !known.contains(&metadata.schema) {
        return Err(invalid(format!(
            "there is no schema `{}`; existing schemas: {}",
            metadata.schema,
            known.join(", ")
        )));
    }
    Ok(Some(metadata))
}

fn parse_metadata(raw: &Value) -> Result<Metadata, &'static str> {
    let flag = |name| match raw.get(name) {
        None => Ok(false),
        Some(Value::Bool(set)) => Ok(*set),
        Some(_) => Err("`skip_specs` and `retire_capabilities` must be true or false"),
    };
    let schema = raw
        .get("schema")
        .and_then(Value::as_str)
        .filter(|schema| !schema.is_empty());
    let created = raw.get("created");
    if !created.is_none_or(|created| created.as_str().is_some_and(is_date)) {
        return Err("`created` must be a date like 2026-01-31");
    }
    if !raw.get("goal").is_none_or(is_nonempty_string) {
        return Err("`goal` must be a non-empty string");
    }
    match raw.get("affected_areas") {
        None => {}
        Some(Value::List(areas)) if areas.iter().all(is_nonempty_string) => {}
        Some(_) => return Err("`affected_areas` must be a list of non-empty strings"),
    }
    match raw.get("initiative") {
        None => {}
        Some(link @ Value::Map(pairs)) => {
            let is_id = |name| {
                link.get(name)
                    .and_then(Value::as_str)
                    .is_some_and(is_kebab_case)
            };
            if pairs.len() != 2 || !is_id("store") || !is_id("id") {
                return Err(
                    "`initiative` must have only a `store` and an `id`, both in kebab-case",
                );
            }
        }
        Some(_) => return Err("`initiative` must have a `store` and an `id`"),
    }
    flag("retire_capabilities")?;
    Ok(Metadata {
        schema: schema
            .ok_or("`schema` must be the name of a schema")?
            .to_owned(),
        skip_specs: flag("skip_specs")?,
    })
}

fn is_nonempty_string(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn is_date(text: &str) -> bool {
    text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

fn is_kebab_case(text: &str) -> bool {
    let is_word = |word: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !word.is_empty() && word.bytes().all(is_allowed)
    };
    text.split('-').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_parts_of_a_config_are_ignored() {
        let yaml = "schema: 5\ncontext: ' '\nstore: [x]\n\
                    operations: {apply: {guidance: [a, '', b]}}";
        let config = parse_config(&yaml::parse(yaml).unwrap());
        assert_eq!(config.guidance, ["a", "b"]);
        assert_eq!((config.schema, config.context), (None, None));
        assert_eq!(parse_config(&Value::Null), Config::default());
    }

    #[test]
    fn invalid_metadata_is_refused_as_a_whole() {
        let good = "schema: s\ncreated: 2026-01-31\ngoal: g\naffected_areas: [a]\n\
                    initiative: {store: a-b, id: c1}\nskip_specs: true\nother: [1]";
        let read = |text: &str| parse_metadata(&yaml::parse(text).unwrap());
        assert!(read(good).unwrap().skip_specs);
        for (from, to) in [
            ("schema: s", "schema: ''"),
            ("2026-01-31", "2026-1-31"),
            ("goal: g", "goal: 1"),
            ("[a]", "[1]"),
            ("a-b", "a--b"),
            ("id: c1", "id: c1, more: x"),
            ("true", "'yes'"),
        ] {
            assert!(read(&good.replace(from, to)).is_err(), "{to}");
        }
    }
}
