//! One conversation: where it works, what it may do unasked, and its way to the client.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentChunk, McpServerStdio, SessionId, SessionMode, SessionModeState, SessionNotification,
    SessionUpdate, ToolCallId,
};
use tokio_util::sync::CancellationToken;

use crate::journal::{Entry, Journal};
use crate::output::Output;
use crate::servers::Servers;

/// What the agent does unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Shell commands are asked for first.
    Ask,
    /// Shell commands and tools are asked for first, each time.
    Each,
    /// Nothing is asked for.
    Auto,
}

impl Mode {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "ask" => Some(Self::Ask),
            "each" => Some(Self::Each),
            "auto" => Some(Self::Auto),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Each => "each",
            Self::Auto => "auto",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    id: SessionId,
    directory: PathBuf,
    connection: ConnectionTo<Client>,
    output: Arc<Output>,
    servers: Servers,
    allowed: AtomicBool,
    calls: AtomicU64,
    state: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    journal: Journal,
    mode: Mode,
    turns: usize,
    cost: f64,
    turn: Option<CancellationToken>,
}

impl Session {
    /// Continues what the journal holds, or begins.
    pub(crate) fn open(
        id: SessionId,
        directory: PathBuf,
        servers: Vec<McpServerStdio>,
        journal: Journal,
        connection: ConnectionTo<Client>,
        output: Arc<Output>,
    ) -> io::Result<Self> {
        let story = journal.story()?;
        let servers = Servers::start(servers, &directory);
        let mode = story.mode.as_deref().and_then(Mode::named);
        Ok(Self {
            id,
            directory,
            connection,
            output,
            servers,
            allowed: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            state: Mutex::new(Inner {
                journal,
                mode: mode.unwrap_or(Mode::Auto),
                turns: story.turns,
                cost: story.cost,
                turn: None,
            }),
        })
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.id
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn connection(&self) -> &ConnectionTo<Client> {
        &self.connection
    }

    pub(crate) fn output(&self) -> &Output {
        &self.output
    }

    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    pub(crate) fn turns(&self) -> usize {
        self.inner().turns
    }

    /// Whether shell commands need to be asked for.
    pub(crate) fn asks(&self) -> bool {
        match self.inner().mode {
            Mode::Ask => !self.allowed.load(Ordering::Relaxed),
            Mode::Each => true,
            Mode::Auto => false,
        }
    }

    /// Whether tools need to be asked for, too.
    pub(crate) fn asks_for_each(&self) -> bool {
        self.inner().mode == Mode::Each
    }

    /// From now on nothing is asked for, for as long as this process lives and is in mode `ask`.
    pub(crate) fn allow_always(&self) {
        self.allowed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn modes(&self) -> SessionModeState {
        let modes = vec![
            SessionMode::new(Mode::Ask.name(), "Ask")
                .description("Asks before it runs a shell command".to_owned()),
            SessionMode::new(Mode::Each.name(), "Ask each time")
                .description("Asks before each shell command and each tool".to_owned()),
            SessionMode::new(Mode::Auto.name(), "Auto").description("Asks for nothing".to_owned()),
        ];
        SessionModeState::new(self.inner().mode.name(), modes)
    }

    pub(crate) fn set_mode(&self, mode: Mode) -> io::Result<()> {
        let mut inner = self.inner();
        inner.journal.append(&Entry::Mode(mode.name().to_owned()))?;
        inner.mode = mode;
        self.allowed.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Begins a turn, unless one is running.
    pub(crate) fn begin(&self, prompt: &str) -> io::Result<Option<CancellationToken>> {
        let mut inner = self.inner();
        if inner.turn.is_some() {
            return Ok(None);
        }
        inner.journal.append(&Entry::Prompt(prompt.to_owned()))?;
        inner.turns += 1;
        let token = CancellationToken::new();
        inner.turn = Some(token.clone());
        Ok(Some(token))
    }

    pub(crate) fn end(&self) {
        self.inner().turn = None;
    }

    /// Ends the running line, if any.
    pub(crate) fn cancel(&self) {
        if let Some(turn) = &self.inner().turn {
            turn.cancel();
        }
    }

    /// Adds to what the session has cost, and returns the sum.
    pub(crate) fn spend(&self, usd: f64) -> io::Result<f64> {
        let mut inner = self.inner();
        inner.journal.append(&Entry::Cost(usd))?;
        inner.cost += usd;
        Ok(inner.cost)
    }

    /// A name for a tool call that no other of this session has, restarts included.
    pub(crate) fn next_call(&self) -> ToolCallId {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        ToolCallId::new(format!("call-{}-{call}", self.turns()))
    }

    /// Sends an update and keeps it.
    pub(crate) async fn update(&self, update: SessionUpdate) -> io::Result<()> {
        self.keep(&update)?;
        self.send(update).await;
        Ok(())
    }

    /// Keeps an update without sending it.
    pub(crate) fn keep(&self, update: &SessionUpdate) -> io::Result<()> {
        let entry = Entry::Update(Box::new(update.clone()));
        self.inner().journal.append(&entry)
    }

    /// Sends an update without keeping it.
    pub(crate) async fn send(&self, update: SessionUpdate) {
        self.output.admit().await;
        let notification = SessionNotification::new(self.id.clone(), update);
        // It fails only when the client is gone, and then so are we.
        let _ = self.connection.send_notification(notification);
    }

    /// Sends the conversation so far.
    pub(crate) async fn replay(&self) -> io::Result<()> {
        let entries = self.inner().journal.entries()?;
        for entry in entries {
            match entry {
                Entry::Prompt(text) => {
                    let chunk = ContentChunk::new(text.into());
                    self.send(SessionUpdate::UserMessageChunk(chunk)).await;
                }
                Entry::Update(update) => self.send(*update).await,
                Entry::Mode(_) | Entry::Cost(_) => {}
            }
        }
        Ok(())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
