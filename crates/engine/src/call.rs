//! What a transport gives to a call: progress, cancellation, and the audit entry it will leave.

use std::fmt;
use std::sync::Arc;

use oubliette_model::ProjectId;
use oubliette_store::{AuditEntry, RunBinding};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// How far long work has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub done: f64,
    pub total: Option<f64>,
    pub message: String,
}

type ProgressListener = Arc<dyn Fn(Progress) + Send + Sync>;

/// One call of one operation.
#[derive(Clone, Default)]
pub struct Call {
    progress: Option<ProgressListener>,
    cancelled: CancellationToken,
    audit: Arc<Mutex<Option<AuditEntry>>>,
    schedule_run: Option<RunBinding>,
}

impl Call {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the function that receives progress. It must not block.
    #[must_use]
    pub fn with_progress(mut self, listener: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(listener));
        self
    }

    #[must_use]
    pub fn with_cancellation(mut self, cancelled: CancellationToken) -> Self {
        self.cancelled = cancelled;
        self
    }

    /// Makes the call part of a run of a schedule: the session or message that it creates is stored
    /// with the run.
    #[must_use]
    pub(crate) fn for_schedule_run(mut self, run: RunBinding) -> Self {
        self.schedule_run = Some(run);
        self
    }

    pub(crate) fn schedule_run(&self) -> Option<&RunBinding> {
        self.schedule_run.as_ref()
    }

    pub fn progress(&self, progress: Progress) {
        if let Some(listener) = &self.progress {
            listener(progress);
        }
    }

    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// Takes the audit entry of a successful call, for the transaction with the call's effect. An
    /// entry that the operation does not take is written after the call.
    pub(crate) fn take_audit_entry(&self) -> Option<AuditEntry> {
        self.audit.lock().take()
    }

    /// Takes the audit entry of a call that created the project it is about.
    pub(crate) fn take_audit_entry_for(&self, project: ProjectId) -> Option<AuditEntry> {
        self.take_audit_entry().map(|entry| AuditEntry {
            project_id: Some(project),
            ..entry
        })
    }

    /// Whether no operation has taken the audit entry.
    pub(crate) fn has_audit_entry(&self) -> bool {
        self.audit.lock().is_some()
    }

    pub(crate) fn set_audit_entry(&self, entry: AuditEntry) {
        *self.audit.lock() = Some(entry);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}
