//! The task that speaks to the gate: it finds or starts one when a container needs it, tells it what it should have,
//! and starts another when it dies.

use std::io;
use std::time::Duration;

use oubliette_gate::{Answer, ControlClient, GateReports, own_build};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Network;
use crate::Engine;

/// Denials that wait to be put into the logs of sessions.
const MAX_QUEUED_DENIALS: usize = 256;
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How often a gate of an earlier build, which had open connections, is asked again to end.
const REPLACEMENT_INTERVAL: Duration = Duration::from_secs(5);
/// A connection that stays open, perhaps on purpose, must not keep an earlier build at work for ever.
const DEFAULT_REPLACEMENT_SECONDS: u32 = 1800;

/// A change of what the gate should have, which is in the state already.
#[derive(Debug)]
pub(super) enum Change {
    Set {
        id: String,
        reply: oneshot::Sender<io::Result<()>>,
    },
    Remove {
        id: String,
    },
    /// Not a part of that state: no other gate than the one that asked knows the question.
    Answer {
        question: String,
        answer: Answer,
    },
}

impl Engine {
    /// Speaks to the gate until the engine stops. The gate goes on.
    pub(crate) async fn run_gate_link(&self) {
        let Some(mut changes) = self.parts.network.changes_receiver.lock().take() else {
            return;
        };
        let (denials, mut received) = mpsc::channel(MAX_QUEUED_DENIALS);
        let questions = self.parts.network.questions.reports();
        let reports = GateReports { denials, questions };
        let recording = async {
            while let Some(denial) = received.recv().await {
                self.network().record_denial(denial).await;
            }
        };
        let linking = async {
            let mut interval = MIN_RETRY_INTERVAL;
            let mut waiting = Vec::new();
            loop {
                if self.network().has_nothing_registered() {
                    self.network().release_gate(&reports, &mut waiting).await;
                    match changes.recv().await {
                        Some(change) => waiting.push(change),
                        None => return,
                    }
                }
                match self
                    .network()
                    .link(&reports, &mut changes, &mut waiting)
                    .await
                {
                    Ok(()) => interval = MIN_RETRY_INTERVAL,
                    Err(error) => {
                        tracing::warn!(%error, "no connection to the gate");
                        let text = error.to_string();
                        for change in waiting.drain(..) {
                            if let Change::Set { reply, .. } = change {
                                let _ = reply.send(Err(io::Error::other(text.clone())));
                            }
                        }
                        tokio::time::sleep(interval).await;
                        interval = (interval * 2).min(MAX_RETRY_INTERVAL);
                    }
                }
            }
        };
        tokio::select! {
            () = recording => {}
            () = self.distribute_questions() => {}
            () = linking => {}
        }
    }
}

impl Network<'_> {
    fn has_nothing_registered(self) -> bool {
        self.state().registrations.lock().is_empty()
    }

    /// After a restart these are registered one by one; their connections must not be cut meanwhile.
    async fn stored_containers(self) -> io::Result<impl Iterator<Item = String>> {
        let stored = self.engine.store().containers().await;
        let stored = stored.map_err(io::Error::other)?;
        Ok(stored.into_iter().map(|container| container.id))
    }

    /// Tells a gate that runs which containers are gone; it ends when it has none. This server may have removed them
    /// all at once, or an earlier one may have died before it said so.
    async fn release_gate(self, reports: &GateReports, waiting: &mut Vec<Change>) {
        let data_dir = &self.gate_command().data_dir;
        let Ok(mut client) = ControlClient::connect(data_dir, reports.clone()).await else {
            waiting.clear();
            return;
        };
        let released = async {
            for change in waiting.drain(..) {
                if let Change::Remove { id } = change {
                    client.remove(&id).await?;
                }
            }
            client.keep(self.stored_containers().await?.collect()).await
        };
        if let Err(error) = released.await {
            tracing::warn!(%error, "the gate was not told which containers are gone");
        }
    }

    /// Connects, brings the gate up to date, and passes changes on until the gate ends or is not needed. Changes that
    /// are not confirmed yet stay in `waiting`.
    async fn link(
        self,
        reports: &GateReports,
        changes: &mut mpsc::Receiver<Change>,
        waiting: &mut Vec<Change>,
    ) -> io::Result<()> {
        if self.has_nothing_registered() {
            return Ok(());
        }
        let command = self.gate_command();
        let mut client = ControlClient::connect_or_start(&command, reports.clone()).await?;
        client
            .configure(self.engine.settings().network.resolver)
            .await?;
        let registrations = self.state().registrations.lock().clone();
        let registered = registrations.keys().cloned();
        let kept = registered.chain(self.stored_containers().await?);
        client.keep(kept.collect()).await?;
        for (id, registration) in registrations {
            // One whose directory is gone must not keep the others from working.
            if let Err(error) = client.set(registration).await {
                tracing::warn!(container = id, %error, "the gate does not take a container");
            }
        }
        client.subscribe().await?;
        for change in waiting.drain(..) {
            self.confirm(&mut client, change).await;
        }
        let is_outdated = client.status().await?.build != own_build();
        let seconds = self.engine.settings().network.gate_replacement_seconds;
        let seconds = seconds.unwrap_or(DEFAULT_REPLACEMENT_SECONDS);
        let deadline = Instant::now() + Duration::from_secs(seconds.into());
        let mut replacements = tokio::time::interval(REPLACEMENT_INTERVAL);
        loop {
            tokio::select! {
                change = changes.recv() => {
                    let Some(change) = change else { return Ok(()) };
                    if !self.pass_on(&mut client, change, waiting).await || self.has_nothing_registered() {
                        return Ok(());
                    }
                }
                () = client.wait_for_end() => {
                    tracing::warn!("the gate has ended; starting another");
                    return Ok(());
                }
                _ = replacements.tick(), if is_outdated => {
                    let only_if_idle = Instant::now() < deadline;
                    if client.stop(only_if_idle).await.is_ok() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Replies to a change that the gate has been told of with all others.
    async fn confirm(self, client: &mut ControlClient, change: Change) {
        match change {
            Change::Set { id, reply } => {
                let _ = reply.send(self.set(client, &id).await);
            }
            Change::Answer { question, answer } => {
                // If it fails, the connection has ended, which the caller notices.
                let _ = client.answer(question, answer).await;
            }
            Change::Remove { .. } => {}
        }
    }

    /// Tells the gate of one change; false if the gate has ended, and the change waits for the next.
    async fn pass_on(
        self,
        client: &mut ControlClient,
        change: Change,
        waiting: &mut Vec<Change>,
    ) -> bool {
        match change {
            Change::Remove { id } => client.remove(&id).await.is_ok(),
            Change::Answer { question, answer } => {
                let taken = client.answer(question.clone(), answer.clone()).await;
                if taken.is_err() && client.status().await.is_err() {
                    waiting.push(Change::Answer { question, answer });
                    return false;
                }
                true
            }
            Change::Set { id, reply } => {
                let result = self.set(client, &id).await;
                if result.is_err() && client.status().await.is_err() {
                    waiting.push(Change::Set { id, reply });
                    return false;
                }
                let _ = reply.send(result);
                true
            }
        }
    }

    async fn set(self, client: &mut ControlClient, id: &str) -> io::Result<()> {
        let registration = self.state().registrations.lock().get(id).cloned();
        match registration {
            Some(registration) => client.set(registration).await,
            // Removed meanwhile.
            None => Ok(()),
        }
    }
}
