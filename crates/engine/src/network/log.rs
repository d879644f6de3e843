//! `network_log`.

use jiff::Timestamp;
use oubliette_gate::{JournalEntry, JournalEvent, Way, read_journal};
use oubliette_model::{Access, Mode, ProjectId, SessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::containers::ContainerScope;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result, paging};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Session id: only its container, since its start.
    #[schemars(extend("x-unlisted" = true))]
    session_id: Option<SessionId>,
    /// 1-1000 (100).
    #[schemars(extend("x-unlisted" = true))]
    limit: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    /// Newest first.
    entries: Vec<EntryView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct EntryView {
    at: String,
    /// `opened`, `closed`, `denied`, `failed`, or `lost` for entries that were not written.
    event: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// The rule that decided, or why the connection failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    rule: String,
    /// `name` for programs that know no proxy, `proxy`, or `gateway` for requests to models and of git.
    #[serde(skip_serializing_if = "Option::is_none")]
    way: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    received_bytes: Option<u64>,
    /// The same in the entries of one connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<u64>,
    /// How many entries this one stands for, or how many were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

impl From<JournalEntry> for EntryView {
    fn from(entry: JournalEntry) -> Self {
        Self {
            at: entry.at.to_string(),
            event: match entry.event {
                JournalEvent::Opened => "opened",
                JournalEvent::Closed => "closed",
                JournalEvent::Denied => "denied",
                JournalEvent::Failed => "failed",
                JournalEvent::Lost => "lost",
            },
            host: entry.host,
            port: entry.port,
            rule: entry.rule,
            way: entry.way.map(|way| match way {
                Way::Name => "name",
                Way::Proxy => "proxy",
                Way::Gateway => "gateway",
            }),
            address: entry.address.map(|address| address.to_string()),
            sent_bytes: entry.sent_bytes,
            received_bytes: entry.received_bytes,
            connection: entry.connection,
            count: entry.count,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Log;

impl Operation for Log {
    const NAME: &'static str = "network_log";
    const ABOUT: &'static str = "What was reached and denied.\n\n\
         The newest first. Only of containers with the network `policy`. The newest entries are kept, 2 to 4 MB for each project.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: Some(params.project_id),
            session: params.session_id,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let project = engine.project(params.project_id).await?;
        let limit = paging::check_limit(params.limit)? as usize;
        let mut only: Option<(String, Timestamp)> = None;
        if let Some(id) = params.session_id {
            let session = engine.store().session(id).await?;
            let session = session.ok_or_else(|| EngineError::session_not_found(id))?;
            let scope = ContainerScope::of_workspace(&project, &session.workspace_id);
            only = Some((scope.container_id().to_string(), session.created_at));
        }
        let directory = engine.network().journal_dir();
        let is_wanted = move |entry: &JournalEntry| {
            only.as_ref().is_none_or(|(container, since)| {
                entry.at >= *since && (entry.container == *container || entry.container.is_empty())
            })
        };
        let name = project.id.to_string();
        let reading = move || read_journal(&directory, &name, limit, is_wanted);
        let found = tokio::task::spawn_blocking(reading)
            .await
            .map_err(EngineError::fault)??;
        Ok(Output {
            project_id: project.id,
            entries: found.into_iter().rev().map(EntryView::from).collect(),
        })
    }
}
