//! What is set for a project and for a change.

use super::yaml::{self, Value};
use super::{METADATA, trim};
use crate::files::{Lost, Tree};

/// Longer than that, `context` is left out.
const LONGEST_CONTEXT: usize = 50 * 1024;

/// What `openspec/config.yaml` says, as far as it can be used.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Config {
    pub(super) schema: Option<String>,
    pub(super) context: Option<String>,
    /// How changes are to be carried out.
    pub(super) guidance: Vec<String>,
}

/// What the metadata of a change says.
#[derive(Debug, PartialEq)]
pub(super) struct Metadata {
    pub(super) schema: String,
    pub(super) skips_specs: bool,
}

pub(super) fn config(tree: &Tree) -> Config {
    let path = ["openspec/config.yaml", "openspec/config.yml"]
        .into_iter()
        .find(|path| tree.find(path).is_ok());
    let text = path.and_then(|path| tree.read(path).ok());
    let raw = text.and_then(|text| yaml::parse(&text).ok());
    raw.map(|raw| read_config(&raw)).unwrap_or_default()
}

fn read_config(raw: &Value) -> Config {
    let text = |name: &str| raw.get(name).and_then(Value::as_text).map(str::to_owned);
    let apply = raw.get("operations").and_then(|all| all.get("apply"));
    let guidance = apply.and_then(|apply| apply.get("guidance"));
    let guidance = guidance.and_then(Value::as_texts).unwrap_or_default();
    Config {
        schema: text("schema").filter(|schema| !schema.is_empty()),
        context: text("context")
            .filter(|context| context.len() <= LONGEST_CONTEXT && !trim(context).is_empty()),
        guidance: guidance.into_iter().filter(|one| !one.is_empty()).collect(),
    }
}

/// What is set for a change; none if nothing is. The error is a sentence for people.
/// `names` are those of the workflows there are.
pub(super) fn metadata<'a>(
    tree: &Tree,
    change: &str,
    names: impl Fn() -> &'a [String],
) -> Result<Option<Metadata>, String> {
    let path = format!("{change}/{METADATA}");
    let wrong = |why: String| format!("`{path}` cannot be used: {why}");
    let text = match tree.read(&path) {
        Ok(text) => text,
        Err(Lost::Absent(_) | Lost::Dangling | Lost::Circle | Lost::NotADirectory) => {
            return Ok(None);
        }
        Err(lost) => return Err(wrong(lost.to_string())),
    };
    let raw = yaml::parse(&text).map_err(wrong)?;
    let metadata = read_metadata(&raw).map_err(|why| wrong(why.to_owned()))?;
    let known = names();
    if !known.contains(&metadata.schema) {
        return Err(wrong(format!(
            "there is no schema `{}`; those there are: {}",
            metadata.schema,
            known.join(", ")
        )));
    }
    Ok(Some(metadata))
}

fn read_metadata(raw: &Value) -> Result<Metadata, &'static str> {
    let flag = |name| match raw.get(name) {
        None => Ok(false),
        Some(Value::Bool(set)) => Ok(*set),
        Some(_) => Err("`skip_specs` and `retire_capabilities` must be true or false"),
    };
    let schema = raw.get("schema").and_then(Value::as_text);
    let schema = schema.filter(|schema| !schema.is_empty());
    let created = raw.get("created");
    if !created.is_none_or(|created| created.as_text().is_some_and(is_date)) {
        return Err("`created` must be a date like 2026-01-31");
    }
    if !raw.get("goal").is_none_or(is_filled) {
        return Err("`goal` must be a text");
    }
    match raw.get("affected_areas") {
        None => {}
        Some(Value::List(areas)) if areas.iter().all(is_filled) => {}
        Some(_) => return Err("`affected_areas` must be a list of texts"),
    }
    match raw.get("initiative") {
        None => {}
        Some(link @ Value::Map(pairs)) => {
            let is_id = |name| {
                link.get(name)
                    .and_then(Value::as_text)
                    .is_some_and(is_kebab)
            };
            if pairs.len() != 2 || !is_id("store") || !is_id("id") {
                return Err("`initiative` must have a `store` and an `id`, like-this, and no more");
            }
        }
        Some(_) => return Err("`initiative` must have a `store` and an `id`"),
    }
    flag("retire_capabilities")?;
    Ok(Metadata {
        schema: schema.ok_or("`schema` must be the name of one")?.to_owned(),
        skips_specs: flag("skip_specs")?,
    })
}

fn is_filled(value: &Value) -> bool {
    value.as_text().is_some_and(|text| !text.is_empty())
}

fn is_date(text: &str) -> bool {
    text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

fn is_kebab(text: &str) -> bool {
    let is_word = |word: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !word.is_empty() && word.bytes().all(plain)
    };
    text.split('-').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_is_used_as_far_as_it_can_be() {
        let yaml = "schema: 5\ncontext: ' '\nstore: [x]\n\
                    operations: {apply: {guidance: [a, '', b]}}";
        let config = read_config(&yaml::parse(yaml).unwrap());
        assert_eq!(config.guidance, ["a", "b"]);
        assert_eq!((config.schema, config.context), (None, None));
        assert_eq!(read_config(&Value::Null), Config::default());
    }

    #[test]
    fn metadata_is_used_whole_or_not_at_all() {
        let good = "schema: s\ncreated: 2026-01-31\ngoal: g\naffected_areas: [a]\n\
                    initiative: {store: a-b, id: c1}\nskip_specs: true\nother: [1]";
        let read = |text: &str| read_metadata(&yaml::parse(text).unwrap());
        assert!(read(good).unwrap().skips_specs);
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
