//! The one task that owns a live session: it does what the store says is wanted, talks to the agent,
//! and commits every step before anybody hears of it.

use std::time::Duration;

use oubliette_agent::{Agent, ToolFilter};
use oubliette_model::{ApiKey, Event, Level, SessionId, Status, WorkspaceId};
use oubliette_runtime::ContainerId;
use oubliette_store::{Message, Project, Session, Step, StoreError, Wanted};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection::Connection;
use super::live::Live;
use super::redact::Redact;
use super::scribe::{Scribe, joined};
use super::tools::tools_of;
use crate::containers::{InUse, Place};
use crate::{Engine, EngineError, agents};

/// A supervisor whose connection broke comes back within this time, or its container has ended.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// The agent's home in its container.
pub(super) const HOME: &str = "/root";

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
    /// What the agent's own MCP server shows to speak for this session; only its hash is stored.
    pub(super) key: Option<ApiKey>,
    /// Whether the agent was given a credential to sign in with.
    pub(super) has_credential: bool,
    pub(super) in_use: Option<InUse>,
    /// Lines since the last step that were no messages.
    pub(super) noise: u32,
    pub(super) flush_at: Option<Instant>,
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
            .unwrap_or_else(|_| Agent::from_command(&session.agent, Vec::new()));
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
            key: None,
            has_credential: false,
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
    pub(super) async fn recall(&mut self) -> Result<(), Stop> {
        let store = self.engine.store();
        let Some(live) = &self.live else {
            return Ok(());
        };
        let told = match &live.block {
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
                let waiting = waiting
                    || !self
                        .engine
                        .store()
                        .pending_requests(self.session.id)
                        .await?
                        .is_empty();
                if waiting {
                    self.last_sign = now;
                } else if quiet >= patience {
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

    pub(super) fn note_prompt(&mut self, message: &Message) {
        let names = message.attachments.iter().map(|file| file.name.clone());
        self.scribe.events.push(Event::Prompt {
            text: message.text.clone(),
            attachments: names.collect(),
        });
        self.step.message_done = Some(message.id);
        self.step.turn_begun = true;
    }

    pub(super) fn autonomy(&self) -> Level {
        let own = self.session.choices.autonomy;
        own.or(self.project.settings.autonomy)
            .unwrap_or(Level::High)
    }

    pub(super) fn tools(&self) -> ToolFilter {
        tools_of(&self.session.choices)
    }
}

/// The container that a live agent is in.
pub(super) fn container_id(name: &str, project: &Project) -> ContainerId {
    ContainerId::new(name)
        .unwrap_or_else(|| Place::of(project, &WorkspaceId::default_one()).container())
}

impl std::fmt::Debug for Owner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner")
            .field("session", &self.session.id)
            .finish_non_exhaustive()
    }
}
