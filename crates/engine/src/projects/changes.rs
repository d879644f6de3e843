//! `project_changes`.

use std::collections::HashMap;

use jiff::Timestamp;
use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use oubliette_openspec::{Change, list_changes};
use oubliette_store::Page;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::openspec::{ALL_CHANGES_LIMITS, ActiveSession};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result, paging};

const LIST: &str = "changes";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Workspace id.
    ///
    /// Default: `default`.
    workspace_id: Option<WorkspaceId>,
    /// 1-1000 (100).
    limit: Option<u32>,
    /// Last `next_cursor`.
    ///
    /// For the next page.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The last modified first.
    changes: Vec<ListedChange>,
    /// Directories that are not changes, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Warning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A change with the field names of `openspec list --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
struct ListedChange {
    /// The change's id.
    name: String,
    completed_tasks: usize,
    total_tasks: usize,
    last_modified: String,
    /// `no-tasks`, `in-progress` or `complete`.
    status: &'static str,
    /// The changes below the directory, if it is not a change itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    nested: Option<Vec<String>>,
    /// Sessions of the project with this `change_id` that have not ended.
    #[serde(rename = "active_sessions")]
    active_sessions: Vec<ActiveSession>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Warning {
    code: &'static str,
    name: String,
    nested: Vec<String>,
    message: String,
}

#[derive(Debug)]
pub(crate) struct Changes;

impl Operation for Changes {
    const NAME: &'static str = "project_changes";
    const ABOUT: &'static str = "List the OpenSpec changes of a project with progress and sessions.\n\n\
         The last modified first. Empty if the project does not use OpenSpec.";
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
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?
            .map(parse_cursor)
            .transpose()?;
        let changes = engine
            .projects()
            .read_openspec(
                params.project_id,
                params.workspace_id,
                ALL_CHANGES_LIMITS,
                |tree| list_changes(tree),
            )
            .await?
            .transpose()
            .map_err(EngineError::Failed)?
            .unwrap_or_default();
        let rest: Vec<Change> = changes
            .into_iter()
            .filter(|change| after.as_ref().is_none_or(|after| sort_key(change) > *after))
            .collect();
        let page = Page::from_rows(rest, limit, |change| {
            format!("{}:{}", change.modified_ms, change.name)
        });
        let (changes, next_cursor) = paging::rows_and_cursor(page, LIST);
        let mut sessions = if changes.is_empty() {
            HashMap::new()
        } else {
            engine
                .projects()
                .active_sessions(params.project_id, None)
                .await?
        };
        let warnings = changes.iter().filter_map(Warning::from_change).collect();
        let listed_change = |change: Change| ListedChange {
            status: status(&change),
            last_modified: format_time(change.modified_ms),
            active_sessions: sessions.remove(&change.name).unwrap_or_default(),
            completed_tasks: change.completed_tasks,
            total_tasks: change.total_tasks,
            nested: change.nested,
            name: change.name,
        };
        Ok(Output {
            changes: changes.into_iter().map(listed_change).collect(),
            warnings,
            next_cursor,
        })
    }
}

impl Warning {
    fn from_change(change: &Change) -> Option<Self> {
        Some(Self {
            code: "nested_change_directory",
            message: change.warning()?,
            name: change.name.clone(),
            nested: change.nested.clone()?,
        })
    }
}

fn status(change: &Change) -> &'static str {
    match change.total_tasks {
        0 => "no-tasks",
        total if total == change.completed_tasks => "complete",
        _ => "in-progress",
    }
}

/// The order of the list: the last modified first, then by name.
fn sort_key(change: &Change) -> (i64, String) {
    (-change.modified_ms, change.name.clone())
}

/// The sort key of the last change of the previous page.
fn parse_cursor(cursor: &str) -> Result<(i64, String)> {
    let key = cursor.split_once(':').and_then(|(modified, name)| {
        let modified_ms: i64 = modified.parse().ok()?;
        Some((modified_ms.checked_neg()?, name.to_owned()))
    });
    key.ok_or_else(|| {
        EngineError::invalid("`cursor` is invalid; use `next_cursor` of the previous page")
    })
}

/// Formats a time as JavaScript does.
fn format_time(milliseconds: i64) -> String {
    let nearest = if milliseconds > 0 {
        Timestamp::MAX
    } else {
        Timestamp::MIN
    };
    Timestamp::from_millisecond(milliseconds)
        .unwrap_or(nearest)
        .strftime("%Y-%m-%dT%H:%M:%S.%3fZ")
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_continues_after_the_last_change_of_the_previous_one() {
        let change = |name: &str, modified_ms| Change {
            name: name.to_owned(),
            completed_tasks: 0,
            total_tasks: 0,
            modified_ms,
            nested: None,
        };
        let last = change("a:b c", 5);
        let after = parse_cursor("5:a:b c").unwrap();
        assert_eq!(after, sort_key(&last));
        assert!(sort_key(&change("a:b d", 5)) > after && sort_key(&change("a", 4)) > after);
        assert!(sort_key(&change("z", 6)) < after);
        assert!(parse_cursor("x").is_err() && parse_cursor("x:y").is_err());
    }

    #[test]
    fn times_are_formatted_with_milliseconds() {
        assert_eq!(format_time(1_700_000_000_007), "2023-11-14T22:13:20.007Z");
        assert_eq!(format_time(-1), "1969-12-31T23:59:59.999Z");
        assert!(!format_time(i64::MAX).is_empty());
    }
}
