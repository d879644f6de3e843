//! The connection to the supervisor of one container: requests out, replies and exits in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oubliette_model::quoted;
use oubliette_runtime::ContainerId;
use oubliette_wire::{
    Exited, Forget, LineReader, Message, PROTOCOL_VERSION, ProcessFault, ProcessFaultKind,
    RpcError, Supervise, Supervised, codes, supervisor_methods,
};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::Stream;

/// The connection is closed when the supervisor does not reply within this time.
const REPLY_TIMEOUT: Duration = Duration::from_secs(15);
/// Reports of thousands of processes fit into a message of this size.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
const MAX_QUEUED_REQUESTS: usize = 256;
/// The first version of the protocol in which the client makes the homes of agents.
const MIN_PROTOCOL_FOR_HOMES: u32 = 2;
/// More than a supervisor runs.
const MAX_EXITS: usize = 8192;
/// Longer than any id that the server gives to a process.
const MAX_PROCESS_ID_BYTES: usize = 256;

/// Why a request to a supervisor failed.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The connection was closed before the request could be sent.
    NotSent,
    /// The connection was lost: the supervisor connects again, or the container has ended.
    ConnectionLost,
    Rejected {
        kind: ProcessFaultKind,
        message: String,
    },
}

type PendingReplies = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<Value, RpcError>>>>>;
type Exits = watch::Sender<HashMap<String, Exited>>;

/// A connection to a supervisor.
#[derive(Debug)]
pub struct SupervisorLink {
    container: ContainerId,
    boot_id: String,
    protocol: u32,
    has_gateway: bool,
    requests: mpsc::Sender<Vec<u8>>,
    pending_replies: PendingReplies,
    next_request_id: AtomicU64,
    exits: Exits,
    closed: CancellationToken,
    container_ended: CancellationToken,
    /// Whether the server is stopping the container, so that every exit in it is the server's doing.
    is_stopping: AtomicBool,
}

impl SupervisorLink {
    /// Makes a link of a connection on which the supervisor has authenticated itself. The future
    /// serves the connection until it ends.
    pub(super) fn open(
        container: ContainerId,
        hello: Supervise,
        mut stream: Box<dyn Stream>,
        rest: Vec<u8>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (requests, mut outgoing) = mpsc::channel::<Vec<u8>>(MAX_QUEUED_REQUESTS);
        let pending_replies = PendingReplies::default();
        let closed = CancellationToken::new();
        let reports = hello.processes.into_iter();
        let known_exits = reports
            .filter_map(|report| report.exited)
            .map(|exited| (exited.process_id.clone(), exited));
        let exits = watch::Sender::new(known_exits.collect());
        let link = Self {
            container,
            boot_id: hello.boot_id,
            protocol: hello.protocol,
            has_gateway: hello.gateway,
            requests,
            pending_replies: pending_replies.clone(),
            next_request_id: AtomicU64::new(1),
            exits: exits.clone(),
            closed: closed.clone(),
            container_ended: CancellationToken::new(),
            is_stopping: AtomicBool::new(false),
        };
        let serving = async move {
            let greeting = Supervised {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                protocol: PROTOCOL_VERSION,
            };
            let greeting = serde_json::to_value(greeting).unwrap_or_default();
            let mut out = Message::reply(Value::from(0), Ok(greeting)).to_line();
            let mut lines = LineReader::new(MAX_MESSAGE_BYTES);
            lines.push(&rest);
            let mut chunk = vec![0; 16 << 10];
            loop {
                while let Some(line) = lines.next_line() {
                    let reply = line
                        .ok()
                        .and_then(|line| handle_line(&line, &pending_replies, &exits));
                    out.extend(reply.map(|reply| reply.to_line()).unwrap_or_default());
                }
                if !out.is_empty() {
                    if stream.write_all(&out).await.is_err() {
                        break;
                    }
                    out.clear();
                }
                tokio::select! {
                    read = stream.read(&mut chunk) => match read {
                        Ok(0) | Err(_) => break,
                        Ok(read) => lines.push(&chunk[..read]),
                    },
                    () = closed.cancelled() => break,
                    request = outgoing.recv() => match request {
                        Some(request) => {
                            out.extend(request);
                            while let Ok(more) = outgoing.try_recv() {
                                out.extend(more);
                            }
                        }
                        None => break,
                    },
                }
            }
            closed.cancel();
            // Dropping the senders ends the requests that wait for a reply.
            pending_replies.lock().clear();
        };
        (link, serving)
    }

    /// Whether the client of the container makes the homes of agents (`AGENT_SUBCOMMAND`).
    pub(crate) fn makes_homes(&self) -> bool {
        self.protocol >= MIN_PROTOCOL_FOR_HOMES
    }

    /// Whether programs of the container reach the gateway to models.
    pub(crate) fn has_gateway(&self) -> bool {
        self.has_gateway
    }

    pub(super) fn container(&self) -> &ContainerId {
        &self.container
    }

    /// Identifies one boot of the container: with another one, all earlier processes are gone.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    pub fn is_open(&self) -> bool {
        !self.closed.is_cancelled()
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    pub(super) fn mark_stopping(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Records that the container has ended, so that no caller waits for the next connection.
    pub(super) fn mark_container_ended(&self) {
        self.container_ended.cancel();
        self.close();
    }

    pub(super) async fn container_ended(&self) {
        self.container_ended.cancelled().await;
    }

    pub(super) async fn request(
        &self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<Value, LinkError> {
        if !self.is_open() {
            return Err(LinkError::NotSent);
        }
        let id = self.next_request_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.pending_replies.lock().insert(id, sender);
        let line = Message::request(id, method, params).to_line();
        let exchange = async {
            self.requests.send(line).await.ok()?;
            receiver.await.ok()
        };
        let reply = tokio::select! {
            reply = tokio::time::timeout(REPLY_TIMEOUT, exchange) => reply.unwrap_or_else(|_| {
                // The supervisor connects again, and the next connection may work.
                self.close();
                None
            }),
            () = self.closed() => None,
        };
        self.pending_replies.lock().remove(&id);
        match reply {
            Some(Ok(result)) => Ok(result),
            Some(Err(error)) => {
                let fault = error
                    .data
                    .and_then(|data| serde_json::from_value::<ProcessFault>(data).ok());
                Err(LinkError::Rejected {
                    kind: fault.map_or(ProcessFaultKind::Other, |fault| fault.kind),
                    message: error.message,
                })
            }
            None => Err(LinkError::ConnectionLost),
        }
    }

    pub(super) async fn notify(&self, method: &str, params: &impl Serialize) {
        let line = Message::notification(method, params).to_line();
        tokio::select! {
            _ = self.requests.send(line) => {}
            () = self.closed() => {}
        }
    }

    /// Waits until a process has exited.
    pub(super) async fn exited(&self, process_id: &str) -> Result<Exited, LinkError> {
        let mut exits = self.exits.subscribe();
        tokio::select! {
            exited = exits.wait_for(|exits| exits.contains_key(process_id)) => {
                let exited = exited.map_err(|_| LinkError::ConnectionLost)?;
                exited.get(process_id).cloned().ok_or(LinkError::ConnectionLost)
            }
            () = self.closed() => Err(LinkError::ConnectionLost),
        }
    }

    /// Lets the supervisor forget a process that has exited.
    pub(super) async fn forget(&self, process_id: &str) {
        self.exits.send_if_modified(|exits| {
            exits.remove(process_id);
            false
        });
        let forget = Forget {
            process_id: process_id.to_owned(),
        };
        self.notify(supervisor_methods::FORGET, &forget).await;
    }
}

/// Handles a line from the supervisor and returns the reply, if it is a request. Lines that cannot be
/// parsed are dropped.
fn handle_line(line: &[u8], pending_replies: &PendingReplies, exits: &Exits) -> Option<Message> {
    let message = serde_json::from_slice::<Message>(line).ok()?;
    if message.method.as_deref() == Some(supervisor_methods::EXITED) {
        if let Ok(exited) = message.params::<Exited>() {
            exits.send_if_modified(|exits| {
                let is_accepted =
                    exits.len() < MAX_EXITS && exited.process_id.len() <= MAX_PROCESS_ID_BYTES;
                if is_accepted {
                    exits.insert(exited.process_id.clone(), exited);
                }
                is_accepted
            });
        }
        return None;
    }
    if let Some(method) = &message.method {
        let error = RpcError::new(
            codes::METHOD_NOT_FOUND,
            format!("unknown method {}", quoted(method)),
        );
        return message.id.map(|id| Message::reply(id, Err(error)));
    }
    let id = message.id.as_ref().and_then(Value::as_u64)?;
    let reply = pending_replies.lock().remove(&id)?;
    let _ = reply.send(match (message.result, message.error) {
        (_, Some(error)) => Err(error),
        (Some(result), None) => Ok(result),
        (None, None) => Err(RpcError::new(
            codes::INVALID_REQUEST,
            "a reply without a result",
        )),
    });
    None
}
