//! Names for ids. Where a call takes the id of a project, session, schedule, token or workspace, it may
//! also give a unique name, or a unique beginning of the id. They are replaced by ids before the parameters are
//! parsed and before permission is decided, so that everything after has only ids.
//!
//! A name is looked for only among what the token can see: a foreign one is like one that does not exist.

use oubliette_model::{
    ProjectId, ScheduleId, Scope, SessionId, TokenId, WorkspaceId, nearest, quoted,
};
use oubliette_store::{Schedule, Session, Token};
use serde_json::{Map, Value};

use super::Entry;
use crate::{Actor, Engine, EngineError, NOT_FOUND, Result};

/// The shortest beginning of an id that stands for it.
const MIN_PREFIX_CHARS: usize = 4;
/// How many matches an error lists.
const MAX_LISTED: usize = 10;
const PAGE_ROWS: u32 = 1000;

/// Operations whose `workspace_id` is that of a new workspace.
const CREATING_WORKSPACES: [&str; 2] = ["workspace_create", "session_fork"];

/// Something that a text may stand for.
#[derive(Debug)]
struct Match {
    id: String,
    /// What an error shows beside the id.
    label: String,
}

impl Engine {
    pub(super) async fn resolve_names(
        &self,
        actor: &Actor,
        entry: &Entry,
        arguments: &mut Map<String, Value>,
    ) -> Result<()> {
        for (name, _) in entry.properties() {
            if name == "targets" {
                self.resolve_targets(actor, arguments).await?;
            }
            let Some(Value::String(text)) = arguments.get(name) else {
                continue;
            };
            let id = match name {
                "project_id" => self.find_project(actor, text).await?,
                "session_id" | "parent_id" => self.find_session(actor, text).await?,
                "schedule_id" => self.find_schedule(actor, text).await?,
                "token_id" => self.find_token(entry, text).await?,
                "scope" | "agent_scope" => self.find_scope(actor, text).await?,
                _ => continue,
            };
            if let Some(id) = id {
                arguments.insert(name.to_owned(), Value::from(id));
            }
        }
        self.resolve_workspaces(actor, entry, arguments).await
    }

    async fn resolve_targets(
        &self,
        actor: &Actor,
        arguments: &mut Map<String, Value>,
    ) -> Result<()> {
        let targets = arguments.get_mut("targets").and_then(Value::as_array_mut);
        for target in targets.into_iter().flatten() {
            let Some(text) = target.get("project_id").and_then(Value::as_str) else {
                continue;
            };
            if let Some(id) = self.find_project(actor, text).await? {
                target["project_id"] = Value::from(id);
            }
            let project = target["project_id"].as_str().and_then(|id| id.parse().ok());
            let workspace = target.get("workspace_id").and_then(Value::as_str);
            let (Some(project), Some(text)) = (project, workspace) else {
                continue;
            };
            if let Some(id) = self.find_workspace(actor, project, text).await? {
                target["workspace_id"] = Value::from(id);
            }
        }
        Ok(())
    }

    /// Replaces the beginnings of ids of workspaces, which are names already.
    async fn resolve_workspaces(
        &self,
        actor: &Actor,
        entry: &Entry,
        arguments: &mut Map<String, Value>,
    ) -> Result<()> {
        let is_new = CREATING_WORKSPACES.contains(&entry.name)
            || arguments.get("create_workspace") == Some(&Value::Bool(true));
        for name in ["workspace_id", "from"] {
            if name == "workspace_id" && is_new {
                continue;
            }
            let Some(text) = arguments.get(name).and_then(Value::as_str) else {
                continue;
            };
            if entry.properties().all(|(known, _)| known != name) {
                continue;
            }
            let Some(project) = self.named_project(arguments).await? else {
                continue;
            };
            if let Some(id) = self.find_workspace(actor, project, text).await? {
                arguments.insert(name.to_owned(), Value::from(id));
            }
        }
        Ok(())
    }

    /// The project that the arguments name, or that of the session that they name.
    async fn named_project(&self, arguments: &Map<String, Value>) -> Result<Option<ProjectId>> {
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        if let Some(project) = text("project_id") {
            return Ok(project.parse().ok());
        }
        let Some(session) = text("session_id").and_then(|id| id.parse().ok()) else {
            return Ok(None);
        };
        let session = self.store().session(session).await?;
        Ok(session.map(|session| session.project_id))
    }

    /// The id of a project; none if the text is an id.
    async fn find_project(&self, actor: &Actor, text: &str) -> Result<Option<String>> {
        if text.parse::<ProjectId>().is_ok() {
            return Ok(None);
        }
        let store = self.store();
        let visible = actor.visible();
        let found = store
            .projects_matching(visible, text, uuid_prefix(text).as_deref(), PAGE_ROWS)
            .await?;
        let matches = found.into_iter().map(|project| Match {
            id: project.id.to_string(),
            label: project.name.to_string(),
        });
        match one_of("project", text, matches.collect())? {
            Some(id) => Ok(Some(id)),
            None => {
                let known = store.projects(visible, None, PAGE_ROWS).await?;
                let names = known.rows.iter().map(|project| project.name.as_str());
                match nearest(text, names) {
                    Some(near) => Err(not_found_but("project", text, near)),
                    None => Err(EngineError::project_not_found(text)),
                }
            }
        }
    }

    /// The id of a session; none if the text is an id, or cannot be the beginning of one.
    async fn find_session(&self, actor: &Actor, text: &str) -> Result<Option<String>> {
        let Some(prefix) = session_prefix(text) else {
            return Ok(None);
        };
        let project = actor.scope.project();
        let found = self
            .store()
            .sessions_with_prefix(project, &prefix, PAGE_ROWS)
            .await?;
        match one_of("session", text, found.iter().map(match_session).collect())? {
            Some(id) => Ok(Some(id)),
            None => Err(EngineError::session_not_found(text)),
        }
    }

    async fn find_schedule(&self, actor: &Actor, text: &str) -> Result<Option<String>> {
        if text.parse::<ScheduleId>().is_ok() {
            return Ok(None);
        }
        let (store, mut after) = (self.store(), None);
        let mut schedules: Vec<Schedule> = Vec::new();
        loop {
            let visible = actor.visible();
            let page = store
                .schedules(visible, after.as_deref(), PAGE_ROWS)
                .await?;
            schedules.extend(page.rows);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let prefix = uuid_prefix(text);
        let matches = schedules
            .iter()
            .filter(|schedule| {
                schedule.name == text || begins(&schedule.id.to_string(), prefix.as_deref())
            })
            .map(|schedule| Match {
                id: schedule.id.to_string(),
                label: schedule.name.clone(),
            });
        match one_of("schedule", text, matches.collect())? {
            Some(id) => Ok(Some(id)),
            None => {
                let names = schedules.iter().map(|schedule| schedule.name.as_str());
                match nearest(text, names) {
                    Some(near) => Err(not_found_but("schedule", text, near)),
                    None => Err(crate::schedules::not_found(text)),
                }
            }
        }
    }

    /// The id of a token. A name that is to be revoked is that of a valid token.
    async fn find_token(&self, entry: &Entry, text: &str) -> Result<Option<String>> {
        if text.parse::<TokenId>().is_ok() {
            return Ok(None);
        }
        let (store, mut after) = (self.store(), None);
        let mut tokens: Vec<Token> = Vec::new();
        loop {
            let page = store.tokens(after.as_deref(), PAGE_ROWS).await?;
            tokens.extend(page.rows);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let prefix = uuid_prefix(text);
        let mut named: Vec<&Token> = tokens
            .iter()
            .filter(|token| token.name == text || begins(&token.id.to_string(), prefix.as_deref()))
            .collect();
        let had_name = !named.is_empty();
        if entry.name == "token_revoke" {
            let now = self.now();
            named.retain(|token| token.is_valid(now));
        }
        let matches = named.iter().map(|token| Match {
            id: token.id.to_string(),
            label: format!("{}, {}", token.name, token.scope),
        });
        match one_of("token", text, matches.collect())? {
            Some(id) => Ok(Some(id)),
            None if had_name => Err(EngineError::invalid(format!(
                "the token {} has already been revoked or has expired",
                quoted(text)
            ))),
            None => {
                let names = tokens.iter().map(|token| token.name.as_str());
                match nearest(text, names) {
                    Some(near) => Err(not_found_but("token", text, near)),
                    None => Err(EngineError::token_not_found(text)),
                }
            }
        }
    }

    /// `project:NAME` and `project:NAME:ro` with the project's id; none for other scopes.
    async fn find_scope(&self, actor: &Actor, text: &str) -> Result<Option<String>> {
        let Some((project, mode)) = Scope::split_project(text) else {
            return Ok(None);
        };
        let found = self.find_project(actor, project).await?;
        Ok(found.map(|id| Scope::join_project(&id, mode)))
    }

    /// The id of a workspace that begins with a text; none if there is none, or one that has this id.
    async fn find_workspace(
        &self,
        actor: &Actor,
        project: ProjectId,
        text: &str,
    ) -> Result<Option<String>> {
        let Ok(id) = text.parse::<WorkspaceId>() else {
            return Ok(None);
        };
        let store = self.store();
        let is_prefix = text.len() >= MIN_PREFIX_CHARS && actor.sees(project);
        if !is_prefix || store.workspace(project, &id).await?.is_some() {
            return Ok(None);
        }
        let (mut after, mut matches) = (None, Vec::new());
        loop {
            let page = store
                .workspaces(project, after.as_deref(), PAGE_ROWS)
                .await?;
            let ids = page.rows.iter().map(|workspace| workspace.id.to_string());
            matches.extend(ids.filter(|id| id.starts_with(text)).map(|id| Match {
                id,
                label: String::new(),
            }));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        one_of("workspace", text, matches)
    }
}

/// The id of the only session among these whose id begins with a text; none if the text is an id.
pub(crate) fn pick_session<'a>(
    sessions: impl Iterator<Item = &'a Session>,
    text: &str,
) -> Result<Option<String>> {
    let Some(prefix) = session_prefix(text) else {
        return Ok(None);
    };
    let matching = sessions.filter(|session| begins(&session.id.to_string(), Some(&prefix)));
    one_of("session", text, matching.map(match_session).collect())
}

fn match_session(session: &Session) -> Match {
    Match {
        id: session.id.to_string(),
        label: format!("{}, {}", session.agent, session.status.as_str()),
    }
}

/// The only match, or none. An error that lists them if there are several.
fn one_of(what: &str, text: &str, matches: Vec<Match>) -> Result<Option<String>> {
    let mut matches = matches;
    if matches.len() < 2 {
        return Ok(matches.pop().map(|only| only.id));
    }
    let listed: Vec<String> = matches
        .iter()
        .take(MAX_LISTED)
        .map(|found| match found.label.as_str() {
            "" => format!("`{}`", found.id),
            label => format!("`{}` ({label})", found.id),
        })
        .collect();
    let more = match matches.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(EngineError::invalid(format!(
        "{} {what}s match {}: {}{more}; give the id of one",
        matches.len(),
        quoted(text),
        listed.join(", ")
    )))
}

fn not_found_but(what: &str, text: &str, near: &str) -> EngineError {
    EngineError::Failed(format!(
        "{what} {} {NOT_FOUND}; did you mean `{near}`?",
        quoted(text)
    ))
}

fn begins(id: &str, prefix: Option<&str>) -> bool {
    prefix.is_some_and(|prefix| id.starts_with(prefix))
}

/// The text as the beginning of a UUID, if it can be one.
fn uuid_prefix(text: &str) -> Option<String> {
    let is_part = |c: u8| c.is_ascii_hexdigit() || c == b'-';
    let fits = (MIN_PREFIX_CHARS..36).contains(&text.len()) && text.bytes().all(is_part);
    fits.then(|| text.to_ascii_lowercase())
}

/// The text as the beginning of a session's id, if it can be one: `gogol_ab12`, or `ab12`.
fn session_prefix(text: &str) -> Option<String> {
    if text.parse::<SessionId>().is_ok() {
        return None;
    }
    let digits = text.strip_prefix(SessionId::PREFIX).unwrap_or(text);
    let fits = (MIN_PREFIX_CHARS..=32).contains(&digits.len())
        && digits.bytes().all(|c| c.is_ascii_hexdigit());
    fits.then(|| format!("{}{}", SessionId::PREFIX, digits.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_of_ids_have_four_characters_or_more() {
        assert_eq!(session_prefix("ab12").as_deref(), Some("gogol_ab12"));
        assert_eq!(session_prefix("gogol_AB12").as_deref(), Some("gogol_ab12"));
        let whole = format!("gogol_{}", "a".repeat(32));
        for other in ["", "ab1", "gogol_ab1", "xyz1", "gogol_", &whole] {
            assert_eq!(session_prefix(other), None, "{other}");
        }
        assert_eq!(uuid_prefix("1b4E-").as_deref(), Some("1b4e-"));
        for other in ["1b4", "hello", "1b4e 8"] {
            assert_eq!(uuid_prefix(other), None, "{other}");
        }
    }

    #[test]
    fn several_matches_are_listed() {
        let matches = |n: usize| {
            let one = |n: usize| Match {
                id: format!("id{n}"),
                label: "a".to_owned(),
            };
            (0..n).map(one).collect::<Vec<_>>()
        };
        assert_eq!(one_of("project", "a", matches(0)).unwrap(), None);
        let only = one_of("project", "a", matches(1)).unwrap();
        assert_eq!(only.as_deref(), Some("id0"));
        let error = one_of("project", "a", matches(2)).unwrap_err().to_string();
        assert_eq!(
            error,
            "2 projects match `a`: `id0` (a), `id1` (a); give the id of one"
        );
        let error = one_of("project", "a", matches(12)).unwrap_err().to_string();
        assert!(error.contains(" and 2 more"), "{error}");
    }
}
