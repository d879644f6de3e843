//! Shows names instead of ids in lists, and looks for projects by their names. What a user gives as an id or a
//! name goes to the server as it is; only the server resolves it.

use std::collections::{BTreeSet, HashMap};

use oubliette_engine::operations::Entry;
use oubliette_model::{Mode, ProjectId, Scope, nearest, quoted};
use serde_json::{Map, Value};

use super::client::Client;
use crate::failure::Failure;

/// What a list shows for a project or token that no longer exists.
const DELETED: &str = "(deleted)";

/// The id of a project that is given by its id, its name or a unique beginning of its id.
pub(super) async fn project_id(text: &str, client: &Client) -> Result<String, Failure> {
    let get = Map::from_iter([("project_id".to_owned(), Value::from(text))]);
    let project = client.call("project_get", get).await?;
    let id = project.get("project_id").and_then(Value::as_str);
    Ok(id.unwrap_or(text).to_owned())
}

/// A scope as the server stores it: `project:NAME` and `project:NAME:ro` have the project's id.
pub(super) async fn stored_scope(text: &str, client: &Client) -> Result<String, Failure> {
    let Some((project, mode)) = Scope::split_project(text) else {
        return Ok(text.to_owned());
    };
    let project = project_id(project, client).await?;
    Ok(Scope::join_project(&project, mode))
}

/// A list with names in place of the ids of projects and tokens that its rows belong to. What cannot be
/// looked up stays.
pub(super) async fn show_names(
    entry: &Entry,
    mut result: Map<String, Value>,
    client: &Client,
) -> Map<String, Value> {
    let list = match entry.name {
        "session_list" => "sessions",
        "audit_list" => "entries",
        "token_list" => "tokens",
        "workspace_list" => "workspaces",
        _ => return result,
    };
    let Some(Value::Array(rows)) = result.get_mut(list) else {
        return result;
    };
    let mut rows: Vec<&mut Map<String, Value>> =
        rows.iter_mut().filter_map(Value::as_object_mut).collect();
    if entry.name == "workspace_list" {
        for row in rows {
            row.remove("project_id");
        }
        return result;
    }
    let mut projects = BTreeSet::new();
    for row in &rows {
        let own = row.get("project_id").and_then(Value::as_str);
        let in_scope = project_scope(row).map(|(project, _)| project);
        projects.extend(own.or(in_scope).map(str::to_owned));
    }
    let Some(projects) = names_by_id("project", projects, client).await else {
        return result;
    };
    let tokens = if entry.name == "audit_list" {
        let ids = rows.iter().filter_map(|row| row.get("token_id")?.as_str());
        let ids = ids.map(str::to_owned).collect();
        names_by_id("token", ids, client).await
    } else {
        None
    };
    for row in &mut rows {
        if let Some((project, mode)) = project_scope(row)
            && let Some(name) = projects.get(project)
        {
            let scope = Scope::join_project(name, mode);
            row.insert("scope".to_owned(), scope.into());
        }
        replace_id(row, "project", &projects);
        if let Some(tokens) = &tokens {
            replace_id(row, "token", tokens);
        }
    }
    result
}

/// Puts the name of a project or token where its id is.
fn replace_id(row: &mut Map<String, Value>, noun: &str, names: &HashMap<String, String>) {
    if let Some(Value::String(id)) = row.remove(&format!("{noun}_id")) {
        let name = names.get(&id).map_or(DELETED, String::as_str);
        row.insert(noun.to_owned(), Value::from(name));
    }
}

/// The project and the mode of a project token's scope.
fn project_scope(token: &Map<String, Value>) -> Option<(&str, Mode)> {
    Scope::split_project(token.get("scope")?.as_str()?)
}

/// The names of projects or tokens by their ids; none if they may not be listed.
pub(super) async fn names_by_id(
    noun: &str,
    ids: BTreeSet<String>,
    client: &Client,
) -> Option<HashMap<String, String>> {
    if ids.is_empty() {
        return Some(HashMap::new());
    }
    let rows = all_rows(noun, client).await.ok()?;
    let text = |row: &Map<String, Value>, name: &str| row.get(name)?.as_str().map(str::to_owned);
    let id = format!("{noun}_id");
    let pairs = rows.iter().filter_map(|row| {
        let id = text(row, &id).filter(|id| ids.contains(id))?;
        Some((id, text(row, "name")?))
    });
    Some(pairs.collect())
}

/// The name of a project, or its id if that is not known.
pub(super) async fn project_name(id: &str, client: &Client) -> String {
    let get = Map::from_iter([("project_id".to_owned(), Value::from(id))]);
    let project = client.call("project_get", get).await.unwrap_or_default();
    let name = project.get("name").and_then(Value::as_str);
    name.unwrap_or(id).to_owned()
}

/// What is known about the name of a project.
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
    let (mut names, mut found) = (Vec::new(), Vec::new());
    for row in all_rows("project", client).await? {
        let field = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
        if field("name") == text {
            found.push(field("project_id").to_owned());
        }
        names.push(field("name").to_owned());
    }
    match found.as_slice() {
        [id] => Ok(Lookup::Found(id.clone())),
        [] => Ok(Lookup::Missing {
            near: nearest(text, names.iter().map(String::as_str)).map(str::to_owned),
        }),
        several => Err(Failure::new(format!(
            "{} projects are called {}; use an id instead: see `oubliette project list`",
            several.len(),
            quoted(text)
        ))),
    }
}

/// All rows of a list.
pub(super) async fn all_rows(
    noun: &str,
    client: &Client,
) -> Result<Vec<Map<String, Value>>, Failure> {
    let mut rows = Vec::new();
    let mut page = Map::from_iter([("limit".to_owned(), Value::from(1000))]);
    loop {
        let mut result = client.call(&format!("{noun}_list"), page.clone()).await?;
        if let Some(Value::Array(more)) = result.remove(&format!("{noun}s")) {
            rows.extend(more.into_iter().filter_map(|row| match row {
                Value::Object(row) => Some(row),
                _ => None,
            }));
        }
        match result.remove("next_cursor") {
            Some(cursor) => page.insert("cursor".to_owned(), cursor),
            None => return Ok(rows),
        };
    }
}
