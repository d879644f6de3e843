//! What an agent says, from the bytes of its output to committed steps.

use std::sync::Arc;
use std::time::Duration;

use oubliette_agent::AgentMessage;
use oubliette_store::{Step, StoreError};
use oubliette_wire::{ExitStatus, StreamKind};
use tokio::time::Instant;

use super::connection::{Connection, Frame, Frames, News};
use super::owner::{Owner, PATIENCE, Stop, container_id};
use crate::containers::attachment::Unreached;
use crate::{EngineError, Link};

/// Streamed text is told of so often.
const PACE: Duration = Duration::from_millis(250);
/// Output that comes to no event is still let go of after so many bytes.
const UNEVENTFUL: u64 = 1 << 20;
const RETRY: Duration = Duration::from_secs(1);

impl Owner<'_> {
    pub(super) async fn hear(&mut self, news: News) -> Result<(), Stop> {
        match news {
            News::Quiet => Ok(()),
            News::Output => self.hear_frames().await,
            News::Lost => {
                self.connection = None;
                Ok(())
            }
            News::Mute => self.died("the agent closed its output".to_owned()).await,
            News::Ended => {
                self.hear_frames().await?;
                let how = self.how_it_ended();
                self.died(how).await
            }
        }
    }

    pub(super) fn how_it_ended(&self) -> String {
        let connection = self.connection.as_ref();
        if connection.is_some_and(|connection| connection.attachment.link.is_stopping()) {
            return "the container ended".to_owned();
        }
        match connection.and_then(Connection::ended) {
            Some(ExitStatus::Code(code)) => format!("the agent ended with exit code {code}"),
            Some(ExitStatus::Signal(signal)) => format!("the agent was killed by signal {signal}"),
            None => "the agent is gone".to_owned(),
        }
    }

    pub(super) async fn hear_frames(&mut self) -> Result<(), Stop> {
        self.last_sign = Instant::now();
        loop {
            let frame = self.connection.as_mut().and_then(|c| c.frames.next());
            match frame {
                Some(Frame::Line(line, end)) => {
                    self.heard = end;
                    self.hear_line(&line).await?;
                }
                Some(Frame::TooLong(end)) => {
                    self.heard = end;
                    let skipping = self.connection.as_ref().is_some_and(|c| c.frames.skipping);
                    if !skipping {
                        self.scribe
                            .log("the agent wrote a line of more than 16 MiB; it was left out");
                    }
                }
                None => break,
            }
        }
        self.commit_if_due().await
    }

    pub(super) async fn hear_line(&mut self, line: &[u8]) -> Result<(), Stop> {
        let hidden = self.redact.line(line);
        match AgentMessage::parse(hidden.as_deref().unwrap_or(line)) {
            AgentMessage::Response { id, outcome } => {
                let turn = self.live.as_ref().and_then(|live| live.turn.as_ref());
                if turn.is_some_and(|turn| turn.request == id) {
                    self.end_turn(outcome).await?;
                }
            }
            AgentMessage::Notification { method, params } => {
                if method == "session/update" {
                    self.hear_update(&params).await?;
                }
            }
            AgentMessage::Request { id, method, params } => {
                if method == "session/request_permission" {
                    self.hear_question(&id, &params).await?;
                } else {
                    self.send(oubliette_agent::method_not_found(&id, &method));
                }
            }
            AgentMessage::Invalid(text) => {
                self.noise += 1;
                if self.noise == 1 {
                    self.scribe
                        .log(format!("the agent wrote a line that is no message: {text}"));
                }
            }
            AgentMessage::Blank => {}
        }
        Ok(())
    }

    /// Bytes for the agent. They go out when the step they belong to is committed.
    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        let Some(live) = &mut self.live else { return };
        let at = live.stdin;
        live.stdin += bytes.len() as u64;
        self.staged.extend(&bytes);
        self.step.input.push((at, bytes.clone()));
        self.input.push((at, bytes));
    }

    pub(super) async fn commit_if_due(&mut self) -> Result<(), Stop> {
        let Some(live) = &self.live else {
            return Ok(());
        };
        let now = Instant::now();
        let far = self.heard - live.stdout.min(self.heard) > UNEVENTFUL;
        let pace_over = self.flush_at.is_some_and(|at| at <= now);
        let text_due = self.scribe.is_pending() && (self.scribe.is_full() || pace_over);
        if far || text_due || !self.scribe.events.is_empty() || !self.staged.is_empty() {
            return self.commit().await;
        }
        if self.scribe.is_pending() && self.flush_at.is_none() {
            self.flush_at = Some(now + PACE);
        }
        Ok(())
    }

    /// Commits the step in the making, with everything that was heard. A store that is full or busy
    /// is tried again: nothing was let go of yet.
    pub(super) async fn commit(&mut self) -> Result<(), Stop> {
        if self.noise > 1 {
            let more = self.noise - 1;
            self.scribe
                .log(format!("and {more} more lines that are no messages"));
        }
        self.noise = 0;
        self.flush_at = None;
        if let Some(live) = &mut self.live {
            self.scribe.flush(live);
            if live.ready {
                live.stdout = self.heard;
                let frames = self
                    .connection
                    .as_ref()
                    .map(|connection| &connection.frames);
                live.skipping = frames.map_or(live.skipping, |frames| frames.skipping);
            }
        }
        let mut step = std::mem::take(&mut self.step);
        step.at = self.engine.now();
        step.events.append(&mut self.scribe.events);
        let live = self.live.as_ref().map(serde_json::to_string).transpose();
        step.live = Some(live.map_err(EngineError::fault)?);
        if let Some(status) = step.status {
            self.session.status = status;
        }
        loop {
            match self.engine.store_step(self.session.id, step.clone()).await {
                Ok(Some(stepped)) => {
                    self.session.log_end = stepped.log_end;
                    break;
                }
                Ok(None) => {
                    self.gone = true;
                    return Ok(());
                }
                Err(error @ (StoreError::Full | StoreError::Busy)) => {
                    tracing::warn!(session = %self.session.id, %error, "a step has to wait");
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let staged = std::mem::take(&mut self.staged);
        if let (Some(connection), Some(live)) = (&mut self.connection, &self.live) {
            connection.send(&staged);
            if live.ready {
                connection
                    .attachment
                    .ack(StreamKind::Stdout, live.stdout)
                    .await;
            }
        }
        if let Some(taken) = step.input_taken {
            self.input.retain(|(at, _)| *at >= taken);
        }
        Ok(())
    }

    /// Reaches the agent again, from where the log is; false if it is gone and that is settled.
    pub(super) async fn connect(&mut self) -> Result<bool, Stop> {
        let Some(live) = self.live.clone() else {
            return Ok(false);
        };
        let containers = self.engine.containers();
        let id = container_id(&live.container, &self.project);
        loop {
            let Some(link) = containers.link_if_running(&id, PATIENCE).await else {
                self.died("the container ended".to_owned()).await?;
                return Ok(false);
            };
            if link.boot_id() != live.boot_id {
                self.died("the container ended".to_owned()).await?;
                return Ok(false);
            }
            let from = self.input.first().map_or(live.stdin, |(at, _)| *at);
            match containers
                .attach(link, &live.process_id, from, live.stdout)
                .await
            {
                Ok(attachment) => {
                    // What was heard and not committed comes again.
                    self.forget_unheard().await?;
                    let lost = attachment.stdout.from > live.stdout;
                    if lost {
                        self.scribe.log("a part of the agent's output is lost");
                        self.heard = attachment.stdout.from;
                    }
                    let frames = Frames::new(self.heard, live.skipping && !lost);
                    let mut connection = Connection::new(attachment, frames);
                    for (_, bytes) in &self.input {
                        connection.send(bytes);
                    }
                    self.connection = Some(connection);
                    self.last_sign = Instant::now();
                    self.hear_frames().await?;
                    return Ok(true);
                }
                Err(Unreached::Lost) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(Unreached::Gone | Unreached::NoProgram) => {
                    self.died("the agent is gone".to_owned()).await?;
                    return Ok(false);
                }
                Err(Unreached::Failed(error)) => return Err(error.into()),
            }
        }
    }

    /// The connection to the supervisor of the agent's container, whether or not it still holds.
    pub(super) async fn link(&self) -> Option<Arc<Link>> {
        if let Some(connection) = &self.connection {
            return Some(connection.attachment.link.clone());
        }
        let live = self.live.as_ref()?;
        let id = container_id(&live.container, &self.project);
        self.engine
            .containers()
            .link_if_running(&id, PATIENCE)
            .await
    }

    /// Goes back to what is committed: the rest of the output is read again.
    pub(super) async fn forget_unheard(&mut self) -> Result<(), Stop> {
        let fresh = self.engine.store().session(self.session.id).await?;
        let Some(session) = fresh else { return Ok(()) };
        let live = session.live.as_deref();
        self.live = live.and_then(|live| serde_json::from_str(live).ok());
        self.session = session;
        self.heard = self.live.as_ref().map_or(0, |live| live.stdout);
        self.step = Step::default();
        self.staged.clear();
        self.input = self.engine.store().agent_input(self.session.id).await?;
        self.recall().await
    }
}
