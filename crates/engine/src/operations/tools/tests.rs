//! Tool lists have the properties that MCP hosts rely on.

use std::collections::BTreeMap;

use oubliette_model::{Mode, ProjectId, Scope, ToolStyle, allows_class};
use serde_json::Value;

use super::*;
use crate::operations;

fn scopes() -> [Scope; 5] {
    let project = ProjectId::new(uuid::Uuid::from_u128(7));
    [
        Scope::Admin,
        Scope::Write,
        Scope::Read,
        Scope::Project(project, Mode::Write),
        Scope::Project(project, Mode::Read),
    ]
}

const STYLES: [ToolStyle; 3] = [ToolStyle::Both, ToolStyle::Unified, ToolStyle::Split];

#[test]
fn schemas_are_flat_objects_with_described_parameters() {
    for tool in scopes()
        .iter()
        .flat_map(|scope| STYLES.map(|style| list(*scope, style)))
        .flatten()
    {
        assert_eq!(tool.input["type"], "object", "{}", tool.name);
        assert_eq!(tool.output["type"], "object", "{}", tool.name);
        for word in ["oneOf", "anyOf", "allOf", "if", "$ref", "$defs", "$schema"] {
            assert!(
                !tool.input.contains_key(word),
                "{} has {word} at the top",
                tool.name
            );
            assert!(
                !tool.output.contains_key(word),
                "{} has {word} at the top",
                tool.name
            );
        }
        for (name, schema) in schema::properties(&tool.input) {
            // `command` of `container_exec` is a string or a list, and `result` of
            // `caller_tool_response` is any JSON.
            let one_type = schema["type"].is_string() || matches!(name, "command" | "result");
            assert!(
                one_type,
                "{}.{name} has no single type: {schema}",
                tool.name
            );
        }
    }
}

#[test]
fn a_unified_tool_requires_only_its_action() {
    for tool in list(Scope::Admin, ToolStyle::Unified) {
        let Some(actions) = tool.input["properties"].get("action") else {
            continue;
        };
        assert_eq!(
            tool.input["required"],
            serde_json::json!(["action"]),
            "{}",
            tool.name
        );
        assert!(!tool.output.contains_key("required"), "{}", tool.name);
        for verb in actions["enum"].as_array().unwrap() {
            let verb = verb.as_str().unwrap();
            let entry = operations::find_action(&tool.name, verb).unwrap();
            for (parameter, _) in entry.listed_properties() {
                let merged = &tool.input["properties"][parameter]["description"];
                let described = merged.as_str().unwrap();
                let required = entry.requires(parameter);
                assert_eq!(
                    names_action(described, verb),
                    Some(required),
                    "{}.{parameter}: {described}",
                    tool.name
                );
            }
        }
    }
}

/// Whether a description names an action as one that requires the parameter; none if it does not name it.
fn names_action(described: &str, verb: &str) -> Option<bool> {
    let groups = described
        .split('(')
        .skip(1)
        .filter_map(|part| part.split_once(')'));
    let found = groups.filter_map(|(names, _)| match names.split_once(" but ") {
        Some((all, others)) if all.starts_with("all") => {
            let is_other = others.split(", ").any(|other| other == verb);
            (!is_other).then(|| all.ends_with('*'))
        }
        _ => names
            .split(", ")
            .find(|name| {
                matches!(name.trim_end_matches('*'), "all") || name.trim_end_matches('*') == verb
            })
            .map(|name| name.ends_with('*')),
    });
    found.into_iter().next()
}

/// Every schema in a schema.
fn subschemas(schema: &Value, found: &mut Vec<Value>) {
    found.push(schema.clone());
    let Value::Object(fields) = schema else {
        return;
    };
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                properties
                    .values()
                    .for_each(|schema| subschemas(schema, found));
            }
            ("anyOf", Value::Array(choices)) => {
                choices.iter().for_each(|schema| subschemas(schema, found));
            }
            ("items", schema) => subschemas(schema, found),
            ("additionalProperties", schema) if !schema.is_boolean() => subschemas(schema, found),
            _ => {}
        }
    }
}

#[test]
fn schemas_have_one_type_everywhere_and_are_never_empty() {
    for tool in lists().flatten() {
        for schema in [&tool.input, &tool.output] {
            let mut found = Vec::new();
            subschemas(&Value::Object(schema.as_ref().clone()), &mut found);
            for schema in found {
                let is_portable = schema["type"].is_string() || schema["anyOf"].is_array();
                assert!(is_portable, "{}: {schema}", tool.name);
                assert!(schema.get("oneOf").is_none(), "{}: {schema}", tool.name);
            }
        }
    }
}

fn lists() -> impl Iterator<Item = &'static [Tool]> {
    scopes().into_iter().flat_map(|scope| {
        STYLES
            .into_iter()
            .flat_map(move |style| [list(scope, style), list_for_agents(scope, style)])
    })
}

/// What a model sees of a list.
fn shown_bytes(tools: &[Tool], prefix: &str) -> usize {
    let shown = tools.iter().map(|tool| {
        let name = format!("{prefix}{}", tool.name);
        let shown = json!({ "name": name, "description": tool.about, "inputSchema": &*tool.input });
        shown.to_string().len()
    });
    shown.sum()
}

/// Lists take space in the context of every model that has them. A token of o200k is more than 4.1 bytes of these
/// lists, measured with a tokenizer.
#[test]
fn lists_are_short() {
    const BYTES_PER_TEN_TOKENS: usize = 41;
    let unified = shown_bytes(list(Scope::Admin, ToolStyle::Unified), "");
    assert!(unified <= 500 * BYTES_PER_TEN_TOKENS, "{unified} bytes");
    let both = shown_bytes(list_for_agents(Scope::Admin, ToolStyle::Both), AGENT_PREFIX);
    assert!(both <= 810 * BYTES_PER_TEN_TOKENS, "{both} bytes");
    for tool in lists().flatten() {
        let output = Value::Object(tool.output.as_ref().clone()).to_string();
        assert!(
            output.len() < 2000,
            "{}: {} bytes of output schema",
            tool.name,
            output.len()
        );
    }
}

/// A model is not told of tools that it has not got.
#[test]
fn descriptions_name_only_tools_of_the_list() {
    for scope in scopes() {
        for style in STYLES {
            for (tools, prefix) in [
                (list(scope, style), ""),
                (list_for_agents(scope, style), AGENT_PREFIX),
            ] {
                let names: Vec<String> = tools
                    .iter()
                    .map(|tool| format!("{prefix}{}", tool.name))
                    .collect();
                for tool in tools {
                    let texts = schema::properties(&tool.input)
                        .filter_map(|(_, schema)| schema["description"].as_str())
                        .chain([tool.about.as_str()]);
                    for name in texts.flat_map(|text| text.split('`').skip(1).step_by(2)) {
                        let name_of = name.strip_prefix(AGENT_PREFIX).unwrap_or(name);
                        if operations::find(name_of).is_some() {
                            assert!(
                                names.iter().any(|known| known == name),
                                "{scope} {style:?} {}: {name}",
                                tool.name
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Names that the contract gives to two things: the variables of a project, and the variable that has a
/// credential.
const OTHER_TYPES: [(&str, &str); 1] = [("credential_add", "env")];

#[test]
fn a_parameter_name_has_one_type_everywhere() {
    let mut types: BTreeMap<&str, (&str, Value)> = BTreeMap::new();
    for entry in all() {
        for (name, schema) in entry.properties() {
            if OTHER_TYPES.contains(&(entry.name, name)) {
                continue;
            }
            let mut schema = schema::shown_parameter(schema);
            schema.as_object_mut().unwrap().remove("description");
            match types.get(name) {
                Some((other, known)) => {
                    assert_eq!(
                        known, &schema,
                        "`{name}` differs in {other} and {}",
                        entry.name
                    );
                }
                None => drop(types.insert(name, (entry.name, schema))),
            }
        }
    }
}

#[test]
fn a_list_contains_exactly_the_operations_that_a_scope_may_call() {
    for scope in scopes() {
        let mut split: Vec<&str> = list(scope, ToolStyle::Split)
            .iter()
            .map(|tool| tool.name.as_str())
            .collect();
        for entry in all() {
            let allowed = allows_class(scope, entry.access);
            assert_eq!(
                split.contains(&entry.name),
                allowed,
                "{scope} {}",
                entry.name
            );
        }
        let mut unified: Vec<String> = list(scope, ToolStyle::Unified)
            .iter()
            .flat_map(|tool| match tool.input["properties"].get("action") {
                Some(action) => action["enum"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|verb| format!("{}_{}", tool.name, verb.as_str().unwrap()))
                    .collect(),
                None => vec![tool.name.clone()],
            })
            .collect();
        unified.sort_unstable();
        split.sort_unstable();
        assert_eq!(unified, split, "{scope}");
    }
}

#[test]
fn only_operations_that_read_are_marked_read_only() {
    for entry in all() {
        let hints = hints(&[entry]);
        let reads = entry.effect == Effect::Reads;
        assert_eq!(hints.read_only, reads, "{}", entry.name);
        // The contract gives `container_logs` only to those who may write, though it reads.
        if let Access::Global(mode) | Access::Project(mode) = entry.access
            && entry.name != "container_logs"
        {
            assert_eq!(mode == Mode::Read, reads, "{}", entry.name);
        }
        assert!(!(hints.destructive && reads), "{}", entry.name);
    }
}

#[test]
fn every_operation_belongs_to_a_described_noun() {
    for entry in all() {
        let noun = NOUNS.iter().find(|noun| noun.name == entry.noun());
        let noun = noun.unwrap_or_else(|| panic!("{} has no row in NOUNS", entry.name));
        assert!(!noun.summary.is_empty(), "{}", noun.name);
        assert!(
            entry.face == Face::Standalone || noun.about.is_some(),
            "{}",
            entry.name
        );
    }
}
