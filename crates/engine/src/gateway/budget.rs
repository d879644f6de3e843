//! Hard budgets: before a call goes to its model, what it can cost is reserved in the budget of its tree.
//!
//! All decisions are made in the task of the link to the gate, one after the other. A reservation ends only after what
//! the call cost is in the store, so that at no time neither of them counts.

use std::io;

use jiff::SignedDuration;
use oubliette_gate::gateway::{BudgetWaits, GatewaySender, Reservation};
use oubliette_model::SessionId;
use tokio::time::Instant;

use super::Gateway;
use super::ledger::{CallHold, HeldCall, Room};
use super::prices::{cost_of, largest_output};
use crate::Result;

/// For a server that is away: one that is started again takes a few seconds.
const SERVER_TIMEOUT_MS: u64 = 60_000;
/// The largest limit that can be set stands for none.
const NO_LIMIT_USD: f64 = 1_000_000.0;

/// Why a call is not sent after all.
const NOT_RAISED: &str = "the call was not sent: the budget of this tree of sessions (`max_cost_usd`) has no room for \
                          it, and a higher one was not allowed";

impl Gateway<'_> {
    /// How long calls of a session wait for its budget; none if its tree has no budget.
    pub(super) async fn budget_waits(self, session: SessionId) -> Result<Option<BudgetWaits>> {
        let Some((_, limit, _)) = self.tree_budget(session).await? else {
            return Ok(None);
        };
        let hold_seconds = self.engine.settings().sessions.budget_hold_seconds;
        Ok((limit < NO_LIMIT_USD).then_some(BudgetWaits {
            hold_ms: hold_seconds.saturating_mul(1000),
            server_ms: SERVER_TIMEOUT_MS,
        }))
    }

    /// The root of a session's tree, the limit of the tree's cost, and what it has cost.
    async fn tree_budget(self, session: SessionId) -> Result<Option<(SessionId, f64, f64)>> {
        let store = self.engine.store();
        let Some(session) = store.session(session).await? else {
            return Ok(None);
        };
        let used = store.tree_usage(session.root_id, self.engine.now()).await?;
        let limit = match used.cost_limit {
            Some(limit) => limit,
            None => self.engine.sessions().tree_limits(&session).await?.cost_usd,
        };
        Ok(Some((session.root_id, limit, used.cost_usd)))
    }

    /// A new gate, or a server that was started again: these calls are open.
    pub(super) async fn begin_ledger(self, open: Vec<Reservation>) -> Result<()> {
        let mut calls = Vec::new();
        for reservation in open {
            if let Some(call) = self.price_call(&reservation).await? {
                calls.push((reservation.id, call.root, call.cost_usd));
            }
        }
        self.state().ledger.lock().begin(calls.into_iter());
        // What has ended since is in the journal already.
        self.count_charges().await
    }

    /// What a call can cost; none if its session does not exist any more.
    async fn price_call(self, reservation: &Reservation) -> Result<Option<HeldCall>> {
        let Ok(session) = reservation.session.parse() else {
            return Ok(None);
        };
        let Some(found) = self.engine.store().session(session).await? else {
            return Ok(None);
        };
        let configured = &self.engine.settings().models;
        let own = |name: &str| configured.get(name).copied();
        let model = &reservation.model;
        let answers = (reservation.limited_answers, reservation.unlimited_answers);
        let mut tokens = reservation.tokens;
        tokens.output = largest_output(model, tokens.output, answers, own);
        let (cost_usd, _) = cost_of(model, None, tokens, own);
        let seconds = self.engine.settings().sessions.budget_hold_seconds;
        let hold = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX / 1000));
        Ok(Some(HeldCall {
            session,
            root: found.root_id,
            model: reservation.model.clone(),
            tokens,
            cost_usd,
            until: self.engine.now() + hold,
            since: Instant::now(),
            asks: false,
            is_told: false,
        }))
    }

    /// The gate asks for room for a call.
    pub(super) async fn reserve(
        self,
        reservation: &Reservation,
        sender: &mut GatewaySender,
    ) -> io::Result<()> {
        let priced = self.price_call(reservation).await;
        let Some(call) = priced.map_err(io::Error::other)? else {
            let reason = "the call was not sent: its session does not exist any more";
            return sender.refused(reservation.id, reason.to_owned()).await;
        };
        self.state().ledger.lock().hold(reservation.id, call);
        self.consider(reservation.id, sender).await
    }

    /// Tells the gate about the calls that have room now, or were refused.
    pub(super) async fn reconsider(self, sender: &mut GatewaySender) -> io::Result<()> {
        let (refused, held) = {
            let mut ledger = self.state().ledger.lock();
            (ledger.take_refused(), ledger.held())
        };
        for (id, reason) in refused {
            sender.refused(id, reason).await?;
        }
        for id in held {
            self.consider(id, sender).await?;
        }
        Ok(())
    }

    /// Decides about a call that waits.
    async fn consider(self, id: u64, sender: &mut GatewaySender) -> io::Result<()> {
        let ledger = &self.state().ledger;
        let Some(call) = ledger.lock().held_call(id) else {
            return Ok(());
        };
        let reserved = ledger.lock().reserved_usd(call.root);
        let budget = self.tree_budget(call.session).await;
        let budget = budget.map_err(io::Error::other)?;
        // Without a session nothing is spent.
        let (limit, spent) = budget.map_or((0.0, 0.0), |(_, limit, spent)| (limit, spent));
        let room = Room::find(limit, spent, reserved, call.cost_usd);
        match room {
            Room::Enough => {
                let granted = ledger.lock().grant(id);
                if let Some(call) = granted {
                    sender.reserved(id, call.tokens).await?;
                    self.wake_if(call.asks, call.session);
                }
            }
            Room::Never => {
                let reason = too_large(&call, limit);
                if ledger.lock().refuse(id, &reason).is_some() {
                    sender.refused(id, reason).await?;
                    self.wake_if(true, call.session);
                }
            }
            Room::Later | Room::Spent => {
                let needs_more = room == Room::Spent;
                let refused = needs_more.then(|| ledger.lock().refuse_again(id));
                if let Some(reason) = refused.flatten() {
                    return sender.refused(id, reason).await;
                }
                let asks_now = ledger.lock().keep_held(id, needs_more, Instant::now());
                if !call.is_told {
                    sender.held(id).await?;
                }
                self.wake_if(asks_now, call.session);
            }
        }
        Ok(())
    }

    /// A call has ended, or is given up.
    pub(super) fn release(self, id: u64, end: u64) {
        let held = self.state().ledger.lock().release(id, end);
        if let Some(call) = held {
            // Before that, the agent has gone.
            if self.engine.now() >= call.until {
                let seconds = self.engine.settings().sessions.budget_hold_seconds;
                let reason = not_in_time(seconds);
                self.state().ledger.lock().expire(call.session, &reason);
            }
            self.wake_if(call.asks, call.session);
        } else if end == 0 {
            // It cost nothing.
            self.free_counted(0);
        } else {
            self.state().charged.notify_one();
        }
    }

    /// Charges have been counted up to an offset.
    pub(super) fn free_counted(self, offset: u64) {
        if self.state().ledger.lock().free_counted(offset) {
            self.state().reconsider.notify_one();
        }
    }

    /// When calls that wait have to be looked at again.
    pub(super) fn next_ask(self) -> Option<Instant> {
        self.state().ledger.lock().next_ask()
    }

    /// Whether what calls wait for is known.
    pub(super) fn set_ledger_known(self, is_known: bool) {
        self.state().ledger.lock().set_known(is_known);
        for session in self.sessions() {
            self.wake_if(is_known, session);
        }
    }

    fn wake_if(self, is_changed: bool, session: SessionId) {
        if is_changed {
            self.engine.sessions().wake_running(session);
        }
    }

    /// What the calls of a session wait for.
    pub(crate) fn hold_of(self, session: SessionId) -> CallHold {
        self.state().ledger.lock().hold_of(session)
    }

    /// What the log of a session has to say about its calls.
    pub(crate) fn take_note(self, session: SessionId) -> Option<String> {
        self.state().ledger.lock().take_note(session)
    }

    /// Takes why the last call of a session was not sent, if none was sent since.
    pub(crate) fn take_refusal(self, session: SessionId) -> Option<String> {
        self.state().ledger.lock().take_refusal(session)
    }

    /// The budget of a tree was raised.
    pub(crate) fn budget_raised(self, root: SessionId) {
        self.state().ledger.lock().decided(root, Instant::now());
        self.state().reconsider.notify_one();
    }

    /// A higher budget was refused: the calls of the session that wait for it are not sent.
    pub(crate) fn refuse_held(self, session: SessionId) {
        let mut ledger = self.state().ledger.lock();
        ledger.refuse_session(session, NOT_RAISED);
        self.state().reconsider.notify_one();
    }
}

fn not_in_time(seconds: u64) -> String {
    format!(
        "the call was not sent: the budget of this tree of sessions (`max_cost_usd`) has no room for it, and was not \
         raised within {seconds} seconds"
    )
}

fn too_large(call: &HeldCall, limit_usd: f64) -> String {
    let input = call.tokens.input + call.tokens.cache_write;
    format!(
        "a call of the model `{}` was not sent: with up to {input} tokens of the request and {} of the answer it could \
         cost {:.4} USD, more than the whole budget of this tree of sessions, {limit_usd:.4} USD (`max_cost_usd`). Raise \
         the budget with `project_update`, let the agent ask for a shorter answer, or set the price of the model in the \
         configuration (`[models]`)",
        call.model, call.tokens.output, call.cost_usd
    )
}
