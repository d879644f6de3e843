//! Resolves names of projects and schedules to the ids that operations take.

use oubliette_engine::operations::Entry;
use oubliette_model::{ProjectId, ScheduleId, nearest, quoted};
use serde_json::{Map, Value};

use super::client::Client;
use crate::failure::Failure;

/// Replaces names by ids: of schedules, and of projects, also in scopes and targets.
pub(super) async fn resolve(
    entry: &Entry,
    mut given: Map<String, Value>,
    client: &Client,
) -> Result<Map<String, Value>, Failure> {
    let parameters: Vec<&str> = entry.properties().map(|(name, _)| name).collect();
    for name in parameters {
        if name == "targets" {
            let targets = given.get_mut(name).and_then(Value::as_array_mut);
            for target in targets.into_iter().flatten() {
                if let Some(text) = target["project_id"].as_str() {
                    target["project_id"] = Value::from(project_id(text, client).await?);
                }
            }
            continue;
        }
        let Some(Value::String(text)) = given.get(name) else {
            continue;
        };
        let resolved = match name {
            "project_id" => project_id(text, client).await?,
            "schedule_id" => schedule_id(text, client).await?,
            "scope" | "agent_scope" => resolve_scope(text, client).await?,
            _ => continue,
        };
        given.insert(name.to_owned(), Value::from(resolved));
    }
    Ok(given)
}

/// `project:NAME` and `project:NAME:ro` with the project's id.
async fn resolve_scope(text: &str, client: &Client) -> Result<String, Failure> {
    let Some(rest) = text.strip_prefix("project:") else {
        return Ok(text.to_owned());
    };
    let (name, suffix) = match rest.strip_suffix(":ro") {
        Some(name) => (name, ":ro"),
        None => (rest, ""),
    };
    Ok(format!(
        "project:{}{suffix}",
        project_id(name, client).await?
    ))
}

pub(super) async fn project_id(text: &str, client: &Client) -> Result<String, Failure> {
    if text.parse::<ProjectId>().is_ok() {
        return Ok(text.to_owned());
    }
    find_id_by_name("project", text, client).await
}

async fn schedule_id(text: &str, client: &Client) -> Result<String, Failure> {
    if text.parse::<ScheduleId>().is_ok() {
        return Ok(text.to_owned());
    }
    find_id_by_name("schedule", text, client).await
}

/// What is known about a name.
pub(super) enum Lookup {
    Found(String),
    /// Nothing has that name; another name resembles it.
    Missing {
        near: Option<String>,
    },
}

/// Looks for a project by its id or name.
pub(super) async fn find_project(text: &str, client: &Client) -> Result<Lookup, Failure> {
    if text.parse::<ProjectId>().is_ok() {
        return Ok(Lookup::Found(text.to_owned()));
    }
    find_by_name("project", text, client).await
}

/// The id of the only project or schedule with that name.
async fn find_id_by_name(noun: &str, text: &str, client: &Client) -> Result<String, Failure> {
    match find_by_name(noun, text, client).await? {
        Lookup::Found(id) => Ok(id),
        Lookup::Missing { near } => {
            let hint = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("see `oubliette {noun} list`"),
            };
            let text = quoted(text);
            Err(Failure::new(format!("there is no {noun} {text}; {hint}")))
        }
    }
}

async fn find_by_name(noun: &str, text: &str, client: &Client) -> Result<Lookup, Failure> {
    let (mut names, mut found) = (Vec::new(), Vec::new());
    let mut page = Map::from_iter([("limit".to_owned(), Value::from(1000))]);
    loop {
        let mut result = client.call(&format!("{noun}_list"), page.clone()).await?;
        let rows = result.get(&format!("{noun}s")).and_then(Value::as_array);
        for row in rows.into_iter().flatten() {
            let field = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
            if field("name") == text {
                found.push(field(&format!("{noun}_id")).to_owned());
            }
            names.push(field("name").to_owned());
        }
        match result.remove("next_cursor") {
            Some(cursor) => page.insert("cursor".to_owned(), cursor),
            None => break,
        };
    }
    match found.as_slice() {
        [id] => Ok(Lookup::Found(id.clone())),
        [] => Ok(Lookup::Missing {
            near: nearest(text, names.iter().map(String::as_str)).map(str::to_owned),
        }),
        several => Err(Failure::new(format!(
            "{} {noun}s are called {}; use an id instead: see `oubliette {noun} list`",
            several.len(),
            quoted(text)
        ))),
    }
}
