//! How turns, agents and sessions end when the agent does not end them itself.

use std::time::Duration;

use oubliette_model::{Status, StopReason, Transition};
use oubliette_store::SessionMessage;

use super::turn::cancelled_completion;
use super::{ActorError, SessionActor};
use crate::sessions::connection::{AgentConnection, ProcessEvent};
use crate::sessions::live_agent::CancelReason;

/// How long a killed agent may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an agent may take to exit after its input was closed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

impl SessionActor<'_> {
    /// The agent is gone. That fails the session if a turn was running; otherwise the next message
    /// starts the agent again.
    pub(super) async fn on_agent_exit(&mut self, reason: String) -> Result<(), ActorError> {
        let error = self.with_stderr_tail(reason);
        let was_ready = self.process.live.as_ref().is_some_and(|live| live.ready);
        let in_turn = self.process.in_turn() || self.is_busy();
        let text = self.take_turn_text();
        self.kill_agent().await;
        if in_turn {
            tracing::info!(session = %self.session.id, %error, "an agent exited in a turn");
            self.withdraw_decisions().await?;
            let stop_reason = StopReason::Error;
            self.step
                .add_completion(text, stop_reason, Some(error.clone()));
            self.transition_to_end(Transition::AgentFailed, Some(error));
        } else if was_ready {
            self.step
                .events
                .log(format!("{error}; the next message starts it again"));
        }
        self.commit().await?;
        self.end_children().await
    }

    /// Adds the end of the agent's stderr to a reason, redacted.
    pub(super) fn with_stderr_tail(&self, reason: String) -> String {
        let connection = self.process.connection.as_ref();
        let stderr = connection
            .map(AgentConnection::recent_stderr)
            .unwrap_or_default();
        self.redactor.redact_text(match stderr.trim() {
            "" => reason,
            stderr => format!("{reason}; the end of its stderr: {stderr}"),
        })
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
        let in_turn = self.is_busy();
        self.kill_agent().await;
        self.withdraw_decisions().await?;
        if in_turn {
            self.step.add_completion(text, StopReason::Cancelled, None);
        }
        self.transition_to_end(Transition::Ended, None);
        self.step.changes.stop_request_done = true;
        self.step.changes.drop_messages = true;
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
        if let Some(process) = self.find_process(&live).await {
            process.terminate(KILL_TIMEOUT).await;
        }
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
        let cancelled = self.process.turn().and_then(|turn| turn.cancelled);
        let text = self.take_turn_text();
        self.kill_agent().await;
        self.withdraw_decisions().await?;
        self.step
            .events
            .log("the agent did not stop its turn and was killed; the next message resumes it");
        let (stop_reason, error) =
            cancelled_completion(cancelled.unwrap_or(CancelReason::Requested));
        self.step.add_completion(text, stop_reason, error);
        self.transition(Transition::TurnEnded);
        self.commit().await?;
        self.enforce_budget().await
    }
}
