//! Who waits for news of a session. It carries no events: the log has those.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use oubliette_model::SessionId;
use tokio::sync::watch;
use uuid::Uuid;

use crate::containers::lock;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    One(SessionId),
    Tree(SessionId),
    Standing(SessionId),
    Call(Uuid),
}

type Waiting = Mutex<HashMap<Of, watch::Sender<()>>>;

#[derive(Debug, Default)]
pub(crate) struct Watch {
    waiting: Arc<Waiting>,
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

    /// Hears when a session's status or agent becomes another, and of nothing else.
    pub(crate) fn standing(&self, id: SessionId) -> watch::Receiver<()> {
        self.subscribe(Of::Standing(id))
    }

    /// Hears of the end of a call of a caller's tool.
    pub(crate) fn call(&self, call_id: Uuid) -> CallEnd {
        CallEnd {
            waiting: self.waiting.clone(),
            call_id,
            end: Some(self.subscribe(Of::Call(call_id))),
        }
    }

    fn subscribe(&self, of: Of) -> watch::Receiver<()> {
        let mut waiting = lock(&self.waiting);
        let sender = waiting.entry(of).or_insert_with(|| watch::Sender::new(()));
        sender.subscribe()
    }

    pub(crate) fn tell(&self, id: SessionId, root: SessionId) {
        self.ring(&[Of::One(id), Of::Tree(root)]);
    }

    pub(crate) fn tell_standing(&self, id: SessionId) {
        self.ring(&[Of::Standing(id)]);
    }

    pub(crate) fn tell_call(&self, call_id: Uuid) {
        self.ring(&[Of::Call(call_id)]);
    }

    fn ring(&self, all: &[Of]) {
        let mut waiting = lock(&self.waiting);
        for of in all {
            let left = waiting
                .get(of)
                .is_some_and(|sender| sender.send(()).is_err());
            // Nobody waits any more.
            if left {
                waiting.remove(of);
            }
        }
    }
}

/// Somebody who waits for the end of a call. Calls are many and never come again: what was kept for one
/// goes with the last who waits.
#[derive(Debug)]
pub(crate) struct CallEnd {
    waiting: Arc<Waiting>,
    call_id: Uuid,
    end: Option<watch::Receiver<()>>,
}

impl CallEnd {
    pub(crate) async fn reached(&mut self) {
        if let Some(end) = &mut self.end {
            let _ = end.changed().await;
        }
    }
}

impl Drop for CallEnd {
    fn drop(&mut self) {
        let mut waiting = lock(&self.waiting);
        drop(self.end.take());
        let of = Of::Call(self.call_id);
        if waiting
            .get(&of)
            .is_some_and(|sender| sender.receiver_count() == 0)
        {
            waiting.remove(&of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_kept_of_a_call_that_nobody_waits_for() {
        let watch = Watch::default();
        let call = Uuid::from_u128(1);
        let (mut one, other) = (watch.call(call), watch.call(call));
        watch.tell_call(call);
        one.reached().await;
        drop(one);
        assert_eq!(lock(&watch.waiting).len(), 1);
        drop(other);
        assert!(lock(&watch.waiting).is_empty());
    }
}
