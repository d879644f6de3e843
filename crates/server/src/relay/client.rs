//! One connection of an agent's MCP server. Requests run concurrently, and replies are sent in the
//! order in which they are ready.
//!
//! Bounded per container: connections, requests in flight, the bytes of these requests, long lines
//! that are being read, and the bytes of replies that were not read. Past a bound, the server reads
//! nothing more from the connection until there is room again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oubliette_engine::{AttachedSession, Call, Stream, ToolListSubscriber};
use oubliette_runtime::ContainerId;
use oubliette_wire::{
    Attach, Attached, CallerTools, Cancel, InvalidRequest, LineReader, Request, RpcError,
    ToolsListed, codes, relay_methods,
};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, ReadHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Relay;
use super::client_limits::{ClientLimits, ClientPlace};
use super::methods::{self, RequestSource, RpcResult, parse_params, to_json};
use super::replies::{self, ReplySender};
use crate::errors;

/// An unattached connection without a request in flight is closed after this time; the client connects again.
const UNATTACHED_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_IN_FLIGHT_PER_CONNECTION: usize = 256;
/// A longer line needs one of few permits, and must end in time.
const LONG_LINE_BYTES: usize = 64 << 10;
const LONG_LINE_TIMEOUT: Duration = Duration::from_secs(30);
const READ_CHUNK_BYTES: usize = 8 << 10;
/// A peer that has closed its sending side still gets replies for this time.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(10);

/// A parsed line and its length.
#[derive(Debug)]
pub(super) struct ReceivedLine {
    pub(super) request: Result<Option<Request>, Box<InvalidRequest>>,
    pub(super) bytes: usize,
}

impl ReceivedLine {
    pub(super) fn parse(line: &[u8]) -> Self {
        Self {
            request: Request::parse(line),
            bytes: line.len(),
        }
    }
}

/// Serves a connection to its end. The handshake has read `first_line` and the bytes `rest` after it.
pub(super) async fn serve(
    relay: &Arc<Relay>,
    container: &ContainerId,
    limits: &Arc<ClientLimits>,
    stream: Box<dyn Stream>,
    first_line: ReceivedLine,
    rest: Vec<u8>,
) {
    let (place, eviction) = ClientPlace::take(limits);
    let (reader, writer) = tokio::io::split(stream);
    let (replies, queued_replies) = replies::channel(place.limits().unread_kib.clone());
    let connection = ClientConnection {
        relay: relay.clone(),
        container: container.clone(),
        place,
        own_in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT_PER_CONNECTION)),
        session: None,
        tools_subscription: None,
        sent_tools: None,
        replies,
        tasks: JoinSet::new(),
        in_flight: HashMap::new(),
        next_number: 0,
    };
    let mut writing = std::pin::pin!(queued_replies.write_to(writer));
    tokio::select! {
        () = connection.run(reader, first_line, rest) => {
            let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, writing).await;
        }
        () = &mut writing => {}
        () = eviction.cancelled() => {}
    }
}

struct ClientConnection {
    relay: Arc<Relay>,
    container: ContainerId,
    place: ClientPlace,
    own_in_flight: Arc<Semaphore>,
    /// The session that the connection is attached to.
    session: Option<AttachedSession>,
    tools_subscription: Option<ToolListSubscriber>,
    /// The caller's tools that the client was sent last.
    sent_tools: Option<CallerTools>,
    replies: ReplySender,
    /// Requests in flight, each of which returns its number.
    tasks: JoinSet<u64>,
    in_flight: HashMap<u64, InFlight>,
    next_number: u64,
}

struct InFlight {
    id: Option<Value>,
    cancellation: CancellationToken,
}

impl ClientConnection {
    async fn run(
        mut self,
        mut reader: ReadHalf<Box<dyn Stream>>,
        first_line: ReceivedLine,
        rest: Vec<u8>,
    ) {
        let mut tools_declared = self.relay.engine.callers().subscribe_declarations();
        if self.handle_line(first_line).await.is_none() {
            return;
        }
        let mut lines = LineReader::default();
        lines.push(&rest);
        drop(rest);
        let mut chunk = vec![0; READ_CHUNK_BYTES];
        let mut long_line: Option<(OwnedSemaphorePermit, Instant)> = None;
        loop {
            while let Some(line) = lines.next_line() {
                long_line = None;
                let handled = match line {
                    Ok(line) => self.handle_line(ReceivedLine::parse(&line)).await,
                    Err(_) => {
                        let error = RpcError::new(
                            codes::INVALID_REQUEST,
                            "the line is longer than 16 MiB and was skipped",
                        );
                        self.replies.reply(Value::Null, Err(error)).await
                    }
                };
                if handled.is_none() {
                    return;
                }
            }
            if lines.buffered_bytes() > LONG_LINE_BYTES && long_line.is_none() {
                let permits = self.place.limits().long_lines.clone();
                let Ok(permit) = permits.acquire_owned().await else {
                    return;
                };
                long_line = Some((permit, Instant::now() + LONG_LINE_TIMEOUT));
            }
            let long_line_timeout = async {
                match &long_line {
                    Some((_, deadline)) => tokio::time::sleep_until(*deadline).await,
                    None => std::future::pending().await,
                }
            };
            let is_idle = self.session.is_none() && self.in_flight.is_empty();
            let idle_timeout = async {
                if is_idle {
                    tokio::time::sleep(UNATTACHED_IDLE_TIMEOUT).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                read = reader.read(&mut chunk) => match read {
                    Ok(0) => break,
                    Err(_) => return,
                    Ok(read) => lines.push(&chunk[..read]),
                },
                Some(ended) = self.tasks.join_next() => self.remove_in_flight(ended.ok()),
                Ok(()) = tools_declared.changed() => {
                    if self.send_caller_tools(false).await.is_none() {
                        return;
                    }
                }
                () = long_line_timeout => return,
                () = idle_timeout => return,
            }
        }
        let remaining = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, remaining).await;
    }

    fn remove_in_flight(&mut self, number: Option<u64>) {
        match number {
            Some(number) => drop(self.in_flight.remove(&number)),
            // A task that panicked has not returned its number.
            None if self.tasks.is_empty() => self.in_flight.clear(),
            None => {}
        }
    }

    /// None if the connection is closed.
    async fn handle_line(&mut self, line: ReceivedLine) -> Option<()> {
        let request = match line.request {
            Ok(Some(request)) => request,
            Ok(None) => return Some(()),
            Err(invalid) => return self.replies.reply(invalid.id, Err(invalid.error)).await,
        };
        match request.method.as_str() {
            // Not concurrent: requests after it rely on it.
            relay_methods::ATTACH => self.handle_attach(request).await,
            relay_methods::CANCEL => {
                self.cancel(request.params);
                match request.id {
                    Some(id) => self.replies.reply(id, Ok(Value::Object(Map::new()))).await,
                    None => Some(()),
                }
            }
            relay_methods::TOOLS_LISTED => {
                let listed = parse_params::<ToolsListed>(request.params);
                if let (Ok(listed), Some(subscription)) = (listed, &self.tools_subscription) {
                    subscription.set_listed(listed.caller_tools);
                }
                match request.id {
                    Some(id) => self.replies.reply(id, Ok(Value::Object(Map::new()))).await,
                    None => Some(()),
                }
            }
            _ => self.spawn_request(request, line.bytes).await,
        }
    }

    async fn handle_attach(&mut self, request: Request) -> Option<()> {
        let result = match parse_params::<Attach>(request.params) {
            Ok(attach) => self.attach(&attach).await,
            Err(error) => Err(error),
        };
        let is_attached = result.is_ok();
        if let Some(id) = request.id {
            self.replies.reply(id, result).await?;
        }
        if is_attached {
            self.send_caller_tools(true).await?;
        }
        Some(())
    }

    /// Sends the caller's tools to the agent's client if they have changed, or if `always`.
    async fn send_caller_tools(&mut self, always: bool) -> Option<()> {
        let Some(session) = &self.session else {
            return Some(());
        };
        let tools = match self.relay.engine.callers().tools(session.id()).await {
            Ok(tools) => tools,
            Err(error) => {
                tracing::error!(%error, "could not read a caller's tools");
                return Some(());
            }
        };
        if !always && self.sent_tools.as_ref() == Some(&tools) {
            return Some(());
        }
        self.replies.send(tools.to_line()).await?;
        if let Some(subscription) = &self.tools_subscription {
            subscription.set_delivered(&tools);
        }
        self.sent_tools = Some(tools);
        Some(())
    }

    async fn attach(&mut self, attach: &Attach) -> RpcResult {
        if let Some(session) = &self.session
            && session.id().to_string() != attach.session_id
        {
            return Err(RpcError::new(
                codes::INVALID_REQUEST,
                "this connection is attached to another session; open a new connection",
            ));
        }
        let engine = &self.relay.engine;
        let found = engine
            .sessions()
            .attach(&self.container, &attach.session_id, &attach.session_key)
            .await
            .map_err(|error| errors::rpc_error(&error))?;
        let Some(session) = found else {
            return Err(self
                .relay
                .reject_key(&self.container, "invalid session or session key")
                .await);
        };
        let session_id = session.id().to_string();
        self.place.attach(session.id())?;
        let unread_kib = self.place.limits().unread_kib.clone();
        self.replies.set_unread_limit(unread_kib);
        if self.tools_subscription.is_none() {
            self.tools_subscription = Some(
                engine
                    .callers()
                    .subscribe_tool_list(session.id(), attach.reports_listing),
            );
        }
        self.session = Some(session);
        to_json(&Attached {
            session_id,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    fn cancel(&self, params: Map<String, Value>) {
        let Ok(Cancel { id }) = parse_params(params) else {
            return;
        };
        for request in self.in_flight.values() {
            if request.id.as_ref() == Some(&id) {
                request.cancellation.cancel();
            }
        }
    }

    /// Runs a request concurrently with the others, once the limits allow it.
    async fn spawn_request(&mut self, request: Request, line_bytes: usize) -> Option<()> {
        let limits = self.place.limits();
        let permits = limits.acquire(&self.own_in_flight, line_bytes).await?;
        let (number, cancellation) = (self.next_number, CancellationToken::new());
        self.next_number += 1;
        let in_flight = InFlight {
            id: request.id.clone(),
            cancellation: cancellation.clone(),
        };
        self.in_flight.insert(number, in_flight);
        let (relay, container) = (self.relay.clone(), self.container.clone());
        let (session, replies) = (self.session.clone(), self.replies.clone());
        let sessions = relay.engine.sessions();
        let agent_call = session
            .as_ref()
            .map(|session| sessions.begin_agent_call(session.id()));
        self.tasks.spawn(async move {
            let call = Call::new().with_cancellation(cancellation);
            let source = RequestSource {
                relay: &relay,
                container: &container,
                session: session.as_ref(),
            };
            let handling = methods::dispatch(source, &request.method, request.params, call);
            let result = errors::answer(handling).await;
            if let Some(id) = request.id {
                let _ = replies.reply(id, result).await;
            }
            drop((permits, agent_call));
            number
        });
        Some(())
    }
}
