//! `audit_list`.

use jiff::Timestamp;
use oubliette_model::{Access, ProjectId, TokenId, quoted};
use oubliette_store::{AuditFilter, AuditOutcome, AuditRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result, paging};

const LIST: &str = "entries";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: Option<ProjectId>,
    /// Token name or id.
    token_id: Option<TokenId>,
    /// Operation, for example project_create.
    operation: Option<String>,
    /// `ok`, `error`, `refused`, `unauthenticated` or `fault`.
    outcome: Option<String>,
    /// RFC 3339 time.
    since: Option<String>,
    /// 1-1000 (100).
    limit: Option<u32>,
    /// Last `next_cursor`.
    ///
    /// For the next page.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// Newest first.
    entries: Vec<AuditEntryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct AuditEntryView {
    at: String,
    operation: String,
    outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_id: Option<TokenId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project_id: Option<ProjectId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

impl From<AuditRecord> for AuditEntryView {
    fn from(record: AuditRecord) -> Self {
        let entry = record.entry;
        Self {
            at: entry.at.to_string(),
            operation: entry.operation,
            outcome: entry.outcome.as_str().to_owned(),
            token_id: entry.token_id,
            project_id: entry.project_id,
            address: entry.address,
        }
    }
}

#[derive(Debug)]
pub(crate) struct List;

impl Operation for List {
    const NAME: &'static str = "audit_list";
    const ABOUT: &'static str = "List calls, newest first: time, token, operation, project, outcome.\n\n\
         Contains every call: writes, reads (up to a second later) and refused ones; never keys, credentials or \
         prompts.";
    const ACCESS: Access = Access::Admin;
    const FACE: Face = Face::Standalone;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: params.project_id,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let outcome = params.outcome.as_deref().map(parse_outcome).transpose()?;
        let since = params.since.as_deref().map(parse_time).transpose()?;
        let filter = AuditFilter {
            token_id: params.token_id,
            project_id: params.project_id,
            operation: params.operation,
            outcome,
            since,
        };
        let limit = paging::check_limit(params.limit)?;
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?;
        let page = engine.store().audit_records(&filter, after, limit).await?;
        let (records, next_cursor) = paging::rows_and_cursor(page, LIST);
        Ok(Output {
            entries: records.into_iter().map(AuditEntryView::from).collect(),
            next_cursor,
        })
    }
}

fn parse_outcome(text: &str) -> Result<AuditOutcome> {
    AuditOutcome::parse(text).ok_or_else(|| {
        EngineError::invalid(format!(
            "{} is not an outcome; use ok, error, refused, unauthenticated or fault",
            quoted(text)
        ))
    })
}

fn parse_time(text: &str) -> Result<Timestamp> {
    text.parse().map_err(|_| {
        EngineError::invalid(format!(
            "{} is not a time; write it like 2026-11-01T09:00:00Z",
            quoted(text)
        ))
    })
}
