//! `workspace_write`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_model::path_to_text;
use oubliette_model::{Access, Mode, ProjectId, WorkspaceId, quoted};
use oubliette_wire::{FileAction, FileChange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path;
use super::read::{Encoding, MAX_CONTENT_BYTES};
use super::tickets::{Ticket, TicketUse, TicketView};
use crate::containers::DiskUse;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

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
    /// Missing directories are created.
    path: String,
    /// Whole content.
    ///
    /// Up to 4 MiB. If omitted, nothing is written yet: the result has a URL to which the content is sent.
    content: Option<String>,
    /// Of `content`.
    ///
    /// Default: `text`.
    encoding: Option<Encoding>,
    /// Octal permissions (`0644`).
    ///
    /// Default: those of the file, or `0644`.
    mode: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    path: String,
    /// How many bytes were written.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Without `content`: where to send it, with one `PUT` request that has a `Content-Length`. The file is
    /// written when all of it has arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload: Option<UploadView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct UploadView {
    #[serde(flatten)]
    ticket: TicketView,
    max_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Write;

impl Operation for Write {
    const NAME: &'static str = "workspace_write";
    const ABOUT: &'static str = "Write a file; without `content`, get a URL to upload to.\n\n\
         As text or base64. A larger file can be sent once to the URL. A link with the name is replaced; \
         a directory in the path that is a link is an error. The container is started if it does not run.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
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
        let mode = params.mode.as_deref().map(parse_mode).transpose()?;
        let Some(content) = params.content else {
            let ticket = Ticket {
                actor: actor.clone(),
                project_id,
                workspace_id,
                path: file,
                permits: TicketUse::Upload { mode },
            };
            return offer_upload(engine, ticket, &call).await;
        };
        let content = match params.encoding.unwrap_or(Encoding::Text) {
            Encoding::Text => content.into_bytes(),
            Encoding::Base64 => STANDARD.decode(content.trim_end()).map_err(|error| {
                EngineError::invalid(format!("`content` is not base64: {error}"))
            })?,
        };
        let size = content.len() as u64;
        if size > MAX_CONTENT_BYTES {
            return Err(EngineError::invalid(format!(
                "`content` has {size} bytes; it must have at most {MAX_CONTENT_BYTES}: omit it to get a URL for \
                 a larger file"
            )));
        }
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
            size: Some(size),
            upload: None,
        })
    }
}

/// A ticket with which the content can be sent.
async fn offer_upload(engine: &Engine, ticket: Ticket, call: &Call) -> Result<Output> {
    let (project_id, workspace_id) = (ticket.project_id, ticket.workspace_id.clone());
    let path = path_to_text(&ticket.path);
    engine
        .workspaces()
        .open_existing(project_id, &workspace_id, call)
        .await?;
    Ok(Output {
        project_id,
        workspace_id,
        path,
        size: None,
        upload: Some(UploadView {
            ticket: engine.parts.tickets.issue(ticket, engine.now())?,
            max_bytes: u64::from(engine.settings().limits.max_upload_mb) << 20,
        }),
    })
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
