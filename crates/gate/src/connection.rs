//! One connection of a container: the request, the decision, the connection to the host, the bytes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oubliette_model::{Host, NetworkRules, quoted};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;

use crate::container::{ContainerGate, Gate};
use crate::copy::{CopyError, Counters, check_server_name, copy_both_ways};
use crate::gateway;
use crate::host_address::is_local;
use crate::journal::{JournalEntry, JournalEvent};
use crate::lines::{LineReader, write_line};
use crate::protocol::{MAX_LINE_BYTES, RefusalKind, Reply, Request, Way};
use crate::questions::{self, Outcome};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// For the other names that a container looks up.
const LOOKUP_WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// For each address of a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For all of them together.
const ALL_CONNECTS_TIMEOUT: Duration = Duration::from_secs(30);
/// A host that does not answer for so long is asked whether it still knows the connection.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);

/// Serves a connection in a task of its own, unless its container has too many.
pub(crate) fn spawn(gate: &Arc<Gate>, container: &Arc<ContainerGate>, stream: UnixStream) {
    let (gate, container) = (gate.clone(), container.clone());
    let limit = gate.max_container_connections();
    let own = ConnectionPlace::take(&container.open_connections, limit);
    let shared = gate.connections.clone().try_acquire_owned();
    let (Some(own), Ok(shared)) = (own, shared) else {
        refuse_for_limit(stream, limit);
        return;
    };
    tokio::spawn(async move {
        let closing = container.closing.clone();
        let serving = serve(&gate, &container, stream, (own, shared));
        closing.run_until_cancelled(serving).await;
    });
}

/// One of the connections that a container may have at once.
struct ConnectionPlace {
    taken: Arc<AtomicUsize>,
}

impl ConnectionPlace {
    fn take(taken: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let place = Self {
            taken: taken.clone(),
        };
        let before = taken.fetch_add(1, Ordering::Relaxed);
        (before < limit).then_some(place)
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Without a task: thousands of refused connections must cost nothing.
fn refuse_for_limit(stream: UnixStream, limit: usize) {
    let Ok(stream) = stream.into_std() else {
        return;
    };
    let reply = Reply::Refused {
        kind: RefusalKind::Limit,
        reason: format!(
            "this container has {limit} connections open, which is the maximum here; close some"
        ),
    };
    if let Ok(mut line) = serde_json::to_vec(&reply) {
        line.push(b'\n');
        // The buffer of a new socket takes it at once.
        let _ = io::Write::write(&mut &stream, &line);
    }
}

async fn serve(
    gate: &Arc<Gate>,
    container: &Arc<ContainerGate>,
    stream: UnixStream,
    permits: (ConnectionPlace, OwnedSemaphorePermit),
) {
    let mut requests = LineReader::new(stream, MAX_LINE_BYTES);
    let Ok(Ok(Some(request))) = timeout(REQUEST_TIMEOUT, requests.next::<Request>()).await else {
        return;
    };
    let (mut stream, mut rest) = requests.into_parts();
    match request {
        Request::Lookup { name } => {
            let reply = lookup(&container.rules().borrow(), &name);
            if let Reply::Refused { reason, .. } = &reply {
                let attempt = Attempt::new(gate, container, &name, 0, Way::Name);
                attempt.record_denial(reason);
            }
            let _ = timeout(REQUEST_TIMEOUT, write_line(&mut stream, &reply)).await;
        }
        Request::Gateway => {
            let replied = timeout(REQUEST_TIMEOUT, write_line(&mut stream, &Reply::Opened)).await;
            if matches!(replied, Ok(Ok(()))) {
                gateway::serve(gate, container, stream, rest).await;
            }
        }
        Request::Open { host, port, way } => {
            let attempt = Attempt::new(gate, container, &host, port, way);
            let opened = attempt.open(&host, (&stream, &mut rest)).await;
            let (target, server, rule) = match opened {
                Ok(opened) => opened,
                Err(None) => return,
                Err(Some((kind, reason))) => {
                    match kind {
                        RefusalKind::Denied => attempt.record_denial(&reason),
                        _ => attempt
                            .record(JournalEvent::Failed, |entry| entry.rule = reason.clone()),
                    }
                    let reply = Reply::Refused { kind, reason };
                    let _ = timeout(REQUEST_TIMEOUT, write_line(&mut stream, &reply)).await;
                    return;
                }
            };
            attempt.record(JournalEvent::Opened, |entry| {
                entry.rule = rule;
                entry.address = Some(target.address);
            });
            let replied = timeout(REQUEST_TIMEOUT, write_line(&mut stream, &Reply::Opened)).await;
            if matches!(replied, Ok(Ok(()))) {
                let ends = (stream, server);
                let changes = container.rules();
                attempt.carry(&target, ends, rest, changes).await;
            }
        }
    }
    drop(permits);
}

/// Whether a name gets an address inside. The answer depends on the rules alone, so that a question carries nothing
/// out.
fn lookup(rules: &NetworkRules, name: &str) -> Reply {
    match name.parse::<Host>() {
        Ok(host @ Host::Name(_)) if rules.may_reach_some_port(&host) => Reply::Found {
            ports: rules.named_ports(&host),
        },
        Ok(host) => Reply::Refused {
            kind: RefusalKind::Denied,
            reason: rules.decide(&host, 443).rule,
        },
        Err(why) => Reply::Refused {
            kind: RefusalKind::Denied,
            reason: why.to_string(),
        },
    }
}

/// A request for a connection.
struct Attempt<'a> {
    gate: &'a Arc<Gate>,
    container: &'a Arc<ContainerGate>,
    number: u64,
    /// As it was asked for, bounded and printable.
    shown_host: String,
    port: u16,
    way: Way,
}

impl<'a> Attempt<'a> {
    fn new(
        gate: &'a Arc<Gate>,
        container: &'a Arc<ContainerGate>,
        host: &str,
        port: u16,
        way: Way,
    ) -> Self {
        let shown_host = match host.parse::<Host>() {
            Ok(host) => host.to_string(),
            Err(_) => quoted(host),
        };
        Self {
            gate,
            container,
            number: gate.next_connection_number(),
            shown_host,
            port,
            way,
        }
    }

    /// Decides, looks the name up, decides about each address, and connects to one of those. What is connected to is
    /// the address that was decided about: the name is not looked up again. Without a reason if the program has closed its end.
    async fn open(
        &self,
        host: &str,
        program: (&UnixStream, &mut Vec<u8>),
    ) -> Result<(Target, TcpStream, String), Option<(RefusalKind, String)>> {
        let denied = |reason: String| Some((RefusalKind::Denied, reason));
        let failed = |reason: String| Some((RefusalKind::Failed, reason));
        let host: Host = host.parse().map_err(|why| denied(format!("{why}")))?;
        if self.port == 0 {
            return Err(denied("0 is not a port".to_owned()));
        }
        let mut rules = self.rules();
        let mut verdict = rules.decide(&host, self.port);
        let mut is_answered = false;
        if verdict.is_askable {
            let asked = (&host, self.port);
            match questions::ask(self.gate, self.container, asked, &verdict, program).await {
                Outcome::ByRules => verdict = self.rules().decide(&host, self.port),
                Outcome::Allowed(reason) => {
                    is_answered = true;
                    verdict.rule = reason;
                }
                Outcome::Refused(reason) => return Err(denied(reason)),
                Outcome::Gone => return Err(None),
            }
            rules = self.rules();
        }
        if !verdict.is_allowed && !is_answered {
            return Err(denied(verdict.rule));
        }
        let addresses = match &host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let waiting = timeout(LOOKUP_WAIT_TIMEOUT, self.container.lookups.acquire());
                let Ok(Ok(_lookup)) = waiting.await else {
                    let reason = "this container looks up too many names at once; try again";
                    return Err(Some((RefusalKind::Limit, reason.to_owned())));
                };
                self.gate.resolver.lookup(name).await.map_err(failed)?
            }
        };
        let mut refusal = None;
        let mut permitted = Vec::new();
        for address in addresses {
            let decided = rules.decide_address(&host, self.port, address, is_local(address));
            if decided.is_allowed {
                permitted.push(address);
            } else {
                refusal = Some(decided.rule);
            }
        }
        if permitted.is_empty() {
            return Err(denied(refusal.unwrap_or_default()));
        }
        let connecting = connect(&permitted, self.port);
        match timeout(ALL_CONNECTS_TIMEOUT, connecting).await {
            Ok(Ok((stream, address))) => {
                let target = Target {
                    host,
                    address,
                    is_answered,
                };
                Ok((target, stream, verdict.rule))
            }
            Ok(Err(error)) => Err(failed(format!("{host}:{} {error}", self.port))),
            Err(_) => Err(failed(format!("{host}:{} does not answer", self.port))),
        }
    }

    fn rules(&self) -> Arc<NetworkRules> {
        self.container.rules().borrow().clone()
    }

    /// Copies bytes until both sides have sent everything, or the rules no longer allow the connection.
    async fn carry(
        &self,
        target: &Target,
        (client, server): (UnixStream, TcpStream),
        first: Vec<u8>,
        changes: watch::Receiver<Arc<NetworkRules>>,
    ) {
        let counters = Counters::default();
        let rules = changes.clone();
        let is_allowed = |named: &Host| rules.borrow().decide(named, self.port).is_allowed;
        let may_name = |named: Option<&str>| check_server_name(&target.host, named, is_allowed);
        let recorder = ClosedRecorder {
            attempt: self,
            counters: &counters,
        };
        let copied = tokio::select! {
            copied = copy_both_ways(client, server, first, &counters, may_name) => copied,
            reason = target.refusal(self.port, changes) => Err(CopyError::Denied(reason)),
        };
        if let Err(CopyError::Denied(reason)) = copied {
            self.record_denial(&reason);
        }
        drop(recorder);
    }

    fn record_denial(&self, reason: &str) {
        self.record(JournalEvent::Denied, |entry| entry.rule = reason.to_owned());
        self.gate
            .publish(self.container, &self.shown_host, self.port, reason);
    }

    fn record(&self, event: JournalEvent, fill: impl FnOnce(&mut JournalEntry)) {
        let mut entry = JournalEntry {
            container: self.container.id.clone(),
            connection: Some(self.number),
            host: self.shown_host.clone(),
            port: (self.port > 0).then_some(self.port),
            way: Some(self.way),
            ..JournalEntry::new(event)
        };
        fill(&mut entry);
        self.gate.journal.add(&self.container.project, entry);
    }
}

/// What a connection is open to.
struct Target {
    host: Host,
    address: IpAddr,
    /// Whether an answer allowed it, and no rule.
    is_answered: bool,
}

impl Target {
    /// Waits for rules that do not allow it; what they say.
    async fn refusal(&self, port: u16, mut changes: watch::Receiver<Arc<NetworkRules>>) -> String {
        // They may have changed while the connection was made.
        changes.mark_changed();
        while changes.changed().await.is_ok() {
            let rules = changes.borrow_and_update().clone();
            let (host, address) = (&self.host, self.address);
            let verdict = rules.decide(host, port);
            let is_still_answered = self.is_answered && verdict.is_askable;
            if !verdict.is_allowed && !is_still_answered {
                return verdict.rule;
            }
            let verdict = rules.decide_address(host, port, address, is_local(address));
            if !verdict.is_allowed {
                return verdict.rule;
            }
        }
        // The container is being removed, which ends the connection.
        std::future::pending().await
    }
}

/// Records the end of a connection also when its container is closed.
struct ClosedRecorder<'a> {
    attempt: &'a Attempt<'a>,
    counters: &'a Counters,
}

impl Drop for ClosedRecorder<'_> {
    fn drop(&mut self) {
        let count = |counter: &std::sync::atomic::AtomicU64| Some(counter.load(Ordering::Relaxed));
        self.attempt.record(JournalEvent::Closed, |entry| {
            entry.sent_bytes = count(&self.counters.sent);
            entry.received_bytes = count(&self.counters.received);
        });
    }
}

/// Connects to the first address that answers.
async fn connect(addresses: &[IpAddr], port: u16) -> io::Result<(TcpStream, IpAddr)> {
    let mut last = io::Error::other("has no address");
    for address in addresses {
        let connecting = TcpStream::connect(SocketAddr::new(*address, port));
        match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => {
                // Both only help; a connection works without them.
                let _ = stream.set_nodelay(true);
                let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
                let _ = rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE_TIME);
                return Ok((stream, *address));
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}
