//! Who asked for what, and what came of it.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, TokenId};
use serde::{Deserialize, Serialize};

use crate::{Page, Result};

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    /// The operation said no: not found, already exists, bad parameters.
    Error,
    /// Outside the token's scope.
    Refused,
    /// No valid key.
    Unauthenticated,
    /// A fault of ours.
    Fault,
}

impl Outcome {
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

/// One call. Never a key, a credential or a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    pub at: Timestamp,
    pub token_id: Option<TokenId>,
    pub operation: String,
    pub project_id: Option<ProjectId>,
    pub outcome: Outcome,
    pub address: Option<String>,
}

/// An entry and its place in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRecord {
    pub id: i64,
    pub entry: AuditEntry,
}

/// Which entries a list shows; absent means any.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AuditFilter {
    pub token_id: Option<TokenId>,
    pub project_id: Option<ProjectId>,
    pub operation: Option<String>,
    pub outcome: Option<Outcome>,
    pub since: Option<Timestamp>,
}

#[async_trait]
pub trait Audit {
    async fn append_audit(&self, entries: Vec<AuditEntry>) -> Result<()>;

    /// Entries, newest first, after the cursor of the page before.
    async fn audit(
        &self,
        filter: &AuditFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<AuditRecord>>;

    /// Forgets entries older than `before`; how many.
    async fn trim_audit(&self, before: Timestamp) -> Result<usize>;
}
