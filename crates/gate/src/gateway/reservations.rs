//! Calls of sessions with a budget: none goes to its provider before the server has reserved what it can cost.
//!
//! The server decides; the gate has what was decided. A server that connects is told of every call that is open or
//! waits, so that a killed one loses nothing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::call::ModelCall;
use super::grants::GrantEntry;
use super::meter::TokenCounts;
use super::open_calls::{OpenCall, OpenCallFile};
use super::protocol::ToServer;
use super::request::Refusal;

/// Calls of one session that wait for a decision.
const MAX_WAITING_CALLS: usize = 128;
/// Of the requests of one session that wait: they are in memory.
const MAX_WAITING_BYTES: u64 = 32 << 20;
/// A server that reads so little is gone.
const MAX_QUEUED_MESSAGES: usize = 4096;

/// What a call can cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Another one for each call of a gate.
    pub id: u64,
    pub session: String,
    /// As the agent named it.
    pub model: String,
    /// At most.
    pub tokens: TokenCounts,
    /// Answers whose size the request does not limit, which are not in `tokens`.
    #[serde(default)]
    pub unlimited_answers: u64,
    /// Answers that are in `tokens`.
    #[serde(default)]
    pub limited_answers: u64,
}

/// How long calls of a session with a budget wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetWaits {
    /// For a higher budget, or for other calls to cost less than they could.
    pub hold_ms: u64,
    /// For a server that does not answer.
    pub server_ms: u64,
}

/// What the server said last about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing yet, or an earlier server did.
    Asked,
    /// The budget has no room for it now.
    Held,
    Granted,
    Refused(String),
}

#[derive(Debug)]
struct Entry {
    reservation: Reservation,
    request_bytes: u64,
    decision: watch::Sender<Decision>,
}

impl Entry {
    fn is_granted(&self) -> bool {
        *self.decision.borrow() == Decision::Granted
    }
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    calls: BTreeMap<u64, Entry>,
    /// To the server that is connected.
    outbox: Option<mpsc::Sender<ToServer>>,
    last_server: u64,
}

impl State {
    fn send(&mut self, message: ToServer) {
        let outbox = self.outbox.as_ref();
        if outbox.is_some_and(|outbox| outbox.try_send(message).is_err()) {
            // Its connection ends with this, and the next one begins with everything.
            self.forget_server();
        }
    }

    fn forget_server(&mut self) {
        self.outbox = None;
        for entry in self.calls.values() {
            entry.decision.send_if_modified(|decision| {
                let is_held = *decision == Decision::Held;
                if is_held {
                    *decision = Decision::Asked;
                }
                is_held
            });
        }
    }
}

#[derive(Debug)]
struct Shared {
    gate: String,
    state: Mutex<State>,
    open_calls: Mutex<OpenCallFile>,
    ended: Notify,
}

/// The reservations of a gate. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Reservations {
    shared: Arc<Shared>,
}

/// A server's share in the reservations, until it is dropped.
#[derive(Debug)]
pub(crate) struct ServerLink {
    shared: Arc<Shared>,
    number: u64,
    /// The calls that are open.
    pub(crate) granted: Vec<Reservation>,
    /// The calls that wait for a decision.
    pub(crate) asked: Vec<Reservation>,
    /// What to tell the server. Ends when another server is connected.
    pub(crate) messages: mpsc::Receiver<ToServer>,
}

impl Drop for ServerLink {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if state.last_server == self.number {
            state.forget_server();
        }
    }
}

impl Reservations {
    pub(crate) fn new(gate: &str, directory: &Path) -> io::Result<Self> {
        let shared = Shared {
            gate: gate.to_owned(),
            state: Mutex::default(),
            open_calls: Mutex::new(OpenCallFile::create(directory)?),
            ended: Notify::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// A server has connected.
    pub(crate) fn connect_server(&self) -> ServerLink {
        let (outbox, messages) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let mut state = self.shared.state.lock();
        state.forget_server();
        state.outbox = Some(outbox);
        state.last_server += 1;
        let listed = |is_granted: bool| {
            let entries = state.calls.values();
            let entries = entries.filter(|entry| entry.is_granted() == is_granted);
            entries.map(|entry| entry.reservation.clone()).collect()
        };
        ServerLink {
            shared: self.shared.clone(),
            number: state.last_server,
            granted: listed(true),
            asked: listed(false),
            messages,
        }
    }

    /// The server has decided about a call, which may have ended since. `tokens` is what it has reserved.
    pub(crate) fn decide(&self, id: u64, decision: Decision, tokens: Option<TokenCounts>) {
        let mut state = self.shared.state.lock();
        let Some(entry) = state.calls.get_mut(&id) else {
            return;
        };
        if entry.is_granted() {
            return;
        }
        if let Some(tokens) = tokens {
            entry.reservation.tokens = tokens;
            entry.reservation.unlimited_answers = 0;
        }
        entry.decision.send_replace(decision);
    }

    /// Waits until the budget of the session's tree has room for a call. None if there is no budget.
    pub(crate) async fn reserve(
        &self,
        grant: &GrantEntry,
        call: &ModelCall,
    ) -> Result<Option<ReservedCall>, Refusal> {
        let Some(waits) = grant.budget else {
            return Ok(None);
        };
        let provider = grant.grant.provider;
        let refuse = |status, message: String| Refusal::new(provider, status, message);
        let (mut reserved, mut decisions) = self.ask(grant, call).ok_or_else(|| {
            let message = "too many calls of this session wait for its budget (`max_cost_usd`)";
            refuse(StatusCode::FORBIDDEN, message.to_owned())
        })?;
        let mut held_until = None;
        loop {
            let decision = decisions.borrow_and_update().clone();
            let until = match &decision {
                Decision::Granted => {
                    return match reserved.begin(grant) {
                        Ok(()) => Ok(Some(reserved)),
                        Err(error) => {
                            let message = format!(
                                "the call was not sent: it cannot be written down, in `charges` of the data \
                                 directory: {error}"
                            );
                            Err(refuse(StatusCode::SERVICE_UNAVAILABLE, message))
                        }
                    };
                }
                Decision::Refused(reason) => {
                    return Err(refuse(StatusCode::FORBIDDEN, reason.clone()));
                }
                Decision::Held => {
                    let hold = Duration::from_millis(waits.hold_ms);
                    *held_until.get_or_insert_with(|| Instant::now() + hold)
                }
                Decision::Asked => Instant::now() + Duration::from_millis(waits.server_ms),
            };
            if timeout_at(until, decisions.changed()).await.is_ok() {
                continue;
            }
            return Err(match decision {
                Decision::Held => {
                    let seconds = waits.hold_ms.div_ceil(1000);
                    let message = format!(
                        "the call was not sent: the budget of this tree of sessions (`max_cost_usd`) has no room for \
                         it, and was not raised within {seconds} seconds"
                    );
                    refuse(StatusCode::FORBIDDEN, message)
                }
                _ => {
                    let message = "the call was not sent: the Oubliette server, which knows the budget of this \
                                   session, does not answer";
                    refuse(StatusCode::SERVICE_UNAVAILABLE, message.to_owned())
                }
            });
        }
    }

    /// Asks the server; None if too many calls of the session wait already.
    fn ask(
        &self,
        grant: &GrantEntry,
        call: &ModelCall,
    ) -> Option<(ReservedCall, watch::Receiver<Decision>)> {
        let mut state = self.shared.state.lock();
        let waiting = || {
            let entries = state.calls.values();
            entries.filter(|it| !it.is_granted() && it.reservation.session == grant.session)
        };
        let bytes: u64 = waiting().map(|it| it.request_bytes).sum();
        if waiting().count() >= MAX_WAITING_CALLS
            || bytes > 0 && bytes + call.request_bytes > MAX_WAITING_BYTES
        {
            return None;
        }
        state.last_id += 1;
        let id = state.last_id;
        let reservation = Reservation {
            id,
            session: grant.session.clone(),
            model: call.model.clone(),
            tokens: call.bounds.tokens,
            unlimited_answers: call.bounds.unlimited_answers,
            limited_answers: call.bounds.limited_answers,
        };
        let (decision, decisions) = watch::channel(Decision::Asked);
        let entry = Entry {
            reservation: reservation.clone(),
            request_bytes: call.request_bytes,
            decision,
        };
        state.calls.insert(id, entry);
        state.send(ToServer::Reserve(reservation));
        let reserved = ReservedCall {
            shared: self.shared.clone(),
            id,
            has_begun: false,
            end: 0,
        };
        Some((reserved, decisions))
    }

    /// Waits until no call is open, and removes their file.
    pub(crate) async fn until_none_is_open(&self) {
        loop {
            let ended = self.shared.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.shared.state.lock().calls.is_empty() {
                break;
            }
            ended.await;
        }
        if let Err(error) = self.shared.open_calls.lock().remove() {
            eprintln!("the file of open calls cannot be removed: {error}");
        }
    }
}

/// A call that was asked for. Dropped, it has cost nothing.
#[derive(Debug)]
pub(crate) struct ReservedCall {
    shared: Arc<Shared>,
    id: u64,
    has_begun: bool,
    /// The journal of charges has what it cost before this offset.
    end: u64,
}

impl ReservedCall {
    /// What the call is named in the journal of charges.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.shared.gate, self.id)
    }

    /// The tokens of the answers that were reserved.
    pub(crate) fn output_tokens(&self) -> u64 {
        let state = self.shared.state.lock();
        let entry = state.calls.get(&self.id);
        entry.map_or(0, |entry| entry.reservation.tokens.output)
    }

    /// What the call cost cannot be written: it stays open, and counts with what was reserved for it.
    pub(crate) fn keep_open(self) {
        std::mem::forget(self);
    }

    /// What the call cost is in the journal, before this offset.
    pub(crate) fn set_charged(mut self, end: u64) {
        self.end = end;
    }

    fn begin(&mut self, grant: &GrantEntry) -> io::Result<()> {
        let state = self.shared.state.lock();
        let Some(entry) = state.calls.get(&self.id) else {
            return Ok(());
        };
        let call = OpenCall {
            name: self.name(),
            session: entry.reservation.session.clone(),
            provider: grant.grant.provider,
            model: entry.reservation.model.clone(),
            tokens: entry.reservation.tokens,
        };
        drop(state);
        self.shared.open_calls.lock().begin(&call)?;
        self.has_begun = true;
        Ok(())
    }
}

impl Drop for ReservedCall {
    fn drop(&mut self) {
        if self.has_begun {
            let name = self.name();
            self.shared.open_calls.lock().end(&name);
        }
        let mut state = self.shared.state.lock();
        state.calls.remove(&self.id);
        state.send(ToServer::Released {
            reservation: self.id,
            end: self.end,
        });
        self.shared.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
