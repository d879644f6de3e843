//! One turn: a prompt, and how it ends.

use oubliette_agent::UsageReport;
use oubliette_model::{Status, StopReason, Transition};
use oubliette_store::SessionMessage;
use oubliette_wire::RpcError;
use serde_json::Value;
use tokio::time::Instant;

use super::{ActorError, SessionActor};
use crate::sessions::live_agent::{CancelReason, Turn};

const MAX_LOGGED_STOP_REASON_CHARS: usize = 60;

impl SessionActor<'_> {
    /// Sends the agent a prompt.
    pub(super) async fn start_turn(&mut self, message: SessionMessage) -> Result<(), ActorError> {
        let attachments = match self.write_attachments(&message).await? {
            Ok(attachments) => attachments,
            Err(reason) => {
                self.complete_unstarted(&message, StopReason::Error, Some(reason));
                self.transition(Transition::TurnEnded);
                return self.commit().await;
            }
        };
        // The agent knows the tools that came with a message before it gets the prompt.
        self.engine
            .callers()
            .wait_until_tools_delivered(self.session.id)
            .await?;
        let transcript = self.transcript().await?;
        let agent_session = self.session.agent_session_id.clone().unwrap_or_default();
        let Some(live) = &mut self.process.live else {
            return Ok(());
        };
        let request_id = live.next_request_id;
        live.next_request_id += 1;
        let texts: Vec<&str> = transcript
            .iter()
            .chain([&message.text])
            .map(String::as_str)
            .collect();
        let line =
            oubliette_agent::prompt_request(request_id, &agent_session, &texts, &attachments);
        live.needs_transcript = false;
        live.turn = Some(Turn {
            request_id,
            request_end_offset: live.stdin_offset + line.len() as u64,
            start_index: self.session.log_end,
            cancelled: None,
        });
        self.send(line);
        self.step.add_prompt(&message);
        self.transition(Transition::Prompted);
        self.deadlines.last_activity = Instant::now();
        self.commit().await
    }

    /// Records a message whose turn does not start.
    pub(super) fn complete_unstarted(
        &mut self,
        message: &SessionMessage,
        stop_reason: StopReason,
        error: Option<String>,
    ) {
        self.step.add_prompt(message);
        self.step.add_completion(String::new(), stop_reason, error);
    }

    /// Ends the turn whose prompt the agent has answered.
    pub(super) async fn end_turn(
        &mut self,
        outcome: Result<Value, RpcError>,
    ) -> Result<(), ActorError> {
        let mut reported = outcome
            .as_ref()
            .map(UsageReport::from_response)
            .unwrap_or_default();
        if let Some(file) = self.agent.usage_file.filter(|_| reported.turn.is_none()) {
            reported.turn = self.read_usage_file(file).await;
        }
        let live = self.process.live.as_mut();
        let Some(turn) = live.and_then(|live| live.turn.take()) else {
            return Ok(());
        };
        let text = self.take_turn_text();
        self.add_usage(reported);
        let (stop_reason, error) = match (&outcome, turn.cancelled) {
            (_, Some(reason)) => cancelled_completion(reason),
            (Ok(result), None) => (self.stop_reason(result), None),
            (Err(error), None) => (StopReason::Error, Some(error.to_string())),
        };
        self.withdraw_decisions().await?;
        self.step.add_completion(text, stop_reason, error);
        self.transition(Transition::TurnEnded);
        self.step.changes.input_acknowledged = Some(turn.request_end_offset);
        self.deadlines.cancel_by = None;
        self.deadlines.last_activity = Instant::now();
        self.commit().await?;
        self.enforce_budget().await
    }

    fn stop_reason(&mut self, result: &Value) -> StopReason {
        match result["stopReason"].as_str().unwrap_or_default() {
            "end_turn" => StopReason::EndTurn,
            "cancelled" => StopReason::Cancelled,
            "refusal" => StopReason::Refused,
            "max_tokens" | "max_turn_requests" => StopReason::Limit,
            other => {
                let other: String = other.chars().take(MAX_LOGGED_STOP_REASON_CHARS).collect();
                let text = format!("the agent stopped for an unknown reason `{other}`");
                self.step.events.log(text);
                StopReason::EndTurn
            }
        }
    }

    /// Stops the current turn, or the queued one that would start next. The session goes on.
    pub(super) async fn interrupt(&mut self) -> Result<(), ActorError> {
        self.step.changes.stop_request_done = true;
        match self.process.turn() {
            Some(turn) if turn.cancelled.is_none() => {
                self.cancel_turn(CancelReason::Requested).await?;
            }
            Some(_) => {}
            None => {
                let next = self.engine.store().next_message(self.session.id).await?;
                if let Some(message) = next.filter(|_| !self.session.status.is_ended()) {
                    self.complete_unstarted(&message, StopReason::Cancelled, None);
                    self.transition(Transition::TurnEnded);
                }
            }
        }
        self.session.stop_request = None;
        self.commit().await
    }

    /// Asks the agent to stop its turn, and sets the deadline for that.
    pub(super) async fn cancel_turn(&mut self, reason: CancelReason) -> Result<(), ActorError> {
        self.withdraw_decisions().await?;
        if self.session.status == Status::Waiting {
            self.transition(Transition::WaitEnded);
        }
        let session = self.session.agent_session_id.clone().unwrap_or_default();
        self.send(oubliette_agent::cancel_notification(&session));
        let live = self.process.live.as_mut();
        if let Some(turn) = live.and_then(|live| live.turn.as_mut()) {
            turn.cancelled = Some(reason);
        }
        self.deadlines.cancel_by = Some(Instant::now() + self.cancel_timeout());
        Ok(())
    }
}

/// The stop reason and error of a turn that was cancelled.
pub(super) fn cancelled_completion(reason: CancelReason) -> (StopReason, Option<String>) {
    match reason {
        CancelReason::Requested => (StopReason::Cancelled, None),
        CancelReason::Budget => (
            StopReason::Limit,
            Some(super::budget::OVER_BUDGET.to_owned()),
        ),
    }
}
