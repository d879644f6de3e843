//! Who is still there: a command whose caller does not come back is hung up on, and while there is
//! a dialogue its container is in use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oubliette_model::ProjectId;
use oubliette_runtime::ContainerId;
use oubliette_wire::{SignalProcess, Supervise, supervisor_methods};
use tokio::time::Instant;

use super::Partner;
use crate::containers::link::Link;
use crate::containers::{DIALOGUE, Flag, lock};
use crate::{Engine, EngineError, Result};

/// How long a command may take to end that was hung up on.
const GRACE: Duration = Duration::from_secs(10);
/// How often the audit log says that a dialogue goes on.
const NOTE: Duration = Duration::from_secs(60);
/// A supervisor whose connection broke comes back within this time, or its container has ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// Dialogues of one container at once.
const MOST: usize = 64;

type Key = (ContainerId, String);

/// All dialogues of this server.
#[derive(Debug, Default)]
pub(in crate::containers) struct Dialogues {
    all: Mutex<HashMap<Key, Arc<Presence>>>,
}

/// When the caller was last heard of.
#[derive(Debug)]
struct Presence {
    boot_id: String,
    seen: Mutex<Instant>,
    noted: Mutex<Instant>,
    finished: Flag,
}

impl Presence {
    /// Returns when the caller has been away for that long.
    async fn missed(&self, absence: Duration) {
        loop {
            let seen = *lock(&self.seen);
            tokio::time::sleep_until(seen + absence).await;
            if *lock(&self.seen) == seen {
                return;
            }
        }
    }
}

impl Dialogues {
    /// Whether it is time to note that a dialogue goes on.
    pub(super) fn is_due(&self, partner: &Partner<'_>) -> bool {
        let all = lock(&self.all);
        let Some(presence) = all.get(&key(partner)) else {
            return true;
        };
        let mut noted = lock(&presence.noted);
        let due = noted.elapsed() >= NOTE;
        if due {
            *noted = Instant::now();
        }
        due
    }

    /// Notes that a caller is there.
    pub(super) fn hear_of(&self, partner: &Partner<'_>) {
        if let Some(presence) = lock(&self.all).get(&key(partner)) {
            *lock(&presence.seen) = Instant::now();
        }
    }

    /// Its end is stored; nobody needs to look after it.
    pub(super) fn finish(&self, partner: &Partner<'_>) {
        if let Some(presence) = lock(&self.all).get(&key(partner)) {
            presence.finished.raise();
        }
    }

    /// Notes that a dialogue goes on; its presence, if it is new.
    fn see(&self, key: &Key, boot_id: &str) -> Result<Option<Arc<Presence>>> {
        let mut all = lock(&self.all);
        if let Some(known) = all.get(key)
            && known.boot_id == boot_id
            && !known.finished.is_raised()
        {
            *lock(&known.seen) = Instant::now();
            return Ok(None);
        }
        if all.keys().filter(|(other, _)| *other == key.0).count() >= MOST {
            return Err(EngineError::Failed(format!(
                "{MOST} dialogues are going on in this container; end one of them first"
            )));
        }
        let presence = Arc::new(Presence {
            boot_id: boot_id.to_owned(),
            seen: Mutex::new(Instant::now()),
            noted: Mutex::new(Instant::now()),
            finished: Flag::default(),
        });
        all.insert(key.clone(), presence.clone());
        Ok(Some(presence))
    }

    fn leave(&self, key: &Key, presence: &Arc<Presence>) {
        let mut all = lock(&self.all);
        if all
            .get(key)
            .is_some_and(|known| Arc::ptr_eq(known, presence))
        {
            all.remove(key);
        }
    }
}

fn key(partner: &Partner<'_>) -> Key {
    (partner.container.clone(), partner.process_id.clone())
}

impl Engine {
    /// Looks after a dialogue that begins.
    pub(super) fn attend(&self, partner: &Partner<'_>, boot_id: &str) -> Result<()> {
        self.look_after(key(partner), partner.project_id, boot_id)
    }

    /// Goes on with the dialogues that a server before this one looked after.
    pub(in crate::containers) async fn resume_dialogues(
        &self,
        container: &ContainerId,
        hello: &Supervise,
    ) {
        let ids = hello.processes.iter().map(|report| &report.process_id);
        let ids: Vec<&String> = ids.filter(|id| id.starts_with(DIALOGUE)).collect();
        if ids.is_empty() {
            return;
        }
        let Ok(Some(stored)) = self.store().container(container.as_str()).await else {
            return;
        };
        for id in ids {
            let key = (container.clone(), id.clone());
            // Only as many as there could have been.
            if self
                .look_after(key, stored.project_id, &hello.boot_id)
                .is_err()
            {
                return;
            }
        }
    }

    fn look_after(&self, key: Key, project: ProjectId, boot_id: &str) -> Result<()> {
        let Some(presence) = self.containers().dialogues.see(&key, boot_id)? else {
            return Ok(());
        };
        let engine = self.clone();
        self.spawn(async move {
            tokio::select! {
                () = engine.watch(&key, &presence, project) => {}
                () = presence.finished.raised() => {}
                () = engine.stopping() => {}
            }
            engine.containers().dialogues.leave(&key, &presence);
        });
        Ok(())
    }

    /// Sees a dialogue to its end, also if its caller does not.
    async fn watch(&self, key: &Key, presence: &Presence, project: ProjectId) {
        let (container, process_id) = key;
        let absence = Duration::from_secs(self.settings().containers.absence_seconds);
        let exited = {
            let _use = self.containers().using(container);
            let Ok(mut link) = self.containers().link(container, PATIENCE).await else {
                return;
            };
            loop {
                if link.boot_id() != presence.boot_id {
                    return;
                }
                tokio::select! {
                    exited = link.exited(process_id) => match exited {
                        Ok(exited) => break exited,
                        // The next connection knows.
                        Err(_) => match self.containers().relink(container, &link).await {
                            Ok(next) => link = next,
                            Err(_) => return,
                        },
                    },
                    () = presence.missed(absence) => {
                        tracing::info!(%container, process_id, "hanging up: its caller has gone");
                        if !hang_up(&link, process_id).await {
                            // What cannot be ended is left to the end of its container.
                            return;
                        }
                    }
                }
            }
        };
        // Kept for a caller that was cut off just before the end.
        presence.missed(absence).await;
        let output = serde_json::json!({
            "project_id": project, "exit_code": crate::containers::exec::exit_code(exited.ended),
            "stdout": "", "stderr": "", "truncated": true, "timed_out": false, "duration_ms": 0,
            "running": false,
        });
        let stored = self
            .store()
            .end_exec(project, process_id, &output.to_string())
            .await;
        if let (Ok(()), Ok(link)) = (
            stored,
            self.containers().link(container, Duration::ZERO).await,
        ) {
            link.forget(process_id).await;
        }
    }
}

/// Tells a command that its terminal is gone and, if that does not end it, ends it; whether it has.
async fn hang_up(link: &Link, process_id: &str) -> bool {
    for signal in [1, 9] {
        let to = SignalProcess {
            process_id: process_id.to_owned(),
            signal,
            tree: true,
        };
        let _ = link.ask(supervisor_methods::SIGNAL, &to).await;
        let gone = tokio::time::timeout(GRACE, link.exited(process_id)).await;
        if gone.is_ok_and(|exited| exited.is_ok()) {
            return true;
        }
    }
    false
}
