//! The task that tells the gate what placeholders stand for.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use oubliette_gate::gateway::{GatewayLink, ToServer};
use oubliette_model::SessionId;
use tokio::sync::{mpsc, oneshot};

use super::Gateway;
use crate::Engine;

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
        self.gateway().count_charges_or_warn().await;
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
                    interval = MIN_RETRY_INTERVAL;
                    self.gateway()
                        .serve_link(link, &mut changes, &mut waiting)
                        .await
                }
                // The gate is started for its containers (`network/gate_link.rs`).
                Err(error) => Err(error),
            };
            // Those that were not confirmed are sent to the next gate, which gets everything.
            waiting
                .unsent
                .extend(std::mem::take(&mut waiting.sent).into_values());
            waiting.unsent.retain(|change| change.reply.is_some());
            if ended.is_err() {
                tokio::time::sleep(interval).await;
                interval = (interval * 2).min(MAX_RETRY_INTERVAL);
            }
        }
    }
}

impl Gateway<'_> {
    async fn count_charges_or_warn(self) {
        if let Err(error) = self.count_charges().await {
            tracing::warn!(%error, "could not count what models cost; trying again with the next call");
        }
    }

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
            ..
        } = link;
        self.count_charges_or_warn().await;
        for session in self.sessions() {
            let grants = self.grants_of(session).await.map_err(io::Error::other)?;
            sender.set(grants).await?;
        }
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
                message = receiver.next() => match message? {
                    ToServer::Done { request } => {
                        let change = waiting.sent.remove(&request);
                        if let Some(reply) = change.and_then(|change| change.reply) {
                            // Whoever waited may have given up.
                            let _ = reply.send(());
                        }
                    }
                    ToServer::Charged { .. } => self.count_charges_or_warn().await,
                    ToServer::Hello { .. } => {}
                },
            }
        }
    }
}
