//! The task that tells the gate what placeholders stand for, and which calls have room in their budget.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use oubliette_gate::gateway::{GatewayLink, ToServer};
use oubliette_model::SessionId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Gateway;
use crate::Engine;

const COUNT_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// A change of what the gate should have about a session, which is in the state already.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) session: SessionId,
    /// Told when the gate knows.
    pub(super) reply: Option<oneshot::Sender<()>>,
}

/// Who waits for the gate to confirm.
#[derive(Debug, Default)]
struct Waiting {
    /// Not sent yet, or sent to a gate that has ended.
    unsent: Vec<Change>,
    sent: BTreeMap<u64, Change>,
}

impl Engine {
    /// Speaks to the gateway until the engine stops. The gate goes on.
    pub(crate) async fn run_gateway_link(&self) {
        let Some(mut changes) = self.parts.gateway.changes_receiver.lock().take() else {
            return;
        };
        // What an earlier server did not read.
        self.parts.gateway.charged.notify_one();
        let mut waiting = Waiting::default();
        let mut interval = MIN_RETRY_INTERVAL;
        loop {
            if self.gateway().sessions().is_empty() && waiting.unsent.is_empty() {
                match changes.recv().await {
                    Some(change) => waiting.unsent.push(change),
                    None => return,
                }
            }
            let connected = GatewayLink::connect(&self.settings().data_dir).await;
            let ended = match connected {
                Ok(link) => {
                    let connected = Instant::now();
                    let served = self.gateway().serve_link(link, &mut changes, &mut waiting);
                    let ended = Box::pin(served).await;
                    self.gateway().set_ledger_known(false);
                    if connected.elapsed() > MAX_RETRY_INTERVAL {
                        interval = MIN_RETRY_INTERVAL;
                    } else if let Err(error) = &ended {
                        tracing::warn!(%error, "the connection to the gate for calls of models has ended at once");
                    }
                    ended
                }
                // The gate is started for its containers (`network/gate_link.rs`). A new one gets everything.
                Err(error) => {
                    waiting.unsent.retain(|change| change.reply.is_some());
                    Err(error)
                }
            };
            // Those that were not confirmed are sent again: the same gate may still have what was revoked.
            waiting
                .unsent
                .extend(std::mem::take(&mut waiting.sent).into_values());
            if ended.is_err() {
                tokio::time::sleep(interval).await;
                interval = (interval * 2).min(MAX_RETRY_INTERVAL);
            }
        }
    }

    /// Counts charges whenever there are new ones. Not in the task of the link: calls wait for that.
    pub(crate) async fn run_charge_counter(&self) {
        loop {
            self.parts.gateway.charged.notified().await;
            while let Err(error) = self.gateway().count_charges().await {
                tracing::warn!(%error, "could not count what models cost; trying again");
                tokio::time::sleep(COUNT_RETRY_INTERVAL).await;
            }
        }
    }
}

impl Gateway<'_> {
    /// Brings the gate up to date, and passes changes on until it ends.
    async fn serve_link(
        self,
        link: GatewayLink,
        changes: &mut mpsc::Receiver<Change>,
        waiting: &mut Waiting,
    ) -> io::Result<()> {
        let GatewayLink {
            mut sender,
            mut receiver,
            reservations,
            asked,
            ..
        } = link;
        let begun = self.begin_ledger(reservations).await;
        begun.map_err(io::Error::other)?;
        for session in self.sessions() {
            let grants = self.grants_of(session).await.map_err(io::Error::other)?;
            sender.set(grants).await?;
        }
        for reservation in &asked {
            self.reserve(reservation, &mut sender).await?;
        }
        self.set_ledger_known(true);
        let state = self.state();
        loop {
            while let Some(change) = waiting.unsent.pop() {
                let grants = self.grants_of(change.session).await;
                let sent = match grants {
                    Ok(grants) => sender.set(grants).await,
                    Err(error) => Err(io::Error::other(error)),
                };
                match sent {
                    Ok(request) => drop(waiting.sent.insert(request, change)),
                    Err(error) => {
                        waiting.unsent.push(change);
                        return Err(error);
                    }
                }
            }
            tokio::select! {
                change = changes.recv() => match change {
                    Some(change) => waiting.unsent.push(change),
                    None => return Ok(()),
                },
                () = state.reconsider.notified() => self.reconsider(&mut sender).await?,
                () = until(self.next_ask()) => self.reconsider(&mut sender).await?,
                message = receiver.next() => match message? {
                    ToServer::Done { request } => {
                        let change = waiting.sent.remove(&request);
                        if let Some(reply) = change.and_then(|change| change.reply) {
                            // Whoever waited may have given up.
                            let _ = reply.send(());
                        }
                    }
                    ToServer::Charged { .. } => state.charged.notify_one(),
                    ToServer::Reserve(reservation) => {
                        self.reserve(&reservation, &mut sender).await?;
                    }
                    ToServer::Released { reservation, end } => self.release(reservation, end),
                    ToServer::Hello { .. } => {}
                },
            }
        }
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
