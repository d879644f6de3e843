//! How turns, agents and sessions end when they do not end by themselves.

use std::time::Duration;

use oubliette_model::{Event, Status, StopReason, Transition};
use oubliette_store::Message;

use super::connection::{Connection, News};
use super::live::Cancelled;
use super::owner::{Owner, PATIENCE, Stop, container_id};
use crate::containers::attachment::finish;

/// How long an agent that was killed may take to be gone.
const ENDING: Duration = Duration::from_secs(10);

impl Owner<'_> {
    /// The agent is gone. In a turn that fails the session; otherwise the next message starts it
    /// again.
    pub(super) async fn died(&mut self, how: String) -> Result<(), Stop> {
        let words = self.connection.as_ref().map(Connection::last_words);
        let words = words.filter(|words| !words.trim().is_empty());
        let error = match words {
            Some(words) => format!("{how}; it last said: {}", words.trim()),
            None => how,
        };
        let error = self.redact.text(error);
        let was_ready = self.live.as_ref().is_some_and(|live| live.ready);
        let in_turn = self.live.as_ref().is_some_and(|live| live.turn.is_some());
        let text = match &mut self.live {
            Some(live) => self.scribe.end_turn(live),
            None => String::new(),
        };
        self.discard_agent().await;
        if in_turn || matches!(self.session.status, Status::Running | Status::Waiting) {
            tracing::info!(session = %self.session.id, %error, "an agent died in a turn");
            self.withdraw_decisions("interrupt").await?;
            self.scribe.events.push(Event::Completion {
                text,
                stop_reason: StopReason::Error,
                error: Some(error.clone()),
            });
            self.become_ended(Transition::AgentFailed, Some(error));
        } else if was_ready {
            self.scribe
                .log(format!("{error}; the next message starts it again"));
        }
        self.commit().await?;
        self.end_children().await
    }

    /// Moves on in the life of the session, if that can be.
    pub(super) fn become_status(&mut self, happening: Transition) {
        let Some(status) = self.session.status.after(happening) else {
            return;
        };
        self.session.status = status;
        self.session.waiting = None;
        self.step.status = Some(status);
        self.step.waiting = Some(None);
        self.scribe.events.push(Event::status(status));
    }

    /// The same for an end: its parent hears of it.
    pub(super) fn become_ended(&mut self, happening: Transition, error: Option<String>) {
        let Some(status) = self.session.status.after(happening) else {
            return;
        };
        self.session.status = status;
        self.session.waiting = None;
        self.step.status = Some(status);
        self.step.waiting = Some(None);
        self.step.error = Some(error.clone());
        self.scribe.events.push(Event::Status {
            status,
            waiting_for: None,
            error: error.clone(),
        });
        self.step.to_parent.push(Event::ChildEnded {
            child_id: self.session.id,
            status,
            error,
        });
    }

    /// Fails a turn that could not begin.
    pub(super) async fn fail_turn(&mut self, message: &Message, why: &str) -> Result<(), Stop> {
        self.note_prompt(message);
        self.scribe.events.push(Event::Completion {
            text: String::new(),
            stop_reason: StopReason::Error,
            error: Some(why.to_owned()),
        });
        self.become_ended(Transition::AgentFailed, Some(why.to_owned()));
        self.commit().await?;
        self.end_children().await
    }

    /// Ends the session as somebody wanted.
    pub(super) async fn end(&mut self) -> Result<(), Stop> {
        let text = match &mut self.live {
            Some(live) => self.scribe.end_turn(live),
            None => String::new(),
        };
        let in_turn = matches!(self.session.status, Status::Running | Status::Waiting);
        self.discard_agent().await;
        self.withdraw_decisions("interrupt").await?;
        if in_turn {
            self.scribe.events.push(Event::Completion {
                text,
                stop_reason: StopReason::Cancelled,
                error: None,
            });
        }
        self.become_ended(Transition::Ended, None);
        self.step.wanted_done = true;
        self.step.messages_dropped = true;
        self.commit().await?;
        self.end_children().await
    }

    /// A tree does not outlive its root.
    pub(super) async fn end_children(&self) -> Result<(), Stop> {
        if self.session.status.is_ended() {
            self.engine.end_below(self.session.id).await?;
        }
        Ok(())
    }

    /// Ends the agent's process with everything it started.
    pub(super) async fn discard_agent(&mut self) {
        self.connection = None;
        self.cancel_by = None;
        let Some(live) = self.live.take() else { return };
        let containers = self.engine.containers();
        let id = container_id(&live.container, &self.project);
        if let Some(link) = containers.link_if_running(&id, PATIENCE).await
            && link.boot_id() == live.boot_id
        {
            finish(&link, &live.process_id, ENDING).await;
        }
        self.input.clear();
        self.staged.clear();
        self.step.input.clear();
        self.in_use = None;
    }

    /// Lets an agent end by itself, and sees to it.
    pub(super) async fn stop_agent(&mut self) {
        if let (Some(connection), Some(live)) = (&mut self.connection, &self.live) {
            connection.attachment.close_stdin(live.stdin).await;
            let over = async {
                while connection.news().await != News::Ended {
                    if !connection.attachment.link.is_open() {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(3), over).await;
        }
        self.discard_agent().await;
    }

    pub(super) fn cancel_patience(&self) -> Duration {
        Duration::from_secs(self.engine.settings().sessions.cancel_seconds)
    }

    /// Ends an agent that does not stop its turn.
    pub(super) async fn kill_deaf_agent(&mut self) -> Result<(), Stop> {
        self.cancel_by = None;
        let cancelled = self
            .live
            .as_ref()
            .and_then(|live| live.turn.as_ref()?.cancelled);
        let text = match &mut self.live {
            Some(live) => self.scribe.end_turn(live),
            None => String::new(),
        };
        self.discard_agent().await;
        self.withdraw_decisions("interrupt").await?;
        self.scribe
            .log("the agent did not stop its turn and was ended; the next message resumes it");
        let (stop_reason, error) = match cancelled {
            Some(Cancelled::Budget) => (StopReason::Limit, Some(self.budget_sentence())),
            _ => (StopReason::Cancelled, None),
        };
        self.scribe.events.push(Event::Completion {
            text,
            stop_reason,
            error,
        });
        self.become_status(Transition::TurnEnded);
        self.commit().await?;
        self.mind_the_budget().await
    }
}
