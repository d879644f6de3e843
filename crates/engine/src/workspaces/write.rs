//! `workspace_write`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_checkpoints::path_to_text;
use oubliette_model::{Access, Mode, ProjectId, WorkspaceId, quoted};
use oubliette_wire::{FileAction, FileChange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path;
use super::read::{Encoding, MAX_CONTENT_BYTES};
use crate::containers::DiskUse;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project id from `project_list`.
    project_id: ProjectId,
    /// The workspace; the default one if omitted.
    workspace_id: Option<WorkspaceId>,
    /// The file, relative to the workspace. Missing directories are created.
    path: String,
    /// The whole content of the file, up to 4 MiB.
    content: String,
    /// How `content` is encoded: `text` (default) or `base64`.
    encoding: Option<Encoding>,
    /// The permission bits, octal, for example `0755`; default: those of the file, or `0644`.
    mode: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    path: String,
    size: u64,
}

#[derive(Debug)]
pub(crate) struct Write;

impl Operation for Write {
    const NAME: &'static str = "workspace_write";
    const ABOUT: &'static str = "Write a file of a workspace, or replace it: up to 4 MiB, as text or base64. A link with the \
         name is replaced; a directory in the path that is a link is an error. The container is started if \
         it does not run.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
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
        let file = path::parse(&params.path, &workspace_id)?;
        let mut names = file.split(|byte| *byte == b'/');
        if file.is_empty() || names.any(|name| name == b"..") {
            return Err(EngineError::invalid(format!(
                "`path`: {} is not the path of a file in the workspace",
                quoted(&params.path)
            )));
        }
        let content = match params.encoding.unwrap_or(Encoding::Text) {
            Encoding::Text => params.content.into_bytes(),
            Encoding::Base64 => STANDARD
                .decode(params.content.trim_end())
                .map_err(|error| {
                    EngineError::invalid(format!("`content` is not base64: {error}"))
                })?,
        };
        let size = content.len() as u64;
        if size > MAX_CONTENT_BYTES {
            return Err(EngineError::invalid(format!(
                "`content` has {size} bytes; it must have at most {MAX_CONTENT_BYTES}"
            )));
        }
        let mode = params.mode.as_deref().map(parse_mode).transpose()?;
        let project = engine.project(project_id).await?;
        let workspaces = engine.workspaces();
        workspaces
            .open_existing(project_id, &workspace_id, &call)
            .await?;
        engine
            .containers()
            .require_disk_space(&project, DiskUse::Message)
            .await?;
        let path = path_to_text(&file);
        let mut change = Some(FileChange {
            path: file,
            action: FileAction::Write { content, mode },
        });
        let failed = workspaces
            .apply(&project, &workspace_id, || Ok(change.take()))
            .await?;
        if let Some((_, reason)) = failed.first() {
            return Err(EngineError::Failed(format!(
                "{} was not written: {reason}",
                quoted(&params.path)
            )));
        }
        Ok(Output {
            project_id,
            workspace_id,
            path,
            size,
        })
    }
}

fn parse_mode(text: &str) -> Result<u16> {
    let mode = u16::from_str_radix(text, 8).ok();
    mode.filter(|mode| *mode <= 0o777).ok_or_else(|| {
        EngineError::invalid(format!(
            "`mode`: {} is not a mode; give up to four octal digits, for example `0755`",
            quoted(text)
        ))
    })
}
