//! The one task that owns a live session: it does what the store says is wanted, talks to the agent,
//! and commits every step before anybody hears of it.

use std::time::Duration;

use oubliette_agent::{Agent, Line, read};
use oubliette_model::{Event, Happening, Level, SessionId, Status, StopReason};
use oubliette_runtime::ContainerId;
use oubliette_store::{Message, Project, Session, Step, StoreError, Wanted};
use oubliette_wire::{Ended, StreamKind};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection::{Connection, Frame, Frames, News};
use super::live::Live;
use super::redact::Redact;
use super::scribe::{Scribe, joined};
use crate::containers::attachment::{Unreached, finish};
use crate::containers::{InUse, id_of};
use crate::{Engine, EngineError, agents};

/// A supervisor whose connection broke comes back within this time, or its container has ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long an agent that was killed may take to be gone.
pub(super) const ENDING: Duration = Duration::from_secs(10);
/// Streamed text is told of so often.
const PACE: Duration = Duration::from_millis(250);
/// Output that comes to no event is still let go of after so many bytes.
const UNEVENTFUL: u64 = 1 << 20;
const RETRY: Duration = Duration::from_secs(1);

/// Why an owner stops before the session is settled.
#[derive(Debug)]
pub(super) enum Stop {
    /// The server ends; the next one goes on.
    Server,
    Fault(EngineError),
}

impl From<EngineError> for Stop {
    fn from(error: EngineError) -> Self {
        Self::Fault(error)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Fault(error.into())
    }
}

enum Next {
    /// Something has to happen first.
    Wait,
    /// There is nothing left to own.
    Leave,
}

pub(super) struct Owner<'a> {
    pub(super) engine: &'a Engine,
    pub(super) wake: &'a Notify,
    pub(super) session: Session,
    pub(super) project: Project,
    pub(super) agent: Agent,
    pub(super) live: Option<Live>,
    pub(super) scribe: Scribe,
    pub(super) step: Step,
    pub(super) connection: Option<Connection>,
    /// Everything before this place of the agent's output has been heard.
    pub(super) heard: u64,
    /// For the agent, once it is committed; and what it may not have yet.
    pub(super) staged: Vec<u8>,
    pub(super) input: Vec<(u64, Vec<u8>)>,
    pub(super) redact: Redact,
    pub(super) in_use: Option<InUse>,
    /// Lines since the last step that were no messages.
    noise: u32,
    flush_at: Option<Instant>,
    pub(super) last_sign: Instant,
    /// When a turn that was cancelled has to be over.
    pub(super) cancel_by: Option<Instant>,
    pub(super) gone: bool,
}

pub(super) async fn own(engine: &Engine, id: SessionId, wake: &Notify) -> Result<(), Stop> {
    let Some(mut owner) = Owner::new(engine, id, wake).await? else {
        return Ok(());
    };
    tokio::select! {
        // Dropped at any point, it is as if the server had died there.
        outcome = owner.run() => outcome,
        () = engine.stopping() => Err(Stop::Server),
    }
}

/// Settles a session whose owner could not go on.
pub(super) async fn abandon(engine: &Engine, id: SessionId, why: &str) {
    let wake = Notify::new();
    let given_up = async {
        if let Some(mut owner) = Owner::new(engine, id, &wake).await? {
            owner
                .died(format!("the server could not go on with it: {why}"))
                .await?;
        }
        Ok::<_, Stop>(())
    };
    if let Err(error) = given_up.await {
        tracing::error!(session = %id, ?error, "a session could not be given up");
    }
}

impl<'a> Owner<'a> {
    async fn new(
        engine: &'a Engine,
        id: SessionId,
        wake: &'a Notify,
    ) -> Result<Option<Self>, Stop> {
        let Some(session) = engine.store().session(id).await? else {
            return Ok(None);
        };
        let Some(project) = engine.store().get(session.project_id).await? else {
            return Ok(None);
        };
        // A row that a newer or broken server wrote: the agent is found by nobody, so it ends with
        // its container.
        let live = session.live.as_deref();
        let live: Option<Live> = live.and_then(|live| serde_json::from_str(live).ok());
        let agent = agents::find(engine.settings(), &session.agent)
            .unwrap_or_else(|_| Agent::command(&session.agent, Vec::new()));
        let mut owner = Self {
            engine,
            wake,
            agent,
            heard: live.as_ref().map_or(0, |live| live.stdout),
            live,
            scribe: Scribe::default(),
            step: Step::default(),
            connection: None,
            staged: Vec::new(),
            input: engine.store().agent_input(id).await?,
            redact: Redact::default(),
            in_use: None,
            noise: 0,
            flush_at: None,
            last_sign: Instant::now(),
            cancel_by: None,
            gone: false,
            session,
            project,
        };
        owner.recall().await?;
        Ok(Some(owner))
    }

    /// Takes up what the log knows of a turn that another owner began.
    async fn recall(&mut self) -> Result<(), Stop> {
        let store = self.engine.store();
        let Some(live) = &self.live else {
            return Ok(());
        };
        let told = match live.block {
            Some(block) => store.deltas(self.session.id, block.start).await?.concat(),
            None => String::new(),
        };
        let mut said = Vec::new();
        if let Some(turn) = &live.turn {
            let mut since = turn.start - 1;
            loop {
                let page = store.events(self.session.id, since, 1000, 8 << 20).await?;
                let Some(last) = page.last() else { break };
                since = last.index;
                for event in page {
                    if let Ok(Event::Message { text }) = serde_json::from_str(&event.body) {
                        said.push(text);
                    }
                }
            }
            if turn.cancelled.is_some() {
                self.cancel_by = Some(Instant::now() + self.cancel_patience());
            }
        }
        self.scribe = Scribe::resume(told, joined(&said));
        let id = container_id(&live.container, &self.project);
        self.in_use = Some(self.engine.containers().using(&id));
        let secrets = agents::secrets(self.engine.settings(), &self.project, &self.agent);
        let secrets = secrets.unwrap_or_default().into_iter();
        let own = self.project.settings.env.values().cloned();
        self.redact = Redact::new(secrets.map(|(_, secret)| secret).chain(own));
        Ok(())
    }

    async fn run(&mut self) -> Result<(), Stop> {
        loop {
            match self.act().await? {
                Next::Leave => return Ok(()),
                Next::Wait => self.wait().await?,
            }
        }
    }

    /// Does everything that can be done now.
    async fn act(&mut self) -> Result<Next, Stop> {
        loop {
            self.engine.sessions().looking(self.session.id);
            if !self.reload().await? {
                return Ok(Next::Leave);
            }
            if self.session.wanted == Some(Wanted::End) {
                self.end().await?;
                return Ok(Next::Leave);
            }
            if self.live.as_ref().is_some_and(|live| !live.ready) {
                // Its server died while it started. No prompt has gone out.
                self.discard_agent().await;
                self.commit().await?;
                continue;
            }
            if self.live.is_some() && self.connection.is_none() && !self.connect().await? {
                continue;
            }
            self.settle_decisions().await?;
            if self.session.wanted == Some(Wanted::Interrupt) {
                self.interrupt().await?;
                continue;
            }
            let in_turn = self.live.as_ref().is_some_and(|live| live.turn.is_some());
            if in_turn || self.session.status == Status::Waiting {
                return Ok(Next::Wait);
            }
            let Some(message) = self.engine.store().next_message(self.session.id).await? else {
                return Ok(match self.live {
                    Some(_) => Next::Wait,
                    None => Next::Leave,
                });
            };
            if self.session.status.is_ended() {
                // It failed with messages waiting; the next one that comes resumes it.
                return Ok(Next::Leave);
            }
            if self.is_over_budget().await? {
                self.ask_for_budget().await?;
                continue;
            }
            if self.live.is_none()
                && let Err(why) = self.start_agent().await?
            {
                if self.session.wanted.is_none() {
                    self.fail_turn(&message, &why).await?;
                }
                continue;
            }
            self.begin_turn(message).await?;
        }
    }

    /// Reads what others changed; false if the session is gone.
    pub(super) async fn reload(&mut self) -> Result<bool, Stop> {
        match self.engine.store().session(self.session.id).await? {
            Some(session) if !self.gone => {
                self.session = session;
                Ok(true)
            }
            _ => {
                self.gone = true;
                self.discard_agent().await;
                Ok(false)
            }
        }
    }

    /// Waits for the agent, for somebody who wants something, or for a deadline.
    async fn wait(&mut self) -> Result<(), Stop> {
        let deadline = self.next_deadline().await?;
        let news = async {
            match &mut self.connection {
                Some(connection) => connection.news().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            news = news => self.hear(news).await,
            () = self.wake.notified() => Ok(()),
            () = tokio::time::sleep_until(deadline) => self.be_late().await,
        }
    }

    async fn hear(&mut self, news: News) -> Result<(), Stop> {
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
        match self.connection.as_ref().and_then(Connection::ended) {
            Some(Ended::Code(code)) => format!("the agent ended with exit code {code}"),
            Some(Ended::Signal(signal)) => format!("the agent was killed by signal {signal}"),
            None => "the agent is gone".to_owned(),
        }
    }

    async fn hear_frames(&mut self) -> Result<(), Stop> {
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

    async fn hear_line(&mut self, line: &[u8]) -> Result<(), Stop> {
        let hidden = self.redact.line(line);
        match read(hidden.as_deref().unwrap_or(line)) {
            Line::Reply { id, outcome } => {
                let turn = self.live.as_ref().and_then(|live| live.turn.as_ref());
                if turn.is_some_and(|turn| turn.request == id) {
                    self.end_turn(outcome).await?;
                }
            }
            Line::Notification { method, params } => {
                if method == "session/update" {
                    self.hear_update(&params).await?;
                }
            }
            Line::Request { id, method, params } => {
                if method == "session/request_permission" {
                    self.hear_question(&id, &params).await?;
                } else {
                    self.send(oubliette_agent::refuse(&id, &method));
                }
            }
            Line::Noise(text) => {
                self.noise += 1;
                if self.noise == 1 {
                    self.scribe
                        .log(format!("the agent wrote a line that is no message: {text}"));
                }
            }
            Line::Empty => {}
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

    async fn commit_if_due(&mut self) -> Result<(), Stop> {
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
    async fn connect(&mut self) -> Result<bool, Stop> {
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

    /// Goes back to what is committed: the rest of the output is read again.
    async fn forget_unheard(&mut self) -> Result<(), Stop> {
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

    /// The next time at which something has to be done without anybody asking.
    async fn next_deadline(&mut self) -> Result<Instant, Stop> {
        let settings = &self.engine.settings().sessions;
        let mut at = Instant::now() + Duration::from_secs(3600);
        let mut earlier = |other: Option<Instant>| at = at.min(other.unwrap_or(at));
        earlier(self.flush_at);
        earlier(self.cancel_by);
        if let Some(live) = &self.live {
            let patience = match live.turn {
                Some(_) => settings.silence_seconds,
                None => settings.idle_seconds,
            };
            earlier(Some(self.last_sign + Duration::from_secs(patience)));
        }
        for decision in self.engine.store().decisions(self.session.id).await? {
            let left = decision.deadline.duration_since(self.engine.now());
            let left = Duration::try_from(left).unwrap_or_default();
            earlier(Some(Instant::now() + left + Duration::from_millis(1)));
        }
        Ok(at)
    }

    /// Does what a deadline asks for. Decisions are looked at by [`Owner::act`].
    async fn be_late(&mut self) -> Result<(), Stop> {
        let now = Instant::now();
        if self.cancel_by.is_some_and(|at| at <= now) {
            return self.kill_deaf_agent().await;
        }
        let settings = &self.engine.settings().sessions;
        let quiet = now.duration_since(self.last_sign);
        let waiting = self.session.status == Status::Waiting;
        match &self.live {
            Some(live) if live.turn.is_some() => {
                let patience = Duration::from_secs(settings.silence_seconds);
                if quiet >= patience && !waiting {
                    let seconds = patience.as_secs();
                    return self
                        .died(format!("the agent said nothing for {seconds} seconds"))
                        .await;
                }
            }
            Some(_) if quiet >= Duration::from_secs(settings.idle_seconds) => {
                tracing::info!(session = %self.session.id, "stopping an idle agent");
                self.stop_agent().await;
                return self.commit().await;
            }
            _ => {}
        }
        self.commit_if_due().await
    }

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
            self.become_ended(Happening::Died, Some(error));
        } else if was_ready {
            self.scribe
                .log(format!("{error}; the next message starts it again"));
        }
        self.commit().await?;
        self.end_children().await
    }

    /// Moves on in the life of the session, if that can be.
    pub(super) fn become_status(&mut self, happening: Happening) {
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
    pub(super) fn become_ended(&mut self, happening: Happening, error: Option<String>) {
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
    async fn fail_turn(&mut self, message: &Message, why: &str) -> Result<(), Stop> {
        self.note_prompt(message);
        self.scribe.events.push(Event::Completion {
            text: String::new(),
            stop_reason: StopReason::Error,
            error: Some(why.to_owned()),
        });
        self.become_ended(Happening::Died, Some(why.to_owned()));
        self.commit().await?;
        self.end_children().await
    }

    pub(super) fn note_prompt(&mut self, message: &Message) {
        let names = message.attachments.iter().map(|file| file.name.clone());
        self.scribe.events.push(Event::Prompt {
            text: message.text.clone(),
            attachments: names.collect(),
        });
        self.step.message_done = Some(message.id);
        self.step.turn_begun = true;
    }

    /// Ends the session as somebody wanted.
    async fn end(&mut self) -> Result<(), Stop> {
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
        self.become_ended(Happening::Ended, None);
        self.step.wanted_done = true;
        self.step.messages_dropped = true;
        self.commit().await?;
        self.end_children().await
    }

    /// A tree does not outlive its root.
    async fn end_children(&self) -> Result<(), Stop> {
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
    async fn stop_agent(&mut self) {
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

    pub(super) fn autonomy(&self) -> Level {
        let own = self.session.choices.autonomy;
        own.or(self.project.settings.autonomy)
            .unwrap_or(Level::High)
    }
}

/// The container that a live agent is in.
pub(super) fn container_id(name: &str, project: &Project) -> ContainerId {
    ContainerId::new(name).unwrap_or_else(|| id_of(project.id))
}

impl std::fmt::Debug for Owner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner")
            .field("session", &self.session.id)
            .finish_non_exhaustive()
    }
}
