//! What a transport gives to a call: progress, cancellation, whether it may end before the turn that it waits
//! for, and the audit entry it will leave.

use std::fmt;
use std::sync::Arc;

use oubliette_model::ProjectId;
use oubliette_store::{AuditEntry, RunBinding};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::TurnId;

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
    may_detach: bool,
    detached_turn: Arc<Mutex<Option<TurnId>>>,
    turn: Option<TurnId>,
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

    /// Lets the call end before the turn that it waits for. [`Call::detached_turn`] says whether it did.
    #[must_use]
    pub fn with_detaching(mut self) -> Self {
        self.may_detach = true;
        self
    }

    pub(crate) fn may_detach(&self) -> bool {
        self.may_detach
    }

    /// The turn that the call no longer waits for, if it has ended before it.
    pub fn detached_turn(&self) -> Option<TurnId> {
        *self.detached_turn.lock()
    }

    pub(crate) fn set_detached_turn(&self, turn: TurnId) {
        *self.detached_turn.lock() = Some(turn);
    }

    /// Limits what the call does to a session to one turn of it.
    #[must_use]
    pub(crate) fn for_turn(mut self, turn: TurnId) -> Self {
        self.turn = Some(turn);
        self
    }

    pub(crate) fn turn(&self) -> Option<TurnId> {
        self.turn
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
