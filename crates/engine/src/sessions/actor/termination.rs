//! How turns, agents and sessions end when the agent does not end them itself.

use std::time::Duration;

use oubliette_agent::UsageReport;
use oubliette_model::{Status, StopReason, Transition, TurnKind};
use oubliette_store::{SessionMessage, StopRequest};

use super::{ActorError, SessionActor};
use crate::sessions::connection::ProcessEvent;
use crate::sessions::live_agent::CancelReason;

/// How long a killed agent may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an agent may take to exit after its input was closed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// How much of an agent's stderr an error has.
const MAX_STDERR_LINES: usize = 8;
const MAX_STDERR_BYTES: usize = 1000;

impl SessionActor<'_> {
    /// The agent is gone. That fails the session if a turn was running; otherwise the next message
    /// starts the agent again.
    pub(super) async fn on_agent_exit(&mut self, reason: String) -> Result<(), ActorError> {
        let error = self.with_details(reason);
        let was_ready = self.process.live.as_ref().is_some_and(|live| live.ready);
        let kind = self.turn_kind();
        let in_turn = self.process.in_turn() || self.is_busy();
        let text = self.take_turn_text();
        if self.process.in_turn() {
            self.take_metered_usage().await?;
            self.count_turn_cost(UsageReport::default());
        }
        self.kill_agent().await;
        if in_turn {
            tracing::info!(session = %self.session.id, %error, "an agent exited in a turn");
            self.withdraw_decisions().await?;
            self.add_end_checkpoint(kind).await?;
            let stop_reason = StopReason::Error;
            self.step
                .add_completion(text, stop_reason, Some(error.clone()), kind);
            self.transition_to_end(Transition::AgentFailed, Some(error));
        } else if was_ready {
            self.step
                .events
                .log(format!("{error}; the next message starts it again"));
        }
        self.commit().await?;
        self.end_children().await
    }

    /// Adds to a reason which limit of the project ended the agent, and the end of the agent's stderr.
    pub(super) fn with_details(&mut self, reason: String) -> String {
        let live = self.process.live.as_ref();
        let container = live.map(|live| live.container_id(&self.project));
        let stop_reason = container.and_then(|id| self.engine.containers().stop_reason(&id));
        let reason = match (stop_reason, self.take_memory_note()) {
            (Some(stopped), _) => {
                format!("{reason}, because the server stopped the container: {stopped}")
            }
            (None, Some(note)) => format!("{reason}: {note}"),
            (None, None) => reason,
        };
        self.with_stderr_tail(reason)
    }

    /// Adds the end of the agent's stderr to a reason, redacted.
    pub(super) fn with_stderr_tail(&self, reason: String) -> String {
        let connection = self.process.connection.as_ref();
        let stderr = connection
            .map(|connection| connection.recent_stderr(&self.redactor))
            .unwrap_or_default();
        // Redacted before it is shortened.
        let stderr = self.redactor.redact_text(stderr);
        let reason = self.redactor.redact_text(reason);
        match last_lines(stderr.trim()) {
            "" => reason,
            stderr => format!("{reason}; the end of its stderr: {stderr}"),
        }
    }

    fn is_busy(&self) -> bool {
        matches!(self.session.status, Status::Running | Status::Waiting)
    }

    /// Fails the session because the turn of a message could not start.
    pub(super) async fn fail_turn(
        &mut self,
        message: &SessionMessage,
        reason: &str,
    ) -> Result<(), ActorError> {
        self.complete_unstarted(message, StopReason::Error, Some(reason.to_owned()));
        self.transition_to_end(Transition::AgentFailed, Some(reason.to_owned()));
        self.commit().await?;
        self.end_children().await
    }

    pub(super) async fn end_session(&mut self) -> Result<(), ActorError> {
        let text = self.take_turn_text();
        let (in_turn, kind) = (self.is_busy(), self.turn_kind());
        self.kill_agent().await;
        self.withdraw_decisions().await?;
        let shutdown = self.engine.session_state().end_reason.get();
        let error = shutdown.filter(|_| in_turn).cloned();
        if in_turn {
            self.add_end_checkpoint(kind).await?;
            let stop_reason = match error {
                Some(_) => StopReason::Error,
                None => StopReason::Cancelled,
            };
            self.step
                .add_completion(text, stop_reason, error.clone(), kind);
        }
        self.step.changes.drop_messages = shutdown.is_none();
        self.transition_to_end(Transition::Ended, error);
        self.step.changes.handled_stop_request = Some(StopRequest::End);
        self.commit().await?;
        self.end_children().await
    }

    /// Ends the sessions below one that has ended.
    async fn end_children(&self) -> Result<(), ActorError> {
        if self.session.status.is_ended() {
            let sessions = self.engine.sessions();
            sessions.end_descendants(self.session.id).await?;
        }
        Ok(())
    }

    /// Kills the agent's process and everything it started.
    pub(super) async fn kill_agent(&mut self) {
        self.process.connection = None;
        self.deadlines.cancel_by = None;
        let Some(live) = self.process.live.take() else {
            return;
        };
        self.engine.gateway().revoke(self.session.id);
        if let Some(process) = self.find_process(&live).await {
            process.terminate(KILL_TIMEOUT).await;
        }
        self.keep_refreshed_login().await;
        self.process.unconfirmed_input.clear();
        self.process.staged_input.clear();
        self.step.changes.input.clear();
        self.process.container_use = None;
    }

    /// Closes the agent's input, which ends most agents, and kills it if it does not exit in time.
    pub(super) async fn stop_agent(&mut self) {
        let process = &mut self.process;
        if let (Some(connection), Some(live)) = (&mut process.connection, &process.live) {
            connection.process.close_stdin(live.stdin_offset).await;
            let exited = async {
                while connection.next_event().await != ProcessEvent::Exited {
                    if !connection.process.link().is_open() {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(STOP_TIMEOUT, exited).await;
        }
        self.kill_agent().await;
    }

    pub(super) fn cancel_timeout(&self) -> Duration {
        Duration::from_secs(self.engine.settings().sessions.cancel_seconds)
    }

    /// Kills an agent that does not stop its cancelled turn.
    pub(super) async fn kill_unresponsive_agent(&mut self) -> Result<(), ActorError> {
        self.deadlines.cancel_by = None;
        let kind = self.turn_kind();
        let cancelled = self.process.turn().and_then(|turn| turn.cancelled);
        let text = self.take_turn_text();
        let reason = cancelled.unwrap_or(CancelReason::Requested);
        let (stop_reason, error) = self.cancelled_completion(reason).await?;
        self.kill_agent().await;
        self.withdraw_decisions().await?;
        self.step
            .events
            .log("the agent did not stop its turn and was killed; the next message resumes it");
        self.add_end_checkpoint(kind).await?;
        self.step.add_completion(text, stop_reason, error, kind);
        self.transition(Transition::TurnEnded);
        self.commit().await?;
        self.enforce_budget().await
    }

    fn turn_kind(&self) -> TurnKind {
        let turn = self.process.turn();
        turn.map_or(TurnKind::Prompt, |turn| turn.kind)
    }
}

/// The last few lines of a text.
fn last_lines(text: &str) -> &str {
    let start = text.len().saturating_sub(MAX_STDERR_BYTES);
    let text = &text[text.floor_char_boundary(start)..];
    let mut newlines = text.rmatch_indices('\n');
    match newlines.nth(MAX_STDERR_LINES - 1) {
        Some((at, _)) => &text[at + 1..],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_only_the_last_lines_of_stderr() {
        assert_eq!(last_lines("a\nb"), "a\nb");
        let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        assert_eq!(
            last_lines(&many.join("\n")),
            "92\n93\n94\n95\n96\n97\n98\n99"
        );
        assert!(last_lines(&"ü".repeat(9000)).len() <= MAX_STDERR_BYTES);
    }
}
