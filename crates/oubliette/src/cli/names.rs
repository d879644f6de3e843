//! Project names where operations take ids.

use oubliette_engine::operations::Entry;
use oubliette_model::{ProjectId, nearest, quoted};
use serde_json::{Map, Value};

use super::client::Client;
use crate::failure::Failure;

/// Replaces every project's name by its id, in ids, in scopes and in targets.
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
                    target["project_id"] = Value::from(project(text, client).await?);
                }
            }
            continue;
        }
        let Some(Value::String(text)) = given.get(name) else {
            continue;
        };
        let resolved = match name {
            "project_id" => project(text, client).await?,
            "scope" | "agent_scope" => scope(text, client).await?,
            _ => continue,
        };
        given.insert(name.to_owned(), Value::from(resolved));
    }
    Ok(given)
}

/// `project:NAME` and `project:NAME:ro` with the project's id.
async fn scope(text: &str, client: &Client) -> Result<String, Failure> {
    let Some(rest) = text.strip_prefix("project:") else {
        return Ok(text.to_owned());
    };
    let (name, suffix) = match rest.strip_suffix(":ro") {
        Some(name) => (name, ":ro"),
        None => (rest, ""),
    };
    Ok(format!("project:{}{suffix}", project(name, client).await?))
}

pub(super) async fn project(text: &str, client: &Client) -> Result<String, Failure> {
    if text.parse::<ProjectId>().is_ok() {
        return Ok(text.to_owned());
    }
    let mut names = Vec::new();
    let mut page = Map::from_iter([("limit".to_owned(), Value::from(1000))]);
    loop {
        let mut result = client.call("project_list", page.clone()).await?;
        for project in result
            .get("projects")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let field = |name| {
                project
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            if field("name") == text {
                return Ok(field("project_id").to_owned());
            }
            names.push(field("name").to_owned());
        }
        match result.remove("next_cursor") {
            Some(cursor) => page.insert("cursor".to_owned(), cursor),
            None => break,
        };
    }
    let hint = match nearest(text, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`oubliette project list` shows those there are".to_owned(),
    };
    Err(Failure::new(format!(
        "there is no project {}; {hint}",
        quoted(text)
    )))
}
