//! Turns that the agent starts itself, for example when a command that it left running has ended.
//!
//! Nothing answers such a turn. It ends when the agent reports that it is idle, or, if the agent does not
//! report that, when it has been quiet. A message that arrives meanwhile waits for the end.

use std::time::Duration;

use oubliette_agent::{AgentState, Signal, UsageReport};
use oubliette_model::{AwaitedRequestKind, Event, Status, StopReason, Transition, TurnKind};
use tokio::time::Instant;

use super::{ActorError, SessionActor};
use crate::sessions::live_agent::{LiveAgent, OpenTool, Turn};

/// How long an agent that does not report its state is quiet before its own turn counts as ended.
const QUIET_TIME: Duration = Duration::from_secs(3);
/// The same for a turn that was cancelled.
const QUIET_TIME_AFTER_CANCEL: Duration = Duration::from_secs(1);

impl SessionActor<'_> {
    /// Starts a turn of the agent's own, unless a turn is running.
    pub(super) fn ensure_turn(&mut self) {
        let Some(live) = &mut self.process.live else {
            return;
        };
        if live.turn.is_some() {
            return;
        }
        self.step.events.start_turn(live);
        live.turn = Some(Turn {
            request_id: 0,
            request_end_offset: 0,
            start_index: self.session.log_end,
            cancelled: None,
            kind: TurnKind::Background,
            failed: false,
            is_command: false,
            started_at: Some(self.engine.now()),
        });
        self.step.changes.turn_started = true;
        self.session.turns += 1;
        if let Some(status) = self.session.status.after(Transition::BackgroundStarted) {
            self.session.status = status;
            self.step.changes.status = Some(status);
            self.step.events.push(Event::Status {
                status,
                waiting_for: None,
                error: None,
                kind: TurnKind::Background,
            });
        }
    }

    pub(super) fn is_in_background_turn(&self) -> bool {
        let turn = self.process.turn();
        turn.is_some_and(|turn| turn.kind == TurnKind::Background)
    }

    /// Handles what the agent says about itself.
    pub(super) async fn handle_signal(&mut self, signal: Signal) -> Result<(), ActorError> {
        let Some(live) = &mut self.process.live else {
            return Ok(());
        };
        match signal {
            Signal::Notice(notice) => self.step.events.add_notice(live, notice),
            Signal::State(state) => {
                live.is_working = state == AgentState::Working;
                if let Some(turn) = &mut live.turn {
                    match state {
                        // It tries again.
                        AgentState::Working => turn.failed = false,
                        AgentState::Failed => turn.failed = true,
                        AgentState::Idle => {}
                    }
                }
                if !live.is_working && self.is_in_background_turn() {
                    return self.end_background_turn().await;
                }
            }
        }
        Ok(())
    }

    /// When the agent's own turn counts as ended if it stays quiet; none in other turns.
    pub(super) fn quiet_deadline(&self) -> Option<Instant> {
        let live = self.process.live.as_ref()?;
        let turn = live.turn.as_ref()?;
        if turn.kind != TurnKind::Background || self.session.status == Status::Waiting {
            return None;
        }
        let is_busy = live.is_working || !live.open_tools.is_empty();
        let time = match turn.cancelled {
            Some(_) => QUIET_TIME_AFTER_CANCEL,
            None if is_busy => Duration::from_secs(self.engine.settings().sessions.silence_seconds),
            None => QUIET_TIME,
        };
        Some(self.deadlines.last_activity + time)
    }

    pub(super) async fn end_background_turn(&mut self) -> Result<(), ActorError> {
        let live = self.process.live.as_mut();
        let Some(turn) = live.and_then(|live| live.turn.take()) else {
            return Ok(());
        };
        let reason = self.failure_reason();
        let text = self.take_turn_text();
        self.take_metered_usage().await?;
        self.count_turn_cost(UsageReport::default());
        let (stop_reason, error) = match turn.cancelled {
            Some(cancelled) => self.cancelled_completion(cancelled).await?,
            None if turn.failed => (StopReason::Error, Some(self.with_advice(&reason))),
            None => (StopReason::EndTurn, None),
        };
        self.finish_turn(&turn, text, stop_reason, error).await
    }

    /// Whether the session waits for a decision that does not belong to a turn.
    pub(super) fn waits_outside_turn(&self) -> bool {
        let waiting = self.session.waiting.as_ref();
        waiting.is_some_and(|waiting| {
            let is_of_turn = self.held_request.as_ref() == Some(&waiting.request_id);
            waiting.kind == AwaitedRequestKind::Budget && !is_of_turn
        })
    }

    /// Logs once that the agent has been silent, while nothing but its model can be the reason.
    pub(super) fn log_silence(&mut self) {
        let seconds = self.engine.settings().sessions.silence_notice_seconds;
        if let Some(live) = &mut self.process.live {
            live.silence_logged = true;
            self.step
                .events
                .log(format!("no sign of the agent for {seconds} s"));
        }
    }

    /// Logs connections that were refused in the container while the turn runs.
    pub(super) async fn log_denials(&mut self) -> Result<(), ActorError> {
        let denials = self.engine.parts.network.denials.take(self.session.id);
        let live = self
            .process
            .live
            .as_ref()
            .filter(|live| live.turn.is_some());
        let Some(container) = live.map(|live| live.container_id(&self.project)) else {
            return Ok(());
        };
        let own = denials
            .into_iter()
            .filter(|denial| denial.container == container.as_str());
        let mut is_any = false;
        for denial in own {
            is_any = true;
            self.step.events.push(Event::NetworkDenied {
                host: denial.host,
                port: (denial.port > 0).then_some(denial.port),
                reason: denial.reason,
            });
        }
        if is_any { self.commit().await } else { Ok(()) }
    }

    /// When the silence of the agent has to be logged.
    pub(super) fn silence_notice_deadline(&self) -> Option<Instant> {
        let live = self.process.live.as_ref()?;
        let is_expected = live.silence_logged
            || live.turn.is_none()
            || !live.open_tools.is_empty()
            || self.session.status != Status::Running;
        let seconds = self.engine.settings().sessions.silence_notice_seconds;
        let at = self.deadlines.last_activity + Duration::from_secs(seconds);
        (!is_expected).then_some(at)
    }
}

impl LiveAgent {
    /// Whether a tool that the agent has started has not ended. One that was announced without its input
    /// has not started: the model still writes it.
    pub(super) fn runs_tool(&self) -> bool {
        let has_started = |tool: &OpenTool| tool.logged || !tool.input.is_null();
        self.open_tools.values().any(has_started)
    }
}
