//! Steps: what an actor commits in one transaction.

use std::time::Duration;

use oubliette_model::{AwaitedRequest, Changed, Event, Status, StopReason, Transition, TurnKind};
use oubliette_store::{SessionMessage, SessionStep, StoreError, with_reserve};
use oubliette_wire::StreamKind;
use tokio::sync::OwnedRwLockReadGuard;
use tokio::time::Instant;

use super::event_builder::EventBuilder;
use super::{ActorError, SessionActor};
use crate::EngineError;

/// How long streamed text may wait to be committed.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);
/// Output that produces no event is committed, and acknowledged, after this many bytes.
const MAX_UNCOMMITTED_BYTES: u64 = 1 << 20;
const COMMIT_RETRY_DELAY: Duration = Duration::from_secs(1);
/// How many steps of a session that is to be stopped use the reserve of the store: its agent may go on writing.
const MAX_RESERVE_COMMITS: u32 = 8;

/// The step that is being prepared.
#[derive(Debug, Default)]
pub(super) struct StepBuilder {
    pub(super) events: EventBuilder,
    /// Everything else that the step changes.
    pub(super) changes: SessionStep,
    /// Lines of output since the last commit that are not messages.
    pub(super) invalid_lines: u32,
    /// What the turn changed that ends with the step.
    pub(super) changed: Option<Changed>,
    /// Keeps the objects of the step's checkpoint until the step is committed.
    pub(super) kept_objects: Option<OwnedRwLockReadGuard<()>>,
}

impl StepBuilder {
    pub(super) fn add_prompt(&mut self, message: &SessionMessage) {
        let names = message.attachments.iter().map(|file| file.name.clone());
        self.events.push(Event::Prompt {
            text: message.text.clone(),
            attachments: names.collect(),
        });
        self.changes.taken_message = Some(message.id);
        self.changes.turn_started = true;
        self.changes.error = Some(None);
    }

    pub(super) fn add_completion(
        &mut self,
        text: String,
        stop_reason: StopReason,
        error: Option<String>,
        kind: TurnKind,
    ) {
        // The session shows how its last turn failed.
        self.changes.error = Some(error.clone());
        self.events.push(Event::Completion {
            text,
            stop_reason,
            error,
            kind,
            changed: self.changed.take(),
        });
    }
}

impl SessionActor<'_> {
    /// Changes the status as a transition demands; ignored if the status does not permit it.
    pub(super) fn transition(&mut self, happening: Transition) {
        if let Some(status) = self.session.status.after(happening) {
            self.set_status(status, None, None);
        }
    }

    /// Ends the session and reports that to its parent.
    pub(super) fn transition_to_end(&mut self, happening: Transition, error: Option<String>) {
        let Some(status) = self.session.status.after(happening) else {
            return;
        };
        if let Some(message) = error.clone() {
            self.step.events.push(Event::Error { message });
        }
        self.set_status(status, None, error.clone());
        if !self.session.choices.network_allowed.is_empty() {
            self.session.choices.network_allowed.clear();
            self.step.changes.network_allowed = Some(Vec::new());
        }
        self.step.changes.error = Some(error.clone());
        self.step.changes.parent_events.push(Event::ChildEnded {
            child_id: self.session.id,
            status,
            error,
        });
    }

    pub(super) fn set_status(
        &mut self,
        status: Status,
        waiting_for: Option<AwaitedRequest>,
        error: Option<String>,
    ) {
        self.session.status = status;
        self.session.waiting.clone_from(&waiting_for);
        self.step.changes.status = Some(status);
        self.step.changes.waiting = Some(waiting_for.clone());
        self.step.events.push(Event::Status {
            status,
            waiting_for,
            error,
            kind: TurnKind::Prompt,
        });
    }

    /// Ends the text and the tool calls of the turn; returns everything that the agent wrote in it.
    pub(super) fn take_turn_text(&mut self) -> String {
        match &mut self.process.live {
            Some(live) => self.step.events.end_turn(live),
            None => String::new(),
        }
    }

    pub(super) async fn commit_if_due(&mut self) -> Result<(), ActorError> {
        let Some(live) = &self.process.live else {
            return Ok(());
        };
        let now = Instant::now();
        let events = &self.step.events;
        let uncommitted = self.process.read_offset.saturating_sub(live.stdout_offset);
        let flush_due = self.deadlines.flush_at.is_some_and(|at| at <= now);
        let text_due = events.has_unflushed_text() && (events.is_full() || flush_due);
        if uncommitted > MAX_UNCOMMITTED_BYTES
            || text_due
            || events.has_events()
            || !self.process.staged_input.is_empty()
        {
            return self.commit().await;
        }
        if events.has_unflushed_text() && self.deadlines.flush_at.is_none() {
            self.deadlines.flush_at = Some(now + FLUSH_INTERVAL);
        }
        Ok(())
    }

    /// Commits the step with all output that was handled, then sends the staged input and acknowledges
    /// the output. Retries while the store is full or busy: the supervisor still has the output.
    pub(super) async fn commit(&mut self) -> Result<(), ActorError> {
        let step = self.finish_step()?;
        let mut uses_reserve = false;
        loop {
            let id = self.session.id;
            let committing = self.engine.sessions().commit_step(id, step.clone());
            let committed = if uses_reserve {
                with_reserve(committing).await
            } else {
                committing.await
            };
            match committed {
                Ok(Some(stepped)) => {
                    self.session.log_end = stepped.log_end;
                    break;
                }
                Ok(None) => {
                    self.deleted = true;
                    return Ok(());
                }
                Err(error @ (StoreError::DiskFull | StoreError::Busy)) => {
                    if !uses_reserve && self.take_reserve_commit().await? {
                        uses_reserve = true;
                        continue;
                    }
                    tracing::warn!(session = %id, %error, "retrying to commit a step");
                    tokio::time::sleep(COMMIT_RETRY_DELAY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.step.kept_objects = None;
        let process = &mut self.process;
        let staged_input = std::mem::take(&mut process.staged_input);
        if let (Some(connection), Some(live)) = (&mut process.connection, &process.live) {
            connection.send(&staged_input);
            if live.ready {
                let process = &connection.process;
                process
                    .acknowledge(StreamKind::Stdout, live.stdout_offset)
                    .await;
            }
        }
        if let Some(taken) = step.input_acknowledged {
            process.unconfirmed_input.retain(|(at, _)| *at >= taken);
        }
        Ok(())
    }

    /// Whether a step may use the reserve of the store: the session is to be stopped, and its agent has not made
    /// too many steps since.
    async fn take_reserve_commit(&mut self) -> Result<bool, ActorError> {
        let session = self.engine.store().session(self.session.id).await?;
        let is_stopping = session.is_some_and(|session| session.stop_request.is_some());
        if !is_stopping {
            self.reserve_commits = 0;
        } else if self.reserve_commits < MAX_RESERVE_COMMITS {
            self.reserve_commits += 1;
            return Ok(true);
        }
        Ok(false)
    }

    /// Takes the step out of the builder.
    fn finish_step(&mut self) -> Result<SessionStep, ActorError> {
        let invalid_lines = std::mem::take(&mut self.step.invalid_lines);
        if invalid_lines > 1 {
            let more = invalid_lines - 1;
            self.step
                .events
                .log(format!("{more} more lines that are not messages"));
        }
        self.deadlines.flush_at = None;
        let process = &mut self.process;
        if let Some(live) = &mut process.live {
            self.step.events.flush(live);
            if live.ready {
                live.stdout_offset = process.read_offset;
                if let Some(connection) = &process.connection {
                    live.skipping_line = connection.lines.is_inside_long_line();
                }
            }
        }
        let live = process.live.as_ref().map(serde_json::to_string).transpose();
        let mut step = std::mem::take(&mut self.step.changes);
        step.at = self.engine.now();
        step.events.append(&mut self.step.events.take());
        for event in step.events.iter_mut().chain(&mut step.parent_events) {
            self.redactor.redact_event(event);
        }
        if let Some(error) = &mut step.error {
            self.redactor.redact_optional(error);
        }
        step.live = Some(live.map_err(EngineError::fault)?);
        if let Some(status) = step.status {
            self.session.status = status;
        }
        Ok(step)
    }
}
