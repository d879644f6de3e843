//! What a face offers to a call: progress, cancellation, and the audit entry it will leave.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use oubliette_model::ProjectId;
use oubliette_store::{AuditEntry, RunMark};
use tokio_util::sync::CancellationToken;

/// How far long work has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub done: f64,
    pub total: Option<f64>,
    pub message: String,
}

type Listener = Arc<dyn Fn(Progress) + Send + Sync>;

/// One call of one operation.
#[derive(Clone, Default)]
pub struct Call {
    progress: Option<Listener>,
    cancelled: CancellationToken,
    audit: Arc<Mutex<Option<AuditEntry>>>,
    run: Option<RunMark>,
}

impl Call {
    pub fn new() -> Self {
        Self::default()
    }

    /// `listener` hears of progress. It must not block.
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

    /// The call is made for a run of a schedule: what it makes is noted with the run.
    #[must_use]
    pub(crate) fn for_run(mut self, run: RunMark) -> Self {
        self.run = Some(run);
        self
    }

    pub(crate) fn run(&self) -> Option<&RunMark> {
        self.run.as_ref()
    }

    pub fn progress(&self, progress: Progress) {
        if let Some(listener) = &self.progress {
            listener(progress);
        }
    }

    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// The entry that says this call succeeded, for the transaction that makes it so. There is one:
    /// what an operation does not take is written after it.
    pub(crate) fn audit(&self) -> Option<AuditEntry> {
        self.audit
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// The same for a call that made the project it is about.
    pub(crate) fn audit_of(&self, project: ProjectId) -> Option<AuditEntry> {
        self.audit().map(|entry| AuditEntry {
            project_id: Some(project),
            ..entry
        })
    }

    pub(crate) fn set_audit(&self, entry: AuditEntry) {
        *self.audit.lock().unwrap_or_else(PoisonError::into_inner) = Some(entry);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}
