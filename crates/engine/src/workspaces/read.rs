//! `workspace_read`.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path;
use crate::files::ReadLimits;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

/// How much of a file one call returns or writes.
pub(super) const MAX_CONTENT_BYTES: u64 = 4 << 20;
/// A whole file is read at once.
const LIMITS: ReadLimits = ReadLimits {
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
    /// The project id from `project_list`.
    project_id: ProjectId,
    /// The workspace; the default one if omitted.
    workspace_id: Option<WorkspaceId>,
    /// The file, relative to the workspace. A name that is not UTF-8, or begins with a quote, is written
    /// as git does: "caf\351".
    path: String,
    /// The first byte to read (default 0).
    offset: Option<u64>,
    /// How many bytes to read (default and at most 4194304).
    length: Option<u64>,
    /// `text` or `base64`; by default `text` if the bytes are UTF-8, and `base64` otherwise.
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
}

#[derive(Debug)]
pub(crate) struct Read;

impl Operation for Read {
    const NAME: &'static str = "workspace_read";
    const ABOUT: &'static str = "Read a file of a workspace, or a part of it: up to 4 MiB, as text or base64. Links are \
         followed only inside the workspace.";
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
        let range = engine
            .files()
            .read_workspace(project_id, &workspace_id, LIMITS, move |tree| {
                tree.read_range(&file, offset, length)
            })
            .await?
            .map_err(|error| path::unreadable(&params.path, error))?;
        let truncated = offset.saturating_add(range.bytes.len() as u64) < range.size;
        let (content, encoding) = encode(range.bytes, params.encoding, &params.path, truncated)?;
        Ok(Output {
            project_id,
            workspace_id,
            path: params.path,
            size: range.size,
            content,
            encoding,
            truncated,
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
