//! The operations as MCP tools, unified and split, filtered by what a scope may call.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use oubliette_model::{Access, Mode, ProjectId, Scope, ToolStyle, allows_class};
use oubliette_runtime::ContainerId;
use serde_json::{Map, Value, json};

use super::{Effect, Entry, Face, NOUNS, ToolNames, all, schema};
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
    /// Whether it reaches beyond the server: other hosts, by an agent or a command, for example.
    pub open_world: bool,
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
            Scope::Read | Scope::AdminRead => Self::Read,
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

/// Who a list is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Audience {
    Callers,
    /// Agents in containers, whose client puts a prefix before the names.
    Agents,
}

impl Audience {
    fn names(self, style: ToolStyle) -> ToolNames {
        match self {
            Self::Callers => ToolNames::of_style(style),
            Self::Agents => ToolNames::of_style(style).with_prefix(AGENT_PREFIX),
        }
    }
}

/// What the names of Oubliette's tools begin with in containers.
pub const AGENT_PREFIX: &str = "oubliette_";

static LISTS: LazyLock<HashMap<(ScopeClass, ToolStyle, Audience), Vec<Tool>>> =
    LazyLock::new(|| {
        let classes = [
            ScopeClass::Admin,
            ScopeClass::Write,
            ScopeClass::Read,
            ScopeClass::Project,
            ScopeClass::ProjectRead,
        ];
        let styles = [ToolStyle::Unified, ToolStyle::Split, ToolStyle::Both];
        let audiences = [Audience::Callers, Audience::Agents];
        let mut lists = HashMap::new();
        for class in classes {
            for style in styles {
                for audience in audiences {
                    let tools = list_for(class, style, audience.names(style));
                    lists.insert((class, style, audience), tools);
                }
            }
        }
        lists
    });

/// The tools that a token of this scope may call, in a stable order.
pub fn list(scope: Scope, style: ToolStyle) -> &'static [Tool] {
    find_list(scope, style, Audience::Callers)
}

/// The tools that an agent with a key of this scope may call. The names have no prefix yet; texts name
/// tools with it.
pub fn list_for_agents(scope: Scope, style: ToolStyle) -> &'static [Tool] {
    find_list(scope, style, Audience::Agents)
}

fn find_list(scope: Scope, style: ToolStyle, audience: Audience) -> &'static [Tool] {
    LISTS
        .get(&(ScopeClass::from_scope(scope), style, audience))
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

fn list_for(class: ScopeClass, style: ToolStyle, names: ToolNames) -> Vec<Tool> {
    let permitted: Vec<&Entry> = all()
        .iter()
        .filter(|entry| class.allows(entry.access))
        .collect();
    let unified = NOUNS.iter().filter_map(|noun| {
        let about = noun.about?;
        let of_noun = |entry: &&&Entry| entry.face == Face::Action && entry.noun() == noun.name;
        let actions: Vec<&Entry> = permitted.iter().filter(of_noun).copied().collect();
        (!actions.is_empty()).then(|| unified_tool(noun.name, about, &actions, names))
    });
    let standalone = permitted
        .iter()
        .filter(|entry| entry.face == Face::Standalone)
        .map(|entry| split_tool(entry, names));
    let split = permitted.iter().filter(|entry| entry.face == Face::Action);
    match style {
        ToolStyle::Unified => unified.chain(standalone).collect(),
        ToolStyle::Split => split
            .map(|entry| split_tool(entry, names))
            .chain(standalone)
            .collect(),
        ToolStyle::Both => unified
            .chain(split.map(|entry| second_tool(entry, names)))
            .chain(standalone)
            .collect(),
    }
}

/// A tool for one operation.
fn split_tool(entry: &Entry, names: ToolNames) -> Tool {
    let described = |schema: &Value| {
        let mut shown = schema::shown_parameter(schema);
        if let Some(Value::String(text)) = shown.get_mut("description") {
            *text = names.apply(text).into_owned();
        }
        shown
    };
    let properties = entry
        .listed_properties()
        .map(|(name, schema)| (name.to_owned(), described(schema)));
    Tool {
        name: entry.name.to_owned(),
        about: names.apply(schema::brief(entry.about)).into_owned(),
        input: Arc::new(input_schema(entry, properties.collect())),
        output: Arc::new(split_output(entry)),
        hints: hints(&[entry]),
    }
}

/// How many parameters a tool shows, besides those that it requires, in a list that shows them all elsewhere.
const MAX_OPTIONAL_PARAMETERS: usize = 6;

/// A tool for one operation in a list that also has it as an action: there its parameters are described.
fn second_tool(entry: &Entry, names: ToolNames) -> Tool {
    let about = schema::brief(entry.about);
    let mut about = match about.find(['.', ';', ':']) {
        Some(end) => about[..end].to_owned(),
        None => about.to_owned(),
    };
    let mut optional = 0;
    let mut is_shown = |name: &str| {
        optional += usize::from(!entry.requires(name));
        entry.requires(name) || optional <= MAX_OPTIONAL_PARAMETERS
    };
    let shown: Map<String, Value> = entry
        .listed_properties()
        .filter(|(name, _)| is_shown(name))
        .map(|(name, schema)| {
            let mut shown = schema::shown_parameter(schema);
            without_descriptions(&mut shown);
            (name.to_owned(), shown)
        })
        .collect();
    if shown.len() < entry.listed_properties().count() {
        about = format!("{about}. More parameters: `{}`", names.tool(entry.noun()));
    }
    Tool {
        name: entry.name.to_owned(),
        about,
        input: Arc::new(input_schema(entry, shown)),
        output: Arc::new(split_output(entry)),
        hints: hints(&[entry]),
    }
}

/// Leaves the types of a parameter and of what is directly inside of it.
fn without_descriptions(schema: &mut Value) {
    if let Value::Object(fields) = schema {
        fields.retain(|key, _| matches!(key.as_str(), "type" | "enum" | "items" | "anyOf"));
        fields.values_mut().for_each(without_descriptions);
    }
}

fn input_schema(entry: &Entry, properties: Map<String, Value>) -> Map<String, Value> {
    let required: Vec<&str> = schema::required(&entry.input).collect();
    let mut input = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        input["required"] = json!(required);
    }
    object(input)
}

fn split_output(entry: &Entry) -> Map<String, Value> {
    let mut output = schema::shown_result(&entry.output);
    let required: Vec<&str> = schema::required(&entry.output)
        .filter(|name| output["properties"].get(name).is_some())
        .collect();
    output.insert("required".to_owned(), json!(required));
    output
}

/// A tool for the permitted actions of a noun: `action` and the union of their parameters.
fn unified_tool(noun: &str, about: &str, actions: &[&Entry], names: ToolNames) -> Tool {
    let verbs: Vec<&str> = actions.iter().map(|entry| entry.verb()).collect();
    let mut properties = Map::new();
    properties.insert(
        "action".to_owned(),
        json!({ "type": "string", "enum": verbs, "description": "* marks what an action requires" }),
    );
    for entry in actions {
        for (name, schema) in entry.listed_properties() {
            if !properties.contains_key(name) {
                let mut merged = schema::shown_parameter(schema);
                let text = merge_descriptions(name, actions);
                merged["description"] = names.apply_in(&text, Some(noun)).into();
                properties.insert(name.to_owned(), merged);
            }
        }
    }
    let input = json!({ "type": "object", "properties": properties, "required": ["action"] });
    let listed: Vec<String> = actions
        .iter()
        .map(|entry| {
            let about = names.apply_in(schema::brief(entry.about), Some(noun));
            format!("{}: {about}", entry.verb())
        })
        .collect();
    Tool {
        name: noun.to_owned(),
        about: format!("{about} Actions:\n{}", listed.join("\n")),
        input: Arc::new(object(input)),
        output: Arc::new(object(unified_output(actions))),
        hints: hints(actions),
    }
}

/// The description of a parameter with the actions it belongs to; those that require it have a star.
fn merge_descriptions(name: &str, actions: &[&Entry]) -> String {
    let mut texts: Vec<(Vec<String>, &str)> = Vec::new();
    for entry in actions {
        let Some((_, schema)) = entry
            .listed_properties()
            .find(|(listed, _)| *listed == name)
        else {
            continue;
        };
        let text = schema.get("description").and_then(Value::as_str);
        let text = schema::brief(text.unwrap_or_default());
        let star = if entry.requires(name) { "*" } else { "" };
        let verb = format!("{}{star}", entry.verb());
        match texts.iter_mut().find(|(_, known)| *known == text) {
            Some((verbs, _)) => verbs.push(verb),
            None => texts.push((vec![verb], text)),
        }
    }
    let described: Vec<String> = texts
        .iter()
        .map(|(verbs, text)| format!("({}) {text}", name_actions(verbs, actions)))
        .collect();
    described.join(" ")
}

/// Names the actions of a parameter: by the others, if those are few.
fn name_actions(verbs: &[String], actions: &[&Entry]) -> String {
    let starred = verbs.iter().filter(|verb| verb.ends_with('*')).count();
    let star = match starred {
        0 => "",
        all if all == verbs.len() => "*",
        _ => return verbs.join(", "),
    };
    let is_named = |entry: &&&Entry| {
        let mut names = verbs.iter().map(|verb| verb.trim_end_matches('*'));
        names.any(|verb| verb == entry.verb())
    };
    let others: Vec<&str> = actions
        .iter()
        .filter(|entry| !is_named(entry))
        .map(|entry| entry.verb())
        .collect();
    if verbs.len() < 3 || others.len() > verbs.len() / 2 {
        verbs.join(", ")
    } else if others.is_empty() {
        format!("all{star}")
    } else {
        format!("all{star} but {}", others.join(", "))
    }
}

/// The union of the results, with nothing required. A field that has different types in two actions is
/// left out.
fn unified_output(actions: &[&Entry]) -> Value {
    let mut properties: Map<String, Value> = Map::new();
    let mut differing: Vec<String> = Vec::new();
    for entry in actions {
        let shown = schema::shown_result(&entry.output);
        for (name, _) in schema::properties(&entry.output) {
            match (properties.get(name), shown["properties"].get(name)) {
                // Null in one of the actions.
                (_, None) => differing.push(name.to_owned()),
                (None, Some(schema)) => drop(properties.insert(name.to_owned(), schema.clone())),
                (Some(known), Some(schema)) if known == schema => {}
                (Some(_), Some(_)) => differing.push(name.to_owned()),
            }
        }
    }
    properties.retain(|name, _| !differing.contains(name));
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
        destructive: effects().any(|effect| matches!(effect, Effect::Destroys | Effect::Runs)),
        idempotent: effects().all(|effect| !matches!(effect, Effect::Adds | Effect::Runs)),
        open_world: entries.iter().any(|entry| entry.open_world),
    }
}

#[cfg(test)]
mod tests;
