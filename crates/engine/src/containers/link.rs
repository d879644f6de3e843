//! The connection to one supervisor: requests out, replies and exits in.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oubliette_model::quoted;
use oubliette_runtime::ContainerId;
use oubliette_wire::{
    Exited, Lines, Message, PROTOCOL_VERSION, ProcessFault, ProcessFaultKind, RpcError, Supervise,
    Supervised, codes, supervisor_methods,
};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Flag, Stream, lock};

/// A supervisor that does not answer a request within this time is taken for lost.
const ANSWER: Duration = Duration::from_secs(15);
/// Most bytes of one message from a supervisor: reports of thousands of processes fit.
const LONGEST: usize = 4 << 20;
const WAITING: usize = 256;
/// More than a supervisor looks after.
const MOST_EXITS: usize = 8192;
/// Longer than any name that is given to a process.
const LONGEST_NAME: usize = 256;

/// Why a request to a supervisor failed.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// The connection was gone before anything was said on it.
    Unsaid,
    /// The connection is gone; the supervisor will be back, or the container has ended.
    Lost,
    /// The supervisor said no.
    Told { kind: ProcessFaultKind, why: String },
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<Value, RpcError>>>>>;

/// A live connection to a supervisor.
#[derive(Debug)]
pub struct Link {
    container: ContainerId,
    boot_id: String,
    requests: mpsc::Sender<Vec<u8>>,
    waiting: Waiting,
    next: AtomicU64,
    exits: watch::Sender<HashMap<String, Exited>>,
    lost: Arc<Flag>,
    ended: Flag,
    /// Whatever ends now in the container ends because of us.
    stopping: AtomicBool,
}

impl Link {
    /// Makes a link of a connection on which the supervisor has introduced itself; the future
    /// serves it to its end.
    pub(super) fn open(
        container: ContainerId,
        hello: Supervise,
        mut stream: Box<dyn Stream>,
        rest: Vec<u8>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (requests, mut outgoing) = mpsc::channel::<Vec<u8>>(WAITING);
        let waiting = Waiting::default();
        let lost = Arc::new(Flag::default());
        let known = hello
            .processes
            .into_iter()
            .filter_map(|report| report.exited);
        let known = known
            .map(|exited| (exited.process_id.clone(), exited))
            .collect();
        let exits = watch::Sender::new(known);
        let link = Self {
            container,
            boot_id: hello.boot_id,
            requests,
            waiting: waiting.clone(),
            next: AtomicU64::new(1),
            exits: exits.clone(),
            lost: lost.clone(),
            ended: Flag::default(),
            stopping: AtomicBool::new(false),
        };
        let given_up = lost.clone();
        let serving = async move {
            let greeting = Supervised {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                protocol: PROTOCOL_VERSION,
            };
            let greeting = serde_json::to_value(greeting).unwrap_or_default();
            let mut out = Message::reply(Value::from(0), Ok(greeting)).to_line();
            let mut lines = Lines::new(LONGEST);
            lines.push(&rest);
            let mut chunk = vec![0; 16 << 10];
            loop {
                while let Some(line) = lines.next_line() {
                    let reply = line.ok().and_then(|line| hear(&line, &waiting, &exits));
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
                    () = given_up.raised() => break,
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
            lost.raise();
            // Whoever waits for an answer hears that none will come.
            lock(&waiting).clear();
        };
        (link, serving)
    }

    pub(crate) fn container(&self) -> &ContainerId {
        &self.container
    }

    /// One life of the container: another one means that every process of before is gone.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    pub fn is_open(&self) -> bool {
        !self.lost.is_raised()
    }

    /// Gives the connection up.
    pub(crate) fn lose(&self) {
        self.lost.raise();
    }

    pub(crate) async fn lost(&self) {
        self.lost.raised().await;
    }

    /// Notes that the container is about to be stopped.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Notes that the container has ended, so that nobody waits for its supervisor.
    pub(crate) fn end(&self) {
        self.ended.raise();
        self.lose();
    }

    pub(crate) async fn ended(&self) {
        self.ended.raised().await;
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<Value, LinkError> {
        if !self.is_open() {
            return Err(LinkError::Unsaid);
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, reply) = oneshot::channel();
        lock(&self.waiting).insert(id, answer);
        let line = Message::request(id, method, params).to_line();
        let asked = async {
            self.requests.send(line).await.ok()?;
            reply.await.ok()
        };
        let reply = tokio::select! {
            reply = tokio::time::timeout(ANSWER, asked) => match reply {
                Ok(reply) => reply,
                Err(_) => {
                    // The next connection may do better.
                    self.lose();
                    None
                }
            },
            () = self.lost() => None,
        };
        lock(&self.waiting).remove(&id);
        match reply {
            Some(Ok(result)) => Ok(result),
            Some(Err(error)) => {
                let kind = error
                    .data
                    .and_then(|data| serde_json::from_value::<ProcessFault>(data).ok());
                let kind = kind.map_or(ProcessFaultKind::Other, |fault| fault.kind);
                Err(LinkError::Told {
                    kind,
                    why: error.message,
                })
            }
            None => Err(LinkError::Lost),
        }
    }

    /// Says something that needs no answer.
    pub(crate) async fn tell(&self, method: &str, params: &impl Serialize) {
        let line = Message::notification(method, params).to_line();
        tokio::select! {
            _ = self.requests.send(line) => {}
            () = self.lost() => {}
        }
    }

    /// How a process ended, when it has.
    pub(crate) async fn exited(&self, process_id: &str) -> Result<Exited, LinkError> {
        let mut exits = self.exits.subscribe();
        tokio::select! {
            exited = exits.wait_for(|exits| exits.contains_key(process_id)) => {
                let exited = exited.map_err(|_| LinkError::Lost)?;
                exited.get(process_id).cloned().ok_or(LinkError::Lost)
            }
            () = self.lost() => Err(LinkError::Lost),
        }
    }

    /// Lets go of a process that has ended.
    pub(crate) async fn forget(&self, process_id: &str) {
        self.exits.send_if_modified(|exits| {
            exits.remove(process_id);
            false
        });
        let forget = oubliette_wire::Forget {
            process_id: process_id.to_owned(),
        };
        self.tell(supervisor_methods::FORGET, &forget).await;
    }
}

/// Takes in a line from the supervisor; the answer to a request, of which this version knows none.
/// What makes no sense is dropped.
fn hear(
    line: &[u8],
    waiting: &Waiting,
    exits: &watch::Sender<HashMap<String, Exited>>,
) -> Option<Message> {
    let message = serde_json::from_slice::<Message>(line).ok()?;
    if message.method.as_deref() == Some(supervisor_methods::EXITED) {
        if let Ok(exited) = message.params::<Exited>() {
            exits.send_if_modified(|exits| {
                let room = exits.len() < MOST_EXITS && exited.process_id.len() <= LONGEST_NAME;
                if room {
                    exits.insert(exited.process_id.clone(), exited);
                }
                room
            });
        }
        return None;
    }
    if let Some(method) = &message.method {
        let why = format!("there is no method {}", quoted(method));
        let error = RpcError::new(codes::METHOD_NOT_FOUND, why);
        return message.id.map(|id| Message::reply(id, Err(error)));
    }
    let id = message.id.as_ref().and_then(Value::as_u64)?;
    let answer = lock(waiting).remove(&id)?;
    let _ = answer.send(match (message.result, message.error) {
        (_, Some(error)) => Err(error),
        (Some(result), None) => Ok(result),
        (None, None) => Err(RpcError::new(
            codes::INVALID_REQUEST,
            "a reply without a result",
        )),
    });
    None
}
