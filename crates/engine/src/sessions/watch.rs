//! Who waits for news of a session. It carries no events: the log has those.

use std::collections::HashMap;
use std::sync::Mutex;

use oubliette_model::SessionId;
use tokio::sync::watch;

use crate::containers::lock;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    One(SessionId),
    Tree(SessionId),
}

#[derive(Debug, Default)]
pub(crate) struct Watch {
    waiting: Mutex<HashMap<Of, watch::Sender<()>>>,
}

impl Watch {
    /// Hears of every change of a session's log from now on.
    pub(crate) fn session(&self, id: SessionId) -> watch::Receiver<()> {
        self.subscribe(Of::One(id))
    }

    /// The same for every session of a tree.
    pub(crate) fn tree(&self, root: SessionId) -> watch::Receiver<()> {
        self.subscribe(Of::Tree(root))
    }

    fn subscribe(&self, of: Of) -> watch::Receiver<()> {
        let mut waiting = lock(&self.waiting);
        let sender = waiting.entry(of).or_insert_with(|| watch::Sender::new(()));
        sender.subscribe()
    }

    pub(crate) fn tell(&self, id: SessionId, root: SessionId) {
        let mut waiting = lock(&self.waiting);
        for of in [Of::One(id), Of::Tree(root)] {
            let left = waiting
                .get(&of)
                .is_some_and(|sender| sender.send(()).is_err());
            // Nobody waits any more.
            if left {
                waiting.remove(&of);
            }
        }
    }
}
