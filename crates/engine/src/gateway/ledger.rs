//! What calls of models that run could cost, and the calls that wait for room in the budget of their tree.
//!
//! It is in memory only: the gate has the calls, and tells every server that connects. Nobody may lend anything before it
//! has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use oubliette_gate::gateway::TokenCounts;
use oubliette_model::SessionId;
use tokio::time::Instant;

/// Sums of dollars are as exact as this.
const TOLERANCE_USD: f64 = 1e-9;
/// A call that waits only because others run asks for a higher budget after this time.
const ASK_DELAY: Duration = Duration::from_secs(5);

/// A call that waits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeldCall {
    pub(crate) session: SessionId,
    pub(crate) root: SessionId,
    pub(crate) model: String,
    pub(crate) tokens: TokenCounts,
    /// What it can cost.
    pub(crate) cost_usd: f64,
    /// When the gate refuses it.
    pub(crate) until: Timestamp,
    /// Since it waits, or since the last decision about the budget.
    pub(crate) since: Instant,
    /// Whether the session asks for a higher budget for it.
    pub(crate) asks: bool,
    /// Whether the gate knows that it waits.
    pub(crate) is_told: bool,
}

#[derive(Debug)]
struct ReservedCall {
    root: SessionId,
    cost_usd: f64,
}

/// What a session's calls wait for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallHold {
    /// The gate has not said.
    Unknown,
    Nothing {
        /// Whether a call that asked has been sent since.
        went_on: bool,
    },
    /// For a higher budget.
    Budget(Box<HeldCall>),
}

/// Whether a budget has room for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Enough,
    /// Not while the others run, which may cost less than they could.
    Later,
    /// Not without a higher budget.
    Spent,
    /// Even the whole budget is too small.
    Never,
}

impl Room {
    pub(super) fn find(limit_usd: f64, spent_usd: f64, reserved_usd: f64, cost_usd: f64) -> Self {
        let limit_usd = limit_usd + TOLERANCE_USD;
        if cost_usd > limit_usd {
            Self::Never
        } else if spent_usd + cost_usd > limit_usd {
            Self::Spent
        } else if spent_usd + reserved_usd + cost_usd > limit_usd {
            Self::Later
        } else {
            Self::Enough
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Whether the gate has said which calls there are.
    is_known: bool,
    reserved: BTreeMap<u64, ReservedCall>,
    /// By number: the first one asked first.
    held: BTreeMap<u64, HeldCall>,
    /// Calls that have ended, and how far the charges must be counted before they are free.
    ended: Vec<(u64, u64)>,
    /// Calls that are not sent, which the gate has to know.
    refused: Vec<(u64, String)>,
    went_on: BTreeSet<SessionId>,
    /// Why the last calls of sessions were not sent, until others are, the budget is raised, or another turn starts.
    refusals: BTreeMap<SessionId, String>,
    /// What the logs of sessions have to say.
    notes: BTreeMap<SessionId, String>,
}

impl Ledger {
    /// Another gate, or the same one again, says which calls are open.
    pub(super) fn begin(&mut self, open: impl Iterator<Item = (u64, SessionId, f64)>) {
        let notes = std::mem::take(&mut self.notes);
        let refusals = std::mem::take(&mut self.refusals);
        *self = Self {
            notes,
            refusals,
            ..Self::default()
        };
        for (id, root, cost_usd) in open {
            self.reserved.insert(id, ReservedCall { root, cost_usd });
        }
    }

    pub(super) fn set_known(&mut self, is_known: bool) {
        self.is_known = is_known;
    }

    /// What the running calls of a tree could cost. To be asked before what the tree has spent: a call that ends in
    /// between counts twice then, and never not at all.
    pub(super) fn reserved_usd(&self, root: SessionId) -> f64 {
        let calls = self.reserved.values();
        calls
            .filter(|call| call.root == root)
            .map(|call| call.cost_usd)
            .sum()
    }

    pub(super) fn hold(&mut self, id: u64, call: HeldCall) {
        self.held.insert(id, call);
    }

    pub(super) fn held(&self) -> Vec<u64> {
        self.held.keys().copied().collect()
    }

    pub(super) fn held_call(&self, id: u64) -> Option<HeldCall> {
        self.held.get(&id).cloned()
    }

    /// Reserves what a call can cost, if it still waits.
    pub(super) fn grant(&mut self, id: u64) -> Option<HeldCall> {
        let call = self.held.remove(&id)?;
        let reserved = ReservedCall {
            root: call.root,
            cost_usd: call.cost_usd,
        };
        self.reserved.insert(id, reserved);
        self.refusals.remove(&call.session);
        if call.asks {
            self.went_on.insert(call.session);
        }
        Some(call)
    }

    /// A call goes on waiting. Returns whether its session asks for a higher budget only now; one whose calls were
    /// refused in this turn does not ask again.
    pub(super) fn keep_held(&mut self, id: u64, needs_more: bool, now: Instant) -> bool {
        let Some(call) = self.held.get_mut(&id) else {
            return false;
        };
        call.is_told = true;
        let asked = call.asks;
        let may_ask = !self.refusals.contains_key(&call.session);
        let has_waited = now.duration_since(call.since) >= ASK_DELAY;
        call.asks |= may_ask && (needs_more || has_waited);
        call.asks && !asked
    }

    /// When the next call asks for a higher budget.
    pub(super) fn next_ask(&self) -> Option<Instant> {
        let may_ask = |call: &&HeldCall| !self.refusals.contains_key(&call.session);
        let silent = self.held.values().filter(|call| !call.asks);
        let silent = silent.filter(may_ask);
        silent.map(|call| call.since + ASK_DELAY).min()
    }

    /// A call of the gate has ended. Returns the call if it waited.
    pub(super) fn release(&mut self, id: u64, end: u64) -> Option<HeldCall> {
        let held = self.held.remove(&id);
        if self.reserved.contains_key(&id) {
            self.ended.push((id, end));
        }
        held
    }

    /// Charges have been counted up to an offset. Returns whether there is more room now.
    pub(super) fn free_counted(&mut self, offset: u64) -> bool {
        let before = self.ended.len();
        let reserved = &mut self.reserved;
        self.ended.retain(|(id, end)| {
            let is_counted = *end <= offset;
            if is_counted {
                reserved.remove(id);
            }
            !is_counted
        });
        self.ended.len() < before
    }

    /// The waiting calls of a session are not sent.
    pub(super) fn refuse_session(&mut self, session: SessionId, reason: &str) {
        let is_own = |call: &HeldCall| call.session == session && call.asks;
        for (id, _) in self.held.extract_if(.., |_, call| is_own(call)) {
            self.refused.push((id, reason.to_owned()));
        }
        self.refusals.insert(session, reason.to_owned());
    }

    /// The gate has refused a call that waited too long.
    pub(super) fn expire(&mut self, session: SessionId, reason: &str) {
        self.refusals.insert(session, reason.to_owned());
    }

    /// A call is not sent, because others of its turn were not sent.
    pub(super) fn refuse_again(&mut self, id: u64) -> Option<String> {
        let session = self.held.get(&id)?.session;
        let reason = self.refusals.get(&session)?.clone();
        self.held.remove(&id);
        Some(reason)
    }

    /// A call is not sent, whatever happens. Its session's log says why.
    pub(super) fn refuse(&mut self, id: u64, reason: &str) -> Option<HeldCall> {
        let call = self.held.remove(&id)?;
        self.refusals.insert(call.session, reason.to_owned());
        self.notes.insert(call.session, reason.to_owned());
        Some(call)
    }

    pub(super) fn take_refused(&mut self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.refused)
    }

    /// The budget of a tree was decided about: who still has no room asks again later.
    pub(super) fn decided(&mut self, root: SessionId, now: Instant) {
        for call in self.held.values_mut().filter(|call| call.root == root) {
            (call.asks, call.since) = (false, now);
            self.refusals.remove(&call.session);
        }
    }

    /// Takes why the last call of a session was not sent.
    pub(super) fn take_refusal(&mut self, session: SessionId) -> Option<String> {
        self.refusals.remove(&session)
    }

    pub(super) fn hold_of(&mut self, session: SessionId) -> CallHold {
        if !self.is_known {
            return CallHold::Unknown;
        }
        let mut calls = self.held.values();
        match calls.find(|call| call.session == session && call.asks) {
            Some(call) => CallHold::Budget(Box::new(call.clone())),
            None => CallHold::Nothing {
                went_on: self.went_on.remove(&session),
            },
        }
    }

    pub(super) fn take_note(&mut self, session: SessionId) -> Option<String> {
        self.notes.remove(&session)
    }
}

#[cfg(test)]
mod tests;
