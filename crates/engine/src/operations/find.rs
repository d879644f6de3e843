//! Finds the operation that a call names.

use std::collections::HashMap;
use std::sync::LazyLock;

use oubliette_model::{Scope, allows_class, nearest, quoted};
use serde_json::{Map, Value};

use super::{Entry, Face, all};
use crate::error::did_you_mean;
use crate::{EngineError, Result};

static BY_NAME: LazyLock<HashMap<&str, &Entry>> =
    LazyLock::new(|| all().iter().map(|entry| (entry.name, entry)).collect());

/// The operation with this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    BY_NAME.get(name).copied()
}

/// The operation that is this action of a noun's tool.
pub fn find_action(noun: &str, action: &str) -> Option<&'static Entry> {
    actions(noun).find(|entry| entry.verb() == action)
}

fn actions(noun: &str) -> impl Iterator<Item = &'static Entry> {
    all()
        .iter()
        .filter(move |entry| entry.face == Face::Action && entry.noun() == noun)
}

/// The operation that a tool call names: by its own name, or by a noun and an `action`, which is
/// removed from the arguments.
pub(super) fn resolve(
    scope: Scope,
    name: &str,
    arguments: &mut Map<String, Value>,
) -> Result<&'static Entry> {
    if let Some(entry) = find(name) {
        return Ok(entry);
    }
    let Some(first) = actions(name).next() else {
        return Err(unknown_tool(scope, name));
    };
    let permitted = || actions(name).filter(|entry| allows_class(scope, entry.access));
    if permitted().next().is_none() {
        return Err(EngineError::refused_operation(scope, name, first.access));
    }
    let verbs: Vec<&str> = permitted().map(Entry::verb).collect();
    let one_of = format!("it is one of `{}`", verbs.join("`, `"));
    match arguments.remove("action") {
        Some(Value::String(action)) => find_action(name, &action).ok_or_else(|| {
            let hint = match nearest(&action, verbs.iter().copied()) {
                Some(near) => did_you_mean(Some(near)),
                None => format!("; {one_of}"),
            };
            EngineError::invalid(format!(
                "unknown action {} of `{name}`{hint}",
                quoted(&action)
            ))
        }),
        None | Some(Value::Null) => Err(EngineError::invalid(format!(
            "missing parameter `action`; {one_of}"
        ))),
        Some(_) => Err(EngineError::invalid(format!(
            "`action` must be a string; {one_of}"
        ))),
    }
}

/// Suggests only tools that the token may call.
fn unknown_tool(scope: Scope, name: &str) -> EngineError {
    let callable = all()
        .iter()
        .filter(|entry| allows_class(scope, entry.access));
    let names = callable.flat_map(|entry| match entry.face {
        Face::Action => [Some(entry.name), Some(entry.noun())],
        Face::Standalone => [Some(entry.name), None],
    });
    let nearest = nearest(name, names.flatten()).map(str::to_owned);
    EngineError::UnknownTool {
        name: name.to_owned(),
        nearest,
    }
}
