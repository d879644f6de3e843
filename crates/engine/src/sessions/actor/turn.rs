//! One turn: a prompt, and how it ends.

use oubliette_agent::UsageReport;
use oubliette_model::{Status, StopReason, Transition, TurnKind};
use oubliette_store::{SessionMessage, StopRequest};
use oubliette_wire::RpcError;
use serde_json::Value;
use tokio::time::Instant;

use super::{ActorError, SessionActor};
use crate::sessions::live_agent::{CancelReason, LiveAgent, Turn};

const MAX_LOGGED_STOP_REASON_CHARS: usize = 60;
/// A longer error of an agent gives the reason itself; "Internal error: Agent error" does not.
const MAX_VAGUE_ERROR_BYTES: usize = 80;

const NO_TOKENS: &str = "the agent ended the turn without a complete answer of its model: it counted no \
    tokens, so the model's stream was probably cut off";
const LATE_TOOLS: &str =
    "the agent has not listed its tools in time; it got the prompt without waiting any longer";
const UNKNOWN_FAILURE: &str = "the agent reported that the turn failed, and gave no reason";

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
        let callers = self.engine.callers();
        let has_tools = callers
            .wait_until_tools_known(self.session.id, self.awaited_tools())
            .await?;
        let workspace = self.session.workspace_id.clone();
        let checkpoints = self.engine.checkpoints();
        let _starting = checkpoints.block_rewind(self.project.id, &workspace).await;
        // The session may have been set back while this waited: then its agent is started anew.
        if !self.reload().await? || self.has_forgotten_conversation() {
            return Ok(());
        }
        let transcript = self.transcript().await?;
        // A scan whose step is not committed would keep the project's objects from being collected.
        if self.process.live.is_none() {
            return Ok(());
        }
        self.add_start_checkpoint().await;
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
        live.silence_logged = false;
        // Of an earlier turn.
        self.engine.gateway().take_refusal(self.session.id);
        self.step.events.start_turn(live);
        live.prompted = true;
        live.turn = Some(Turn {
            request_id,
            request_end_offset: live.stdin_offset + line.len() as u64,
            start_index: self.session.log_end,
            cancelled: None,
            kind: TurnKind::Prompt,
            failed: false,
            is_command: message.text.trim_start().starts_with('/'),
            started_at: Some(self.engine.now()),
        });
        self.send(line);
        if !has_tools {
            self.step.events.log(LATE_TOOLS);
        }
        self.step.add_prompt(&message);
        self.session.turns += 1;
        self.transition(Transition::Prompted);
        self.deadlines.record_progress();
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
        self.session.turns += 1;
        self.step
            .add_completion(String::new(), stop_reason, error, TurnKind::Prompt);
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
        reported.turn = self.tokens_of_turn(reported.turn);
        if let Some(file) = self.agent.usage_file.filter(|_| reported.turn.is_none()) {
            reported.turn = self.read_usage_file(file).await;
        }
        self.set_used_model(
            outcome
                .as_ref()
                .ok()
                .and_then(oubliette_agent::model_of_turn),
        );
        let live = self.process.live.as_mut();
        let Some(turn) = live.and_then(|live| live.turn.take()) else {
            return Ok(());
        };
        self.keep_refreshed_login().await;
        let (stop_reason, error) = match (&outcome, turn.cancelled) {
            (_, Some(reason)) => self.cancelled_completion(reason).await?,
            (Ok(result), None) => {
                let is_counted = reported.turn.is_some() || !self.agent.needs_tokens;
                match self.stop_reason(result) {
                    StopReason::EndTurn if turn.failed => (
                        StopReason::Error,
                        Some(self.with_advice(&self.failure_reason())),
                    ),
                    StopReason::EndTurn if !is_counted && !turn.is_command => {
                        (StopReason::Error, Some(NO_TOKENS.to_owned()))
                    }
                    other => (other, None),
                }
            }
            (Err(error), None) => {
                let error = self.described_failure(error);
                (StopReason::Error, Some(self.with_advice(&error)))
            }
        };
        let (stop_reason, error) = self.explained_by_budget(stop_reason, error);
        let live = self.process.live.as_ref();
        let left_command = turn.cancelled.is_some()
            && self.agent.leaves_commands
            && live.is_some_and(LiveAgent::runs_tool);
        let text = self.take_turn_text();
        self.take_metered_usage().await?;
        self.count_turn_cost(reported);
        if left_command {
            self.kill_agent().await;
            self.step.events.log(
                "the agent was stopped, because it leaves a command running that it has started; the next \
                 message resumes it",
            );
        }
        self.finish_turn(&turn, text, stop_reason, error).await
    }

    /// Commits the end of a turn.
    pub(super) async fn finish_turn(
        &mut self,
        turn: &Turn,
        text: String,
        stop_reason: StopReason,
        error: Option<String>,
    ) -> Result<(), ActorError> {
        let waits_outside_turn = self.waits_outside_turn();
        if !waits_outside_turn {
            self.withdraw_decisions().await?;
        }
        if let Some(note) = self.take_memory_note() {
            self.step.events.log(note);
        }
        self.add_end_checkpoint(turn.kind).await?;
        self.step
            .add_completion(text, stop_reason, error, turn.kind);
        if !waits_outside_turn {
            self.transition(Transition::TurnEnded);
        }
        if turn.kind == TurnKind::Prompt {
            self.step.changes.input_acknowledged = Some(turn.request_end_offset);
        }
        self.deadlines.cancel_by = None;
        self.deadlines.record_progress();
        self.commit().await?;
        self.enforce_budget().await
    }

    /// The reason of a turn that failed although the agent's response does not say so: what the agent wrote
    /// last.
    pub(super) fn failure_reason(&self) -> String {
        let live = self.process.live.as_ref();
        let last = live.map(|live| self.step.events.last_message(live));
        last.filter(|last| self.agent.writes_failure_reason && !last.is_empty())
            .unwrap_or_else(|| UNKNOWN_FAILURE.to_owned())
    }

    /// An agent's error, with the reason if the agent has only written it.
    fn described_failure(&self, error: &RpcError) -> String {
        let error = error.to_string();
        let reason = self.failure_reason();
        let says_why = error.len() > MAX_VAGUE_ERROR_BYTES || error.contains(&reason);
        if reason == UNKNOWN_FAILURE || says_why {
            return error;
        }
        format!("{error}: {reason}")
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
        self.step.changes.handled_stop_request = Some(StopRequest::Interrupt);
        match self.process.turn() {
            Some(turn) if turn.cancelled.is_none() => {
                self.cancel_turn(CancelReason::Requested).await?;
            }
            Some(_) => {}
            None => {
                if self.waits_outside_turn() {
                    self.withdraw_decisions().await?;
                    self.transition(Transition::TurnEnded);
                }
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

    /// Ends a turn in which nothing happens any more.
    pub(super) async fn end_stalled_turn(&mut self) -> Result<(), ActorError> {
        let seconds = self.engine.settings().sessions.stalled_seconds;
        let text = format!("no progress of the agent for {seconds} s; its turn is being ended");
        self.step.events.log(text);
        self.cancel_turn(CancelReason::Stalled).await?;
        self.commit().await
    }

    fn stall_error(&self) -> String {
        let seconds = self.engine.settings().sessions.stalled_seconds;
        let live = self.process.live.as_ref();
        let notice = live.map_or("", |live| live.last_notice.as_str());
        let reported = match notice {
            "" => String::new(),
            notice => format!(" ({notice})"),
        };
        format!(
            "the turn was ended because the agent made no progress for {seconds} s \
             (`sessions.stalled_seconds`): its model probably does not answer{reported}; send the message \
             again when it does"
        )
    }

    /// The stop reason and error of a turn that was cancelled.
    pub(super) async fn cancelled_completion(
        &self,
        reason: CancelReason,
    ) -> Result<(StopReason, Option<String>), ActorError> {
        Ok(match reason {
            CancelReason::Requested => (StopReason::Cancelled, None),
            CancelReason::Budget => (StopReason::Limit, Some(self.over_budget_error().await?)),
            CancelReason::Stalled => (StopReason::Error, Some(self.stall_error())),
        })
    }
}
