//! The connection to the relay, which is made again whenever it breaks.
//!
//! A call without a reply is sent again on the next connection. Calls that must happen once carry a
//! `call_id`, by which the server recognises a repeated call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oubliette_wire::{
    Attach, CallerTools, Cancel, LineReader, ListTools, MAX_LINE_BYTES, Message, RpcError,
    ToolList, codes, relay_methods,
};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::log;
use super::settings::Settings;
use super::tool_registry::ToolRegistry;

const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(20);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// How long a call waits for a server before it fails.
const CALL_TIMEOUT: Duration = Duration::from_secs(600);
const COMMAND_QUEUE_LENGTH: usize = 64;
const READ_BUFFER_BYTES: usize = 8 << 10;

type Outcome = Result<Value, RpcError>;

/// Sends calls to the server.
#[derive(Clone)]
pub(super) struct RelayConnection {
    commands: mpsc::Sender<Command>,
    next_id: Arc<AtomicU64>,
}

/// A call without a reply.
struct PendingCall {
    method: &'static str,
    params: Map<String, Value>,
    started: Instant,
    reply: oneshot::Sender<Outcome>,
    /// Whether a server may have received it.
    sent: bool,
    /// The agent cancelled it while there was no server; the next one receives the cancellation.
    cancelled: bool,
}

enum Command {
    Call(u64, PendingCall),
    Cancel(u64),
}

/// Cancels a call whose future is dropped.
struct CancelOnDrop<'a> {
    relay: &'a RelayConnection,
    id: Option<u64>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // If the queue is full, the reply arrives and is ignored.
            let _ = self.relay.commands.try_send(Command::Cancel(id));
        }
    }
}

impl RelayConnection {
    /// The handle, and the future that runs the connection.
    pub(super) fn new(
        settings: Settings,
        tools: Arc<ToolRegistry>,
    ) -> (Self, impl Future<Output = ()>) {
        let (sender, commands) = mpsc::channel(COMMAND_QUEUE_LENGTH);
        let relay = Self {
            commands: sender,
            next_id: Arc::new(AtomicU64::new(1)),
        };
        let task = ConnectionTask {
            settings,
            tools,
            commands,
            pending: BTreeMap::new(),
        };
        (relay, task.run())
    }

    /// Calls a method of the server. Dropping the future cancels the call.
    pub(super) async fn call(&self, method: &'static str, params: Map<String, Value>) -> Outcome {
        let (reply, outcome) = oneshot::channel();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let call = PendingCall {
            method,
            params,
            started: Instant::now(),
            reply,
            sent: false,
            cancelled: false,
        };
        let stopped = || RpcError::new(codes::FAILED, "the client is being stopped");
        let mut cancel = CancelOnDrop {
            relay: self,
            id: Some(id),
        };
        self.commands
            .send(Command::Call(id, call))
            .await
            .map_err(|_| stopped())?;
        let outcome = outcome.await;
        cancel.id = None;
        outcome.map_err(|_| stopped())?
    }
}

struct ConnectionTask {
    settings: Settings,
    tools: Arc<ToolRegistry>,
    commands: mpsc::Receiver<Command>,
    /// In the order in which they were made.
    pending: BTreeMap<u64, PendingCall>,
}

impl ConnectionTask {
    async fn run(mut self) {
        if self.settings.session.is_none() && self.settings.api_key.is_none() {
            log("neither OUBLIETTE_SESSION_ID nor OUBLIETTE_API_KEY is set; there are no tools");
            return std::future::pending().await;
        }
        let (mut delay, mut warned) = (MIN_RECONNECT_DELAY, false);
        loop {
            match UnixStream::connect(&self.settings.socket).await {
                Ok(stream) => {
                    warned = false;
                    if self.serve(stream).await {
                        delay = MIN_RECONNECT_DELAY;
                    }
                }
                Err(error) if !warned => {
                    warned = true;
                    let socket = self.settings.socket.display();
                    log(&format!(
                        "cannot connect to the server at {socket}: {error}; trying again"
                    ));
                }
                Err(_) => {}
            }
            self.wait_disconnected(delay).await;
            delay = (delay * 2).min(MAX_RECONNECT_DELAY);
        }
    }

    /// Waits before the next connection, and fails calls that have waited too long.
    async fn wait_disconnected(&mut self, delay: Duration) {
        let end = Instant::now() + delay;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => break,
                Some(command) = self.commands.recv() => match command {
                    Command::Call(id, call) => drop(self.pending.insert(id, call)),
                    Command::Cancel(id) => self.cancel_disconnected(id),
                },
            }
        }
        let timed_out: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, call)| call.started.elapsed() > CALL_TIMEOUT)
            .map(|(id, _)| *id)
            .collect();
        for id in timed_out {
            let why = "the server did not reply; it is not known whether the call took effect";
            self.complete(id, Err(RpcError::new(codes::FAILED, why)));
        }
    }

    /// Cancels a call while there is no server. The caller can already have received a request for
    /// a tool of its own, so that one is sent to the next server once more, to be cancelled there.
    fn cancel_disconnected(&mut self, id: u64) {
        match self.pending.get_mut(&id) {
            Some(call) if call.sent && call.method == relay_methods::CALLER_TOOL => {
                call.cancelled = true;
            }
            _ => drop(self.pending.remove(&id)),
        }
    }

    fn complete(&mut self, id: u64, outcome: Outcome) {
        if let Some(call) = self.pending.remove(&id) {
            let _ = call.reply.send(outcome);
        }
    }

    /// Serves one connection to its end; whether the server sent anything.
    async fn serve(&mut self, stream: UnixStream) -> bool {
        let (mut reader, mut writer) = stream.into_split();
        let mut received = false;
        if writer.write_all(&self.opening_lines()).await.is_err() {
            return received;
        }
        let mut lines = LineReader::default();
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        let mut warned = false;
        loop {
            while let Some(line) = lines.next_line() {
                match line {
                    Ok(line) => self.handle_line(&line),
                    Err(_) if !warned => {
                        warned = true;
                        log(&format!(
                            "warning: the server sent a line of more than {MAX_LINE_BYTES} bytes, \
                             which was skipped; if it was a reply, its call gets none"
                        ));
                    }
                    Err(_) => {}
                }
            }
            tokio::select! {
                read = reader.read(&mut buffer) => match read {
                    Ok(0) | Err(_) => return received,
                    Ok(read) => {
                        received = true;
                        lines.push(&buffer[..read]);
                    }
                },
                Some(command) = self.commands.recv() => {
                    if self.execute(command, &mut writer).await.is_err() {
                        return received;
                    }
                }
            }
        }
    }

    /// The first lines of a connection: authentication, and the pending calls.
    fn opening_lines(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        // The id of these requests is their method.
        if let Some(session) = &self.settings.session {
            let attach = Attach {
                session_id: session.id.clone(),
                session_key: session.key.clone(),
                reports_listing: true,
            };
            let method = relay_methods::ATTACH;
            out.extend(Message::request(method, method, &attach).to_line());
        }
        if let Some(key) = &self.settings.api_key {
            let list = ListTools {
                api_key: key.clone(),
            };
            let method = relay_methods::OUBLIETTE_TOOLS;
            out.extend(Message::request(method, method, &list).to_line());
        }
        for (id, call) in &mut self.pending {
            call.sent = true;
            out.extend(call.to_line(*id));
            if call.cancelled {
                out.extend(cancel_line(*id));
            }
        }
        out
    }

    async fn execute(
        &mut self,
        command: Command,
        writer: &mut OwnedWriteHalf,
    ) -> std::io::Result<()> {
        match command {
            Command::Call(id, mut call) => {
                let line = call.to_line(id);
                call.sent = true;
                self.pending.insert(id, call);
                writer.write_all(&line).await
            }
            Command::Cancel(id) => {
                let Some(call) = self.pending.remove(&id) else {
                    return Ok(());
                };
                let written = writer.write_all(&cancel_line(id)).await;
                if written.is_err() {
                    self.pending.insert(id, call);
                    self.cancel_disconnected(id);
                }
                written
            }
        }
    }

    fn handle_line(&mut self, line: &[u8]) {
        let Ok(mut message) = serde_json::from_slice::<Message>(line) else {
            return;
        };
        if let Some(tools) = CallerTools::from_message(&message) {
            self.tools.set_caller_tools(tools);
            return;
        }
        let id = message.id.take();
        let outcome = message.into_outcome().unwrap_or(Ok(Value::Null));
        match id {
            Some(Value::String(method)) if method == relay_methods::ATTACH => {
                self.handle_attached(outcome);
            }
            Some(Value::String(method)) if method == relay_methods::OUBLIETTE_TOOLS => {
                self.handle_tools(outcome);
            }
            Some(Value::Number(id)) => {
                if let Some(id) = id.as_u64() {
                    self.complete(id, outcome);
                }
            }
            _ => {}
        }
    }

    fn handle_attached(&self, outcome: Outcome) {
        if let Err(error) = outcome {
            log(&format!(
                "the server rejected the session key: {}",
                error.message
            ));
            self.tools.set_caller_tools(CallerTools::default());
        }
    }

    fn handle_tools(&self, outcome: Outcome) {
        let list = outcome.and_then(|list| {
            serde_json::from_value::<ToolList>(list)
                .map_err(|error| RpcError::new(codes::FAILED, error.to_string()))
        });
        self.tools.set_oubliette_tools(list.unwrap_or_else(|error| {
            log(&format!(
                "warning: no tools of Oubliette: {} (OUBLIETTE_API_KEY)",
                error.message
            ));
            ToolList::default()
        }));
    }
}

impl PendingCall {
    /// The request as a line. A repeated call waits only for the rest of its `wait_seconds`.
    fn to_line(&self, id: u64) -> Vec<u8> {
        let mut params = self.params.clone();
        if let Some(wait) = params.get("wait_seconds").and_then(Value::as_f64) {
            let left = (wait - self.started.elapsed().as_secs_f64()).max(0.0);
            if left < wait - 1.0 {
                params.insert("wait_seconds".to_owned(), left.into());
            }
        }
        Message::request(id, self.method, &params).to_line()
    }
}

fn cancel_line(id: u64) -> Vec<u8> {
    Message::notification(relay_methods::CANCEL, &Cancel { id: id.into() }).to_line()
}
