//! Resolves names of projects, schedules and tokens to the ids that operations take, and shows names
//! instead of ids in lists.

use std::collections::{BTreeSet, HashMap};

use oubliette_engine::operations::Entry;
use oubliette_model::{ProjectId, ScheduleId, TokenId, nearest, quoted};
use serde_json::{Map, Value};

use super::client::Client;
use crate::failure::Failure;
use crate::terminal::printable;

/// What a list shows for a project or token that no longer exists.
const DELETED: &str = "(deleted)";

/// Replaces names by ids: of schedules, of tokens, and of projects, also in scopes and targets.
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
            "token_id" => token_id(entry, text, client).await?,
            "scope" | "agent_scope" => resolve_scope(text, client).await?,
            _ => continue,
        };
        given.insert(name.to_owned(), Value::from(resolved));
    }
    Ok(given)
}

/// `project:NAME` and `project:NAME:ro` with the project's id.
pub(super) async fn resolve_scope(text: &str, client: &Client) -> Result<String, Failure> {
    let Some(scope) = Scope::split(text) else {
        return Ok(text.to_owned());
    };
    let project = project_id(scope.project, client).await?;
    Ok(format!("project:{project}{}", scope.suffix))
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

/// The id of a token. A name that is to be revoked is that of an active token.
async fn token_id(entry: &Entry, text: &str, client: &Client) -> Result<String, Failure> {
    if text.parse::<TokenId>().is_ok() {
        return Ok(text.to_owned());
    }
    let tokens = all_rows("token", client).await?;
    let field = |row: &Map<String, Value>, name: &str| -> String {
        row.get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let named: Vec<&Map<String, Value>> = tokens
        .iter()
        .filter(|row| field(row, "name") == text)
        .collect();
    let is_active = |row: &&Map<String, Value>| field(row, "status") == "active";
    let mut candidates = named.clone();
    if entry.name == "token_revoke" {
        candidates.retain(is_active);
    }
    match candidates.as_slice() {
        [only] => Ok(field(only, "token_id")),
        [] => {
            let shown = quoted(text);
            if let Some(ended) = named.last() {
                let status = field(ended, "status");
                return Err(Failure::new(format!(
                    "the token {shown} is already {status}"
                )));
            }
            let names: Vec<String> = tokens.iter().map(|row| field(row, "name")).collect();
            let hint = match nearest(text, names.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "see `oubliette token list`".to_owned(),
            };
            Err(Failure::new(format!("there is no token {shown}; {hint}")))
        }
        several => {
            let lines = several.iter().map(|row| {
                format!(
                    "\n  {}  {}, {}, created {}",
                    field(row, "token_id"),
                    field(row, "scope"),
                    field(row, "status"),
                    field(row, "created_at")
                )
            });
            Err(Failure::new(format!(
                "{} tokens are called {}; use one of their ids instead:{}",
                several.len(),
                quoted(text),
                lines.collect::<String>()
            )))
        }
    }
}

/// Warns of a token that has the name of a new one: a name shared by two identifies neither.
pub(super) async fn warn_of_shared_name(given: &Map<String, Value>, client: &Client) {
    let Some(name) = given.get("name").and_then(Value::as_str) else {
        return;
    };
    let tokens = all_rows("token", client).await.unwrap_or_default();
    let is_shared = tokens
        .iter()
        .any(|token| token.get("name") == Some(&name.into()) && token["status"] == "active");
    if is_shared {
        eprintln!(
            "warning: an active token is called {} already; `oubliette token revoke` needs their ids then",
            printable(&quoted(name))
        );
    }
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
        let in_scope = Scope::of(row).map(|scope| scope.project);
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
        if let Some(scope) = Scope::of(row)
            && let Some(name) = projects.get(scope.project)
        {
            let scope = format!("project:{name}{}", scope.suffix);
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

/// The scope of a project token.
struct Scope<'a> {
    project: &'a str,
    suffix: &'static str,
}

impl<'a> Scope<'a> {
    fn of(token: &'a Map<String, Value>) -> Option<Self> {
        Self::split(token.get("scope")?.as_str()?)
    }

    fn split(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix("project:")?;
        let (project, suffix) = match rest.strip_suffix(":ro") {
            Some(project) => (project, ":ro"),
            None => (rest, ""),
        };
        Some(Self { project, suffix })
    }
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
    for row in all_rows(noun, client).await? {
        let field = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
        if field("name") == text {
            found.push(field(&format!("{noun}_id")).to_owned());
        }
        names.push(field("name").to_owned());
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
