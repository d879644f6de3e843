//! The end of a call: what it took goes to the journal of charges, exactly once, however the call ends.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::call::ModelCall;
use super::charges::Charge;
use super::grants::GrantEntry;
use super::meter::{Measured, Meter};
use super::reservations::ReservedCall;
use crate::container::{ContainerGate, Gate};
use crate::journal::{JournalEntry, JournalEvent};
use crate::protocol::Way;

/// What a model writes at most, also of thoughts that are not in its answer.
const MAX_TOKENS_PER_SECOND: u64 = 200;

/// A request that is on its way. Dropped, it counts as one that was cut.
pub(crate) struct Settlement {
    gate: Arc<Gate>,
    container: Arc<ContainerGate>,
    grant: Arc<GrantEntry>,
    /// The provider's host and port.
    host: (String, u16),
    /// None for a request that costs nothing.
    call: Option<ModelCall>,
    /// What the budget has reserved for it.
    reserved: Option<ReservedCall>,
    meter: Option<Meter>,
    started: Instant,
    sent_bytes: u64,
    received_bytes: u64,
    is_settled: bool,
}

impl Settlement {
    pub(crate) fn new(
        gate: &Arc<Gate>,
        container: &Arc<ContainerGate>,
        grant: Arc<GrantEntry>,
        host: (String, u16),
    ) -> Self {
        Self {
            gate: gate.clone(),
            container: container.clone(),
            grant,
            host,
            sent_bytes: 0,
            call: None,
            reserved: None,
            meter: None,
            started: Instant::now(),
            received_bytes: 0,
            is_settled: false,
        }
    }

    /// A call of a model is sent from now on.
    pub(crate) fn start_call(&mut self, call: ModelCall, reserved: Option<ReservedCall>) {
        self.sent_bytes = call.request_bytes;
        self.started = Instant::now();
        self.call = Some(call);
        self.reserved = reserved;
    }

    /// A response has begun, which is counted.
    pub(crate) fn start_meter(&mut self, content_type: &str) {
        if let Some(call) = &self.call {
            self.meter = Some(Meter::new(call.api, content_type));
        }
    }

    /// The provider has refused the request, or never got it: it costs nothing.
    pub(crate) fn set_free(&mut self) {
        self.call = None;
        self.reserved = None;
    }

    pub(crate) fn add_received(&mut self, bytes: usize) {
        self.received_bytes += bytes as u64;
    }

    /// Counts some of the response; returns whether it is complete with them.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> bool {
        self.meter.as_mut().is_some_and(|meter| meter.feed(bytes))
    }

    /// The response has ended well. The receiver is told when that is on the disk.
    pub(crate) fn complete(mut self) -> oneshot::Receiver<()> {
        self.settle(true)
    }

    /// The response has broken off.
    pub(crate) fn cut(mut self) {
        drop(self.settle(false));
    }

    fn settle(&mut self, is_complete: bool) -> oneshot::Receiver<()> {
        self.is_settled = true;
        self.record(JournalEvent::Closed, "");
        let Some(call) = self.call.take() else {
            // Its sender is gone, which ends every wait.
            return oneshot::channel().1;
        };
        let meter = self.meter.take();
        // A provider that got the request and did not answer may have worked on it.
        let meter = meter.unwrap_or_else(|| Meter::new(call.api, "text/event-stream"));
        let mut measured = meter.finish(&call, is_complete);
        if !is_complete {
            let output = &mut measured.tokens.output;
            *output = (*output).max(self.unseen_output(&call));
        }
        self.charge(&call, measured)
    }

    /// What a provider may have written of an answer that broke off. It stops when the connection of a stream ends, and
    /// writes every other answer to its end.
    fn unseen_output(&self, call: &ModelCall) -> u64 {
        let reserved = self.reserved.as_ref().map(ReservedCall::output_tokens);
        let largest = reserved.unwrap_or(call.bounds.tokens.output);
        if call.streams {
            let seconds = self.started.elapsed().as_secs();
            largest.min(seconds.saturating_mul(MAX_TOKENS_PER_SECOND))
        } else {
            largest
        }
    }

    fn charge(&mut self, call: &ModelCall, measured: Measured) -> oneshot::Receiver<()> {
        let answered_by = measured.model.filter(|model| *model != call.model);
        let reserved = self.reserved.take();
        let charge = Charge {
            at: Timestamp::now(),
            session: self.grant.session.clone(),
            provider: self.grant.grant.provider,
            model: call.model.clone(),
            answered_by,
            tokens: measured.tokens,
            is_estimate: measured.is_estimate,
            call: None,
        };
        self.gate.gateway.charges.add(charge, reserved)
    }

    /// Adds a line to the project's journal of connections: never a path, a header or a body.
    pub(crate) fn record(&self, event: JournalEvent, reason: &str) {
        let (host, port) = &self.host;
        let entry = JournalEntry {
            container: self.container.id.clone(),
            host: host.clone(),
            port: Some(*port),
            way: Some(Way::Gateway),
            rule: reason.to_owned(),
            sent_bytes: Some(self.sent_bytes),
            received_bytes: Some(self.received_bytes),
            ..JournalEntry::new(event)
        };
        self.gate.journal.add(&self.container.project, entry);
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        if !self.is_settled {
            drop(self.settle(false));
        }
    }
}
