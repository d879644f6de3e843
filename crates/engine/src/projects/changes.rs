//! `project_changes`.

use std::collections::HashMap;

use jiff::Timestamp;
use oubliette_model::{Access, Mode, ProjectId, SessionId, Status, WorkspaceId};
use oubliette_store::{Page, SessionFilter, Visible};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::files::{Bounds, Tree};
use crate::openspec::{self, Change};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result, paging};

const LIST: &str = "changes";
/// Pages of sessions that are looked through for those that work on changes.
const MOST_PAGES: usize = 10;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
    /// The workspace whose files are read; the default one if absent.
    workspace_id: Option<WorkspaceId>,
    /// How many to return (1 to 1000; 100 if absent).
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The last changed first.
    changes: Vec<Line>,
    /// What is wrong with directories that are not changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Warning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Named and written as `openspec list --json` does.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
struct Line {
    /// The change's id.
    name: String,
    completed_tasks: usize,
    total_tasks: usize,
    last_modified: String,
    /// `no-tasks`, `in-progress` or `complete`.
    status: &'static str,
    /// The changes below it, if it is none itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    nested: Option<Vec<String>>,
    /// Sessions of the project that work on it: those with this `change_id` that have not ended.
    #[serde(rename = "active_sessions")]
    active_sessions: Vec<AtWork>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Warning {
    code: &'static str,
    name: String,
    nested: Vec<String>,
    message: String,
}

/// A session that works on a change.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct AtWork {
    session_id: SessionId,
    workspace_id: WorkspaceId,
    status: Status,
}

#[derive(Debug)]
pub(crate) struct Changes;

impl Operation for Changes {
    const NAME: &'static str = "project_changes";
    const ABOUT: &'static str = "List the OpenSpec changes of a project with their progress, the last changed first, and \
         the sessions that work on each. Empty if the project does not use OpenSpec.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Standalone;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let limit = paging::check_limit(params.limit)?;
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?;
        let after = after.map(position).transpose()?;
        let listed = engine
            .look_at_openspec(
                params.project_id,
                params.workspace_id,
                openspec::OF_ALL,
                openspec::list,
            )
            .await?;
        let changes = listed.transpose().map_err(EngineError::Failed)?;
        let rest: Vec<Change> = changes
            .unwrap_or_default()
            .into_iter()
            .filter(|change| after.as_ref().is_none_or(|after| place(change) > *after))
            .collect();
        let page = Page::cut(rest, limit, |change| {
            format!("{}:{}", change.modified, change.name)
        });
        let (changes, next_cursor) = paging::rows_and_cursor(page, LIST);
        let mut at_work = match changes.is_empty() {
            true => HashMap::new(),
            false => engine.at_work(params.project_id, None).await?,
        };
        let warnings = changes.iter().filter_map(Warning::of).collect();
        let line = |change: Change| Line {
            status: status(&change),
            last_modified: in_words(change.modified),
            active_sessions: at_work.remove(&change.name).unwrap_or_default(),
            completed_tasks: change.completed,
            total_tasks: change.total,
            nested: change.nested,
            name: change.name,
        };
        Ok(Output {
            changes: changes.into_iter().map(line).collect(),
            warnings,
            next_cursor,
        })
    }
}

impl Warning {
    fn of(change: &Change) -> Option<Self> {
        Some(Self {
            code: "nested_change_directory",
            message: change.warning()?,
            name: change.name.clone(),
            nested: change.nested.clone()?,
        })
    }
}

impl Engine {
    /// Reads something of a workspace's OpenSpec directory; none if the workspace has no files.
    pub(super) async fn look_at_openspec<T: Send + 'static>(
        &self,
        project: ProjectId,
        workspace: Option<WorkspaceId>,
        bounds: Bounds,
        look: impl FnOnce(&Tree) -> T + Send + 'static,
    ) -> Result<Option<T>> {
        if self.store().get(project).await?.is_none() {
            return Err(EngineError::project_not_found(project));
        }
        let id = workspace.unwrap_or_else(WorkspaceId::default_one);
        if self.store().workspace(project, &id).await?.is_none() {
            return Err(EngineError::NotFound {
                what: "workspace",
                id: id.to_string(),
                hint: "`workspace_list` shows those there are",
            });
        }
        if !self.files().has_workspace(project, &id) {
            return Ok(None);
        }
        let looked = self.files().look(project, &id, bounds, look);
        Ok(Some(looked.await?))
    }

    /// Sessions of a project that have not ended, by the change they work on: of one change or all.
    pub(super) async fn at_work(
        &self,
        project: ProjectId,
        change: Option<&str>,
    ) -> Result<HashMap<String, Vec<AtWork>>> {
        let filter = SessionFilter {
            active: Some(true),
            change_id: change.map(str::to_owned),
            ..SessionFilter::default()
        };
        let mut found: HashMap<String, Vec<AtWork>> = HashMap::new();
        let mut after: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let visible = Visible::Only(project);
            let page = self
                .store()
                .sessions(visible, &filter, after.as_deref(), paging::MAX_LIMIT)
                .await?;
            for session in page.rows {
                if let Some(change) = session.choices.change_id {
                    found.entry(change).or_default().push(AtWork {
                        session_id: session.id,
                        workspace_id: session.workspace_id,
                        status: session.status,
                    });
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(found)
    }
}

fn status(change: &Change) -> &'static str {
    match change.total {
        0 => "no-tasks",
        total if total == change.completed => "complete",
        _ => "in-progress",
    }
}

/// Where a change stands in the list.
fn place(change: &Change) -> (i64, String) {
    (-change.modified, change.name.clone())
}

/// The place that a cursor tells.
fn position(cursor: &str) -> Result<(i64, String)> {
    let parts = cursor.split_once(':');
    let place = parts.and_then(|(modified, name)| {
        let modified: i64 = modified.parse().ok()?;
        Some((modified.checked_neg()?, name.to_owned()))
    });
    place.ok_or_else(|| {
        EngineError::invalid("`cursor` is damaged; use `next_cursor` of the page before")
    })
}

/// A time as JavaScript writes it.
fn in_words(milliseconds: i64) -> String {
    let time = Timestamp::from_millisecond(milliseconds);
    let time = time.unwrap_or(match milliseconds > 0 {
        true => Timestamp::MAX,
        false => Timestamp::MIN,
    });
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_to_what_comes_after_a_change() {
        let change = |name: &str, modified| Change {
            name: name.to_owned(),
            completed: 0,
            total: 0,
            modified,
            nested: None,
        };
        let last = change("a:b c", 5);
        let after = position("5:a:b c").unwrap();
        assert_eq!(after, place(&last));
        assert!(place(&change("a:b d", 5)) > after && place(&change("a", 4)) > after);
        assert!(place(&change("z", 6)) < after);
        assert!(position("x").is_err() && position("x:y").is_err());
    }

    #[test]
    fn times_are_written_to_the_millisecond() {
        assert_eq!(in_words(1_700_000_000_007), "2023-11-14T22:13:20.007Z");
        assert_eq!(in_words(-1), "1969-12-31T23:59:59.999Z");
        assert!(!in_words(i64::MAX).is_empty());
    }
}
