//! `workspace_read`.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_model::{Access, Mode, ProjectId, ResourceUri, WorkspaceId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path;
use super::tickets::{Ticket, TicketUse, TicketView};
use crate::files::ReadLimits;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

/// How much of a file one call returns or writes.
pub(super) const MAX_CONTENT_BYTES: u64 = 4 << 20;
/// A whole file is read at once.
pub(super) const READ_LIMITS: ReadLimits = ReadLimits {
    max_entries: 0,
    max_lookups: 10_000,
    max_time: Duration::from_secs(20),
    max_total_bytes: MAX_CONTENT_BYTES,
    max_file_bytes: MAX_CONTENT_BYTES,
};

/// How the bytes of a file are in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum Encoding {
    Text,
    Base64,
}

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
    /// A name that is not UTF-8, or begins with a quote, is written as git does: "caf\351".
    path: String,
    /// First byte (0).
    offset: Option<u64>,
    /// Bytes (4194304 at most).
    length: Option<u64>,
    /// Of `content`.
    ///
    /// By default `text` if the bytes are UTF-8 without NUL, and `base64` otherwise.
    encoding: Option<Encoding>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    path: String,
    /// The size of the whole file.
    size: u64,
    content: String,
    encoding: Encoding,
    /// Whether the file goes on after these bytes.
    truncated: bool,
    /// If the file is larger than one call can return and no `length` was given: the whole file, by one
    /// `GET` request.
    #[serde(skip_serializing_if = "Option::is_none")]
    download: Option<TicketView>,
    /// The resource with the bytes that follow, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    rest_uri: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Read;

impl Operation for Read {
    const NAME: &'static str = "workspace_read";
    const ABOUT: &'static str = "Read a file; over 4 MiB, get a URL.\n\n\
         As text or base64. All of a larger file can be downloaded once from the URL. Links are followed \
         only inside the workspace.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
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
        let offset = params.offset.unwrap_or(0);
        let length = params.length.unwrap_or(MAX_CONTENT_BYTES);
        if length > MAX_CONTENT_BYTES || offset > i64::MAX as u64 {
            return Err(EngineError::invalid(format!(
                "`length` is {length}; it must be at most {MAX_CONTENT_BYTES}: read larger files in parts, \
                 with `offset`"
            )));
        }
        engine
            .workspaces()
            .open_existing(project_id, &workspace_id, &call)
            .await?;
        let ticket_path = file.clone();
        let range = engine
            .files()
            .read_workspace(project_id, &workspace_id, READ_LIMITS, move |tree| {
                tree.read_range(&file, offset, length)
            })
            .await?
            .map_err(|error| path::unreadable(&params.path, error))?;
        let end = offset.saturating_add(range.bytes.len() as u64);
        let truncated = end < range.size;
        let download = (truncated && params.length.is_none()).then(|| {
            let ticket = Ticket {
                actor: actor.clone(),
                project_id,
                workspace_id: workspace_id.clone(),
                path: ticket_path,
                permits: TicketUse::Download,
            };
            engine.parts.tickets.issue(ticket, engine.now())
        });
        let rest_uri = truncated.then(|| ResourceUri::WorkspaceFile {
            project: project_id,
            workspace: workspace_id.clone(),
            path: params.path.clone(),
            offset: end,
        });
        let (content, encoding) = encode(range.bytes, params.encoding, &params.path, truncated)?;
        Ok(Output {
            project_id,
            workspace_id,
            path: params.path,
            size: range.size,
            content,
            encoding,
            truncated,
            download: download.transpose()?,
            rest_uri: rest_uri.map(|uri| uri.to_string()),
        })
    }
}

fn encode(
    bytes: Vec<u8>,
    wanted: Option<Encoding>,
    path: &str,
    truncated: bool,
) -> Result<(String, Encoding)> {
    if wanted == Some(Encoding::Base64) {
        return Ok((STANDARD.encode(bytes), Encoding::Base64));
    }
    // NUL is valid in UTF-8, but many clients take it for the end of a text.
    if wanted.is_none() && memchr::memchr(0, &bytes).is_some() {
        return Ok((STANDARD.encode(bytes), Encoding::Base64));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok((text, Encoding::Text)),
        Err(error) if wanted.is_none() => Ok((STANDARD.encode(error.as_bytes()), Encoding::Base64)),
        Err(_) => {
            let cut = if truncated {
                ", or a character is cut at the start or end of the part"
            } else {
                ""
            };
            Err(EngineError::invalid(format!(
                "`{path}` is not UTF-8 text{cut}; read it with `encoding: base64`"
            )))
        }
    }
}
