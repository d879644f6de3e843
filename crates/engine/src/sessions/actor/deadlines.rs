//! The times at which an actor acts although nothing happened.

use std::time::Duration;

use oubliette_model::Status;
use tokio::time::Instant;

use super::{ActorError, SessionActor};

const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Deadlines that the store does not have.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// When streamed text has to be committed.
    pub(super) flush_at: Option<Instant>,
    /// When a cancelled turn has to be over.
    pub(super) cancel_by: Option<Instant>,
    /// When the agent last wrote or received something.
    pub(super) last_activity: Instant,
    /// The same without notices, for example that it asks its model again.
    pub(super) last_progress: Instant,
}

impl Deadlines {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            flush_at: None,
            cancel_by: None,
            last_activity: now,
            last_progress: now,
        }
    }

    pub(super) fn record_progress(&mut self) {
        self.last_activity = Instant::now();
        self.last_progress = self.last_activity;
    }
}

impl SessionActor<'_> {
    pub(super) async fn next_deadline(&self) -> Result<Instant, ActorError> {
        let now = Instant::now();
        let settings = &self.engine.settings().sessions;
        let inactive_at = self.process.live.as_ref().map(|live| {
            let seconds = match live.turn {
                Some(_) => settings.silence_seconds,
                None => settings.idle_seconds,
            };
            self.deadlines.last_activity + Duration::from_secs(seconds)
        });
        let decisions = self.engine.store().decisions(self.session.id).await?;
        let decide_by = decisions.into_iter().map(|decision| {
            let remaining = decision.deadline.duration_since(self.engine.now());
            let wait = Duration::try_from(remaining).unwrap_or_default();
            now + wait + Duration::from_millis(1)
        });
        let own = [
            self.deadlines.flush_at,
            self.deadlines.cancel_by,
            inactive_at,
            self.quiet_deadline(),
            self.silence_notice_deadline(),
            self.stall_deadline(),
        ];
        let earliest = own.into_iter().flatten().chain(decide_by).min();
        Ok(earliest.map_or(now + MAX_WAIT, |at| at.min(now + MAX_WAIT)))
    }

    /// Does what is due. Decisions are left to [`SessionActor::act`].
    pub(super) async fn on_deadline(&mut self) -> Result<(), ActorError> {
        let now = Instant::now();
        if self.quiet_deadline().is_some_and(|at| at <= now) {
            return self.end_background_turn().await;
        }
        if self.deadlines.cancel_by.is_some_and(|at| at <= now) {
            return self.kill_unresponsive_agent().await;
        }
        let settings = &self.engine.settings().sessions;
        let inactive = now.duration_since(self.deadlines.last_activity);
        if self.process.in_turn() {
            if self.is_awaiting_others().await? {
                self.deadlines.record_progress();
            } else if inactive >= Duration::from_secs(settings.silence_seconds) {
                let seconds = settings.silence_seconds;
                let reason = format!("the agent wrote nothing for {seconds} seconds");
                return self.on_agent_exit(reason).await;
            } else if self.stall_deadline().is_some_and(|at| at <= now) {
                return self.end_stalled_turn().await;
            } else if self.silence_notice_deadline().is_some_and(|at| at <= now) {
                self.log_silence();
                return self.commit().await;
            }
        } else if self.process.live.is_some()
            && inactive >= Duration::from_secs(settings.idle_seconds)
        {
            tracing::info!(session = %self.session.id, "stopping an idle agent");
            self.stop_agent().await;
            return self.commit().await;
        }
        self.commit_if_due().await
    }

    /// When a turn counts as stalled: its agent reports nothing but notices, and only its model can be the
    /// reason. After a restart of the server the agent has the whole time again, because its output of the meantime may not
    /// have arrived yet.
    fn stall_deadline(&self) -> Option<Instant> {
        let seconds = self.engine.settings().sessions.stalled_seconds;
        let live = self.process.live.as_ref()?;
        let turn = live.turn.as_ref()?;
        let is_expected = seconds == 0
            || turn.cancelled.is_some()
            || live.runs_tool()
            || self.session.status != Status::Running;
        let at = self.deadlines.last_progress + Duration::from_secs(seconds);
        (!is_expected).then_some(at)
    }

    /// Whether the turn waits for a decision, for a child session, or for the result of a tool of the caller
    /// or of Oubliette: not every agent reports that it has called one.
    async fn is_awaiting_others(&self) -> Result<bool, ActorError> {
        if self.session.status == Status::Waiting
            || self.engine.sessions().has_agent_calls(self.session.id)
        {
            return Ok(true);
        }
        let pending = self
            .engine
            .store()
            .pending_requests(self.session.id)
            .await?;
        Ok(!pending.is_empty())
    }
}
