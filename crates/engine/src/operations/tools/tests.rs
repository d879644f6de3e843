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
            assert!(
                schema["description"].is_string(),
                "{}.{name} is not described",
                tool.name
            );
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
            for (parameter, _) in entry.properties() {
                let merged = &tool.input["properties"][parameter]["description"];
                let described = merged.as_str().unwrap();
                assert!(
                    described.contains(verb),
                    "{}.{parameter}: {described}",
                    tool.name
                );
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
            let mut schema = schema.clone();
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
        if let Access::Global(mode) | Access::Project(mode) = entry.access {
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
