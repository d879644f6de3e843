//! `workspace_files`.

use std::time::Duration;

use jiff::Timestamp;
use oubliette_model::FileKind;
use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use oubliette_model::{path_from_text, path_to_text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path;
use crate::files::{ListRequest, ListedEntry, ReadLimits};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result, paging};

const LIST: &str = "files";
/// A directory of any size can be listed page by page, as long as it can be read in this time.
const LIMITS: ReadLimits = ReadLimits {
    max_entries: usize::MAX,
    max_lookups: 1_000_000,
    max_time: Duration::from_secs(20),
    max_total_bytes: 0,
    max_file_bytes: 0,
};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Workspace id.
    ///
    /// Default: `default`.
    workspace_id: Option<WorkspaceId>,
    /// Relative path.
    ///
    /// The workspace itself if omitted. A name that is not UTF-8, or begins with a quote, is written as git
    /// does: "caf\351".
    path: Option<String>,
    /// Include directories below.
    ///
    /// Except those of `.git`.
    recursive: Option<bool>,
    /// 1-1000 (100).
    limit: Option<u32>,
    /// Last `next_cursor`.
    ///
    /// For the next page.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    files: Vec<ListedFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ListedFile {
    /// Relative to the workspace.
    path: String,
    /// `file`, `directory`, `link` or `other`.
    kind: &'static str,
    size: u64,
    /// The permission bits, octal: `0644`.
    mode: String,
    modified_at: String,
    /// What a link leads to.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Files;

impl Operation for Files {
    const NAME: &'static str = "workspace_files";
    const ABOUT: &'static str = "List files.\n\n\
         One directory, or with `recursive` everything below it. Links are followed only inside the \
         workspace.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let (project_id, workspace_id) = (
            params.project_id,
            params.workspace_id.clone().unwrap_or_default(),
        );
        let given = params.path.as_deref().unwrap_or_default();
        let directory = path::parse(given, &workspace_id)?;
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?;
        let after = after.map(path_from_text).map(|after| {
            after.ok_or_else(|| EngineError::invalid("`cursor` is not the `next_cursor` of a page"))
        });
        let limit = paging::check_limit(params.limit)?;
        let request = ListRequest {
            path: directory.clone(),
            recursive: params.recursive.unwrap_or(false),
            after: after.transpose()?,
            limit: usize::try_from(limit).unwrap_or(1),
        };
        engine
            .workspaces()
            .open_existing(project_id, &workspace_id, &call)
            .await?;
        let page = engine
            .files()
            .read_workspace(project_id, &workspace_id, LIMITS, move |tree| {
                tree.list_page(&request)
            })
            .await?
            .map_err(|error| path::unreadable(given, error))?;
        let last = page.entries.last().filter(|_| page.has_more);
        let next_cursor = last.map(|last| format!("{LIST}:{}", path_to_text(&last.path)));
        let listed = |entry: ListedEntry| listed_file(&directory, entry);
        Ok(Output {
            project_id,
            workspace_id,
            next_cursor,
            files: page.entries.into_iter().map(listed).collect(),
        })
    }
}

fn listed_file(directory: &[u8], entry: ListedEntry) -> ListedFile {
    let names = [directory, &entry.path];
    let names: Vec<&[u8]> = names.into_iter().filter(|part| !part.is_empty()).collect();
    let modified = Timestamp::new(
        entry.stat.st_mtime,
        i32::try_from(entry.stat.st_mtime_nsec).unwrap_or(0),
    );
    let target = entry.link_target.as_deref().map(path_to_text);
    ListedFile {
        path: path_to_text(&names.join(&b'/')),
        kind: match entry.kind {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Link => "link",
            FileKind::Other => "other",
        },
        size: u64::try_from(entry.stat.st_size).unwrap_or(0),
        mode: format!("{:04o}", entry.stat.st_mode & 0o7777),
        modified_at: modified.unwrap_or_default().to_string(),
        target,
    }
}
