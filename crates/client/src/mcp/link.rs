//! The server's side: one connection to the relay, made again whenever it breaks.
//!
//! A call that has no answer yet is asked again on the next connection. It carries its own name
//! where that matters, so that the server knows it for the same call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oubliette_wire::{
    Attach, CallerTools, Cancel, LineReader, ListTools, MAX_LINE_BYTES, Message, RpcError,
    ToolList, calls, codes,
};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::say;
use super::settings::Settings;
use super::tools::Tools;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A call that no server answers for so long has failed.
const PATIENCE: Duration = Duration::from_secs(600);
const WAITING: usize = 64;

type Outcome = Result<Value, RpcError>;

/// The way to the server, for calls.
#[derive(Clone)]
pub(super) struct Link {
    to_task: mpsc::Sender<Order>,
    next: Arc<AtomicU64>,
}

/// A call on its way.
struct Asked {
    method: &'static str,
    params: Map<String, Value>,
    since: Instant,
    reply: oneshot::Sender<Outcome>,
    /// Whether a server may have heard of it.
    said: bool,
    /// Nobody waits for its answer, and a server has to be told so.
    unwanted: bool,
}

enum Order {
    Ask(u64, Asked),
    /// Nobody waits for the answer any more.
    Cancel(u64),
}

/// Tells the server when a call is given up.
struct Unwanted<'a> {
    link: &'a Link,
    id: Option<u64>,
}

impl Drop for Unwanted<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // When the queue is full the answer comes and nobody takes it.
            let _ = self.link.to_task.try_send(Order::Cancel(id));
        }
    }
}

impl Link {
    /// The link, and what has to run for it to work.
    pub(super) fn new(settings: Settings, tools: Arc<Tools>) -> (Self, impl Future<Output = ()>) {
        let (to_task, orders) = mpsc::channel(WAITING);
        let link = Self {
            to_task,
            next: Arc::new(AtomicU64::new(1)),
        };
        let task = Task {
            settings,
            tools,
            orders,
            pending: BTreeMap::new(),
        };
        (link, task.run())
    }

    /// Asks the server. Dropping the future gives the call up.
    pub(super) async fn call(&self, method: &'static str, params: Map<String, Value>) -> Outcome {
        let (reply, answer) = oneshot::channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let asked = Asked {
            method,
            params,
            since: Instant::now(),
            reply,
            said: false,
            unwanted: false,
        };
        let gone = || RpcError::new(codes::FAILED, "the client is being stopped");
        let mut unwanted = Unwanted {
            link: self,
            id: Some(id),
        };
        self.to_task
            .send(Order::Ask(id, asked))
            .await
            .map_err(|_| gone())?;
        let answer = answer.await;
        unwanted.id = None;
        answer.map_err(|_| gone())?
    }
}

struct Task {
    settings: Settings,
    tools: Arc<Tools>,
    orders: mpsc::Receiver<Order>,
    /// Calls without an answer, in the order they were made.
    pending: BTreeMap<u64, Asked>,
}

impl Task {
    async fn run(mut self) {
        if self.settings.session.is_none() && self.settings.api_key.is_none() {
            say("neither OUBLIETTE_SESSION_ID nor OUBLIETTE_API_KEY is set; there are no tools");
            return std::future::pending().await;
        }
        let (mut pause, mut warned) = (FIRST_PAUSE, false);
        loop {
            match UnixStream::connect(&self.settings.socket).await {
                Ok(stream) => {
                    warned = false;
                    if self.converse(stream).await {
                        pause = FIRST_PAUSE;
                    }
                }
                Err(error) if !warned => {
                    warned = true;
                    let socket = self.settings.socket.display();
                    say(&format!(
                        "the server is not at {socket}: {error}; trying again"
                    ));
                }
                Err(_) => {}
            }
            self.pass(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Lets time pass without a server.
    async fn pass(&mut self, pause: Duration) {
        let end = Instant::now() + pause;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => break,
                Some(order) = self.orders.recv() => match order {
                    Order::Ask(id, asked) => drop(self.pending.insert(id, asked)),
                    Order::Cancel(id) => self.give_up(id),
                },
            }
        }
        let late: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, asked)| asked.since.elapsed() > PATIENCE)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let why = "the server did not answer; whether it has done what was asked is not known";
            self.settle(id, Err(RpcError::new(codes::FAILED, why)));
        }
    }

    /// Gives a call up while there is no server. What a caller may be asked for by then is named once more to
    /// the next one, to be cancelled; nothing else waits for anybody who would want to know.
    fn give_up(&mut self, id: u64) {
        match self.pending.get_mut(&id) {
            Some(asked) if asked.said && asked.method == calls::CALLER_TOOL => {
                asked.unwanted = true;
            }
            _ => drop(self.pending.remove(&id)),
        }
    }

    fn settle(&mut self, id: u64, outcome: Outcome) {
        if let Some(asked) = self.pending.remove(&id) {
            let _ = asked.reply.send(outcome);
        }
    }

    /// Talks on one connection to its end; whether the server said anything.
    async fn converse(&mut self, stream: UnixStream) -> bool {
        let (mut reader, mut writer) = stream.into_split();
        let mut greeted = false;
        if writer.write_all(&self.opening()).await.is_err() {
            return greeted;
        }
        let mut lines = LineReader::default();
        let mut chunk = vec![0; 8 << 10];
        let mut warned = false;
        loop {
            while let Some(line) = lines.next_line() {
                match line {
                    Ok(line) => self.hear(&line),
                    // Whose answer it was went with it.
                    Err(_) if !warned => {
                        warned = true;
                        say(&format!(
                            "warning: the server sent a line of more than {MAX_LINE_BYTES} bytes, which \
                             was left out; a call that it answers gets no answer"
                        ));
                    }
                    Err(_) => {}
                }
            }
            tokio::select! {
                read = reader.read(&mut chunk) => match read {
                    Ok(0) | Err(_) => return greeted,
                    Ok(read) => {
                        greeted = true;
                        lines.push(&chunk[..read]);
                    }
                },
                Some(order) = self.orders.recv() => {
                    if self.carry_out(order, &mut writer).await.is_err() {
                        return greeted;
                    }
                }
            }
        }
    }

    /// Who this is, which tools there are, and what was asked before without an answer.
    fn opening(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(session) = &self.settings.session {
            let attach = Attach {
                session_id: session.id.clone(),
                session_key: session.key.clone(),
            };
            out.extend(named(calls::ATTACH, &attach));
        }
        if let Some(key) = &self.settings.api_key {
            let list = ListTools {
                api_key: key.clone(),
            };
            out.extend(named(calls::OUBLIETTE_TOOLS, &list));
        }
        for (id, asked) in &mut self.pending {
            asked.said = true;
            out.extend(asked.line(*id));
            if asked.unwanted {
                out.extend(cancel(*id));
            }
        }
        out
    }

    async fn carry_out(
        &mut self,
        order: Order,
        writer: &mut OwnedWriteHalf,
    ) -> std::io::Result<()> {
        match order {
            Order::Ask(id, mut asked) => {
                let line = asked.line(id);
                asked.said = true;
                self.pending.insert(id, asked);
                writer.write_all(&line).await
            }
            Order::Cancel(id) => {
                let Some(asked) = self.pending.remove(&id) else {
                    return Ok(());
                };
                let told = writer.write_all(&cancel(id)).await;
                if told.is_err() {
                    self.pending.insert(id, asked);
                    self.give_up(id);
                }
                told
            }
        }
    }

    fn hear(&mut self, line: &[u8]) {
        let Ok(message) = serde_json::from_slice::<Message>(line) else {
            return;
        };
        if let Some(tools) = CallerTools::of(&message) {
            self.tools.set_caller(tools);
            return;
        }
        let outcome = match (message.error, message.result) {
            (Some(error), _) => Err(error),
            (None, result) => Ok(result.unwrap_or(Value::Null)),
        };
        match message.id {
            Some(Value::String(name)) if name == calls::ATTACH => self.hear_attached(outcome),
            Some(Value::String(name)) if name == calls::OUBLIETTE_TOOLS => {
                self.hear_tools(outcome);
            }
            Some(Value::Number(id)) => {
                if let Some(id) = id.as_u64() {
                    self.settle(id, outcome);
                }
            }
            _ => {}
        }
    }

    fn hear_attached(&self, outcome: Outcome) {
        if let Err(error) = outcome {
            say(&format!(
                "the server does not take this for its session: {}",
                error.message
            ));
            self.tools.set_caller(CallerTools::default());
        }
    }

    fn hear_tools(&self, outcome: Outcome) {
        let list = outcome.and_then(|list| {
            serde_json::from_value::<ToolList>(list)
                .map_err(|error| RpcError::new(codes::FAILED, error.to_string()))
        });
        self.tools.set_oubliette(list.unwrap_or_else(|error| {
            say(&format!(
                "warning: no tools of Oubliette: {} (OUBLIETTE_API_KEY)",
                error.message
            ));
            ToolList::default()
        }));
    }
}

impl Asked {
    /// As it is asked now: a wait that began earlier ends when it was to end.
    fn line(&self, id: u64) -> Vec<u8> {
        let mut params = self.params.clone();
        if let Some(wait) = params.get("wait_seconds").and_then(Value::as_f64) {
            let left = (wait - self.since.elapsed().as_secs_f64()).max(0.0);
            if left < wait - 1.0 {
                params.insert("wait_seconds".to_owned(), left.into());
            }
        }
        Message::request(id, self.method, &params).line()
    }
}

fn cancel(id: u64) -> Vec<u8> {
    Message::notification(calls::CANCEL, &Cancel { id: id.into() }).line()
}

/// A request whose id is its name.
fn named(name: &str, params: &impl serde::Serialize) -> Vec<u8> {
    Message {
        id: Some(name.into()),
        ..Message::notification(name, params)
    }
    .line()
}
