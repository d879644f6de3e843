//! The audit log: which token called which operation, and the outcome.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, TokenId};
use serde::{Deserialize, Serialize};

use crate::{Page, Result};

/// The outcome of an audited call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditOutcome {
    Ok,
    /// The operation failed: not found, already exists, invalid parameters.
    Error,
    /// The token's scope does not allow the call.
    Refused,
    /// The request had no valid key.
    Unauthenticated,
    /// An internal error of the server.
    Fault,
}

impl AuditOutcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::Unauthenticated => "unauthenticated",
            Self::Fault => "fault",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [
            Self::Ok,
            Self::Error,
            Self::Refused,
            Self::Unauthenticated,
            Self::Fault,
        ]
        .into_iter()
        .find(|outcome| outcome.as_str() == text)
    }
}

/// One audited call. It must not contain keys, credentials or prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    pub at: Timestamp,
    pub token_id: Option<TokenId>,
    pub operation: String,
    pub project_id: Option<ProjectId>,
    pub outcome: AuditOutcome,
    pub address: Option<String>,
}

/// A stored entry with its id.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRecord {
    pub id: i64,
    pub entry: AuditEntry,
}

/// Filters for a list of entries; `None` matches every entry.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AuditFilter {
    pub token_id: Option<TokenId>,
    pub project_id: Option<ProjectId>,
    pub operation: Option<String>,
    pub outcome: Option<AuditOutcome>,
    pub since: Option<Timestamp>,
}

#[async_trait]
pub trait AuditStore {
    async fn append_audit(&self, entries: Vec<AuditEntry>) -> Result<()>;

    /// Lists entries, newest first. `after` is the cursor of the previous page.
    async fn audit_records(
        &self,
        filter: &AuditFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<AuditRecord>>;

    /// Deletes entries older than `before` and returns their number.
    async fn trim_audit(&self, before: Timestamp) -> Result<usize>;
}
