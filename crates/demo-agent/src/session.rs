//! One conversation: its directory, mode, journal and connection to the client.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentChunk, McpServerStdio, SessionId, SessionMode, SessionModeState, SessionNotification,
    SessionUpdate, ToolCallId,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::journal::{Entry, Journal};
use crate::mcp_servers::McpServers;
use crate::output::Output;

/// When the agent requests permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Before shell commands and tool calls, until the client always allows them.
    Ask,
    /// Before each shell command and each tool call.
    Each,
    Auto,
}

impl Mode {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
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
    servers: McpServers,
    always_allowed: AtomicBool,
    tool_calls: AtomicU64,
    state: Mutex<SessionState>,
}

#[derive(Debug)]
struct SessionState {
    journal: Journal,
    mode: Mode,
    turns: usize,
    cost_usd: f64,
    /// Cancels the running turn.
    turn: Option<CancellationToken>,
}

impl Session {
    /// Opens a session in the state that its journal describes.
    pub(crate) fn open(
        id: SessionId,
        directory: PathBuf,
        servers: Vec<McpServerStdio>,
        journal: Journal,
        connection: ConnectionTo<Client>,
        output: Arc<Output>,
    ) -> io::Result<Self> {
        let summary = journal.summary()?;
        let servers = McpServers::start(servers, &directory);
        let mode = summary.mode.as_deref().and_then(Mode::from_name);
        Ok(Self {
            id,
            directory,
            connection,
            output,
            servers,
            always_allowed: AtomicBool::new(false),
            tool_calls: AtomicU64::new(0),
            state: Mutex::new(SessionState {
                journal,
                mode: mode.unwrap_or(Mode::Auto),
                turns: summary.turns,
                cost_usd: summary.cost_usd,
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

    pub(crate) fn servers(&self) -> &McpServers {
        &self.servers
    }

    pub(crate) fn turns(&self) -> usize {
        self.state.lock().turns
    }

    pub(crate) fn calls_need_permission(&self) -> bool {
        match self.state.lock().mode {
            Mode::Ask => !self.always_allowed.load(Ordering::Relaxed),
            Mode::Each => true,
            Mode::Auto => false,
        }
    }

    /// In mode `ask`, this process requests no more permissions.
    pub(crate) fn allow_always(&self) {
        self.always_allowed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn modes(&self) -> SessionModeState {
        let modes = vec![
            SessionMode::new(Mode::Ask.name(), "Ask")
                .description("Asks before it runs a shell command or calls a tool".to_owned()),
            SessionMode::new(Mode::Each.name(), "Ask each time")
                .description("Asks before each shell command and each tool".to_owned()),
            SessionMode::new(Mode::Auto.name(), "Auto").description("Asks for nothing".to_owned()),
        ];
        SessionModeState::new(self.state.lock().mode.name(), modes)
    }

    pub(crate) fn set_mode(&self, mode: Mode) -> io::Result<()> {
        let mut state = self.state.lock();
        state.journal.append(&Entry::Mode(mode.name().to_owned()))?;
        state.mode = mode;
        self.always_allowed.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Starts a turn; none if one is running.
    pub(crate) fn start_turn(&self, prompt: &str) -> io::Result<Option<CancellationToken>> {
        let mut state = self.state.lock();
        if state.turn.is_some() {
            return Ok(None);
        }
        state.journal.append(&Entry::Prompt(prompt.to_owned()))?;
        state.turns += 1;
        let token = CancellationToken::new();
        state.turn = Some(token.clone());
        Ok(Some(token))
    }

    pub(crate) fn end_turn(&self) {
        self.state.lock().turn = None;
    }

    /// Cancels the running turn, if any.
    pub(crate) fn cancel(&self) {
        if let Some(turn) = &self.state.lock().turn {
            turn.cancel();
        }
    }

    /// Adds to the cost of the session and returns the sum.
    pub(crate) fn add_cost(&self, usd: f64) -> io::Result<f64> {
        let mut state = self.state.lock();
        state.journal.append(&Entry::Cost(usd))?;
        state.cost_usd += usd;
        Ok(state.cost_usd)
    }

    /// An id for a tool call that is unique in this session, also after a restart.
    pub(crate) fn next_tool_call_id(&self) -> ToolCallId {
        let call = self.tool_calls.fetch_add(1, Ordering::Relaxed) + 1;
        ToolCallId::new(format!("call-{}-{call}", self.turns()))
    }

    /// Writes an update to the journal and sends it.
    pub(crate) async fn update(&self, update: SessionUpdate) -> io::Result<()> {
        self.record(&update)?;
        self.send(update).await;
        Ok(())
    }

    /// Writes an update to the journal without sending it.
    pub(crate) fn record(&self, update: &SessionUpdate) -> io::Result<()> {
        let entry = Entry::Update(Box::new(update.clone()));
        self.state.lock().journal.append(&entry)
    }

    /// Sends an update without writing it to the journal.
    pub(crate) async fn send(&self, update: SessionUpdate) {
        self.output.reserve_update().await;
        let notification = SessionNotification::new(self.id.clone(), update);
        // Fails only when the client has disconnected, which ends this process.
        let _ = self.connection.send_notification(notification);
    }

    /// Sends the conversation again.
    pub(crate) async fn replay(&self) -> io::Result<()> {
        let entries = self.state.lock().journal.entries()?;
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
}
