//! The operations as MCP tools, unified and split, filtered by what a scope may call.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use oubliette_model::{Access, Mode, ProjectId, Scope, ToolStyle, allows_class};
use oubliette_runtime::ContainerId;
use serde_json::{Map, Value, json};

use super::{Effect, Entry, Face, NOUNS, all, schema};
use crate::{Engine, Result};

/// A tool as a list shows it.
#[derive(Debug, Clone)]
pub struct Tool {
    pub name: String,
    pub about: String,
    pub input: Arc<Map<String, Value>>,
    pub output: Arc<Map<String, Value>>,
    pub hints: Hints,
}

/// What an MCP host may assume about a tool before it asks its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hints {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
}

/// Scopes that may call the same operations, and share a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ScopeClass {
    Admin,
    Write,
    Read,
    Project,
    ProjectRead,
}

impl ScopeClass {
    fn from_scope(scope: Scope) -> Self {
        match scope {
            Scope::Admin => Self::Admin,
            Scope::Write => Self::Write,
            Scope::Read => Self::Read,
            Scope::Project(_, Mode::Write) => Self::Project,
            Scope::Project(_, Mode::Read) => Self::ProjectRead,
        }
    }

    fn allows(self, access: Access) -> bool {
        let any = ProjectId::new(uuid::Uuid::nil());
        let scope = match self {
            Self::Admin => Scope::Admin,
            Self::Write => Scope::Write,
            Self::Read => Scope::Read,
            Self::Project => Scope::Project(any, Mode::Write),
            Self::ProjectRead => Scope::Project(any, Mode::Read),
        };
        allows_class(scope, access)
    }
}

static LISTS: LazyLock<HashMap<(ScopeClass, ToolStyle), Vec<Tool>>> = LazyLock::new(|| {
    let classes = [
        ScopeClass::Admin,
        ScopeClass::Write,
        ScopeClass::Read,
        ScopeClass::Project,
        ScopeClass::ProjectRead,
    ];
    let styles = [ToolStyle::Unified, ToolStyle::Split, ToolStyle::Both];
    classes
        .into_iter()
        .flat_map(|class| styles.map(|style| ((class, style), list_for(class, style))))
        .collect()
});

/// The tools that a token of this scope may call, in a stable order.
pub fn list(scope: Scope, style: ToolStyle) -> &'static [Tool] {
    LISTS
        .get(&(ScopeClass::from_scope(scope), style))
        .map_or(&[], Vec::as_slice)
}

impl Engine {
    /// The style of the tool names that the agents in a container see.
    pub async fn tool_style(&self, container: &ContainerId) -> Result<ToolStyle> {
        let store = self.store();
        let project = match store.container(container.as_str()).await? {
            Some(container) => store.project(container.project_id).await?,
            None => None,
        };
        let configured = project.and_then(|project| project.settings.tools_style);
        Ok(configured
            .or(self.settings().tools.style)
            .unwrap_or(ToolStyle::Both))
    }
}

fn list_for(class: ScopeClass, style: ToolStyle) -> Vec<Tool> {
    let permitted: Vec<&Entry> = all()
        .iter()
        .filter(|entry| class.allows(entry.access))
        .collect();
    let unified = NOUNS.iter().filter_map(|noun| {
        let about = noun.about?;
        let of_noun = |entry: &&&Entry| entry.face == Face::Action && entry.noun() == noun.name;
        let actions: Vec<&Entry> = permitted.iter().filter(of_noun).copied().collect();
        (!actions.is_empty()).then(|| unified_tool(noun.name, about, &actions))
    });
    let standalone = permitted
        .iter()
        .filter(|entry| entry.face == Face::Standalone);
    let split = permitted.iter().filter(|entry| entry.face == Face::Action);
    match style {
        ToolStyle::Unified => unified
            .chain(standalone.map(|entry| split_tool(entry)))
            .collect(),
        ToolStyle::Split => split
            .chain(standalone)
            .map(|entry| split_tool(entry))
            .collect(),
        ToolStyle::Both => unified
            .chain(split.chain(standalone).map(|entry| split_tool(entry)))
            .collect(),
    }
}

/// A tool for one operation.
fn split_tool(entry: &Entry) -> Tool {
    Tool {
        name: entry.name.to_owned(),
        about: entry.about.to_owned(),
        input: entry.input.clone(),
        output: entry.output.clone(),
        hints: hints(&[entry]),
    }
}

/// A tool for the permitted actions of a noun: `action` and the union of their parameters.
fn unified_tool(noun: &str, about: &str, actions: &[&Entry]) -> Tool {
    let verbs: Vec<&str> = actions.iter().map(|entry| entry.verb()).collect();
    let mut properties = Map::new();
    properties.insert(
        "action".to_owned(),
        json!({ "type": "string", "enum": verbs, "description": "The action to call." }),
    );
    for entry in actions {
        for (name, schema) in entry.properties() {
            if !properties.contains_key(name) {
                let merged = merge_descriptions(name, schema, actions);
                properties.insert(name.to_owned(), merged);
            }
        }
    }
    let input = json!({
        "type": "object",
        "properties": properties,
        "required": ["action"],
        "additionalProperties": false,
    });
    let listed: Vec<String> = actions
        .iter()
        .map(|entry| format!("- {}: {}", entry.verb(), entry.about))
        .collect();
    Tool {
        name: noun.to_owned(),
        about: format!("{about} Actions:\n{}", listed.join("\n")),
        input: Arc::new(object(input)),
        output: Arc::new(object(unified_output(actions))),
        hints: hints(actions),
    }
}

/// A parameter's schema with a description that names the actions it belongs to.
fn merge_descriptions(name: &str, schema: &Value, actions: &[&Entry]) -> Value {
    let mut texts: Vec<(Vec<&str>, &str)> = Vec::new();
    for entry in actions {
        let Some((_, schema)) = entry.properties().find(|(property, _)| *property == name) else {
            continue;
        };
        let text = schema
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        match texts.iter_mut().find(|(_, known)| *known == text) {
            Some((verbs, _)) => verbs.push(entry.verb()),
            None => texts.push((vec![entry.verb()], text)),
        }
    }
    let described: Vec<String> = texts
        .iter()
        .map(|(verbs, text)| format!("({}) {text}", verbs.join(", ")))
        .collect();
    let mut schema = schema.clone();
    if let Value::Object(fields) = &mut schema {
        fields.insert("description".to_owned(), Value::String(described.join(" ")));
    }
    schema
}

/// The union of the results, with nothing required. A field that has different schemas in two actions
/// allows any value.
fn unified_output(actions: &[&Entry]) -> Value {
    let mut properties: Map<String, Value> = Map::new();
    for entry in actions {
        for (name, schema) in schema::properties(&entry.output) {
            match properties.get_mut(name) {
                None => drop(properties.insert(name.to_owned(), schema.clone())),
                Some(known) if known == schema => {}
                Some(known) => *known = json!({}),
            }
        }
    }
    json!({ "type": "object", "properties": properties })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

fn hints(entries: &[&Entry]) -> Hints {
    let effects = || entries.iter().map(|entry| entry.effect);
    Hints {
        read_only: effects().all(|effect| effect == Effect::Reads),
        destructive: effects().any(|effect| effect == Effect::Destroys),
        idempotent: effects().all(|effect| effect != Effect::Adds),
    }
}

#[cfg(test)]
mod tests;
