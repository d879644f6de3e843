//! Who waits for news of a session. It carries no events: the log has those. What the first of many who
//! were woken together has read of it serves the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use oubliette_model::SessionId;
use oubliette_store::Ended;
use tokio::sync::watch;
use uuid::Uuid;

use super::events::{Output, Place};
use crate::containers::lock;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    One(SessionId),
    Tree(SessionId),
    Standing(SessionId),
}

/// What became of calls that somebody waits for.
type Calls = Mutex<HashMap<Uuid, watch::Sender<Option<Arc<Ended>>>>>;

/// A ring of the bell, and what somebody read after it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ring(Arc<Mutex<Option<(Place, Output)>>>);

impl Ring {
    /// The page that somebody who was woken by this ring, too, has read.
    pub(crate) fn page(&self, place: Place) -> Option<Output> {
        let page = lock(&self.0);
        let page = page.as_ref().filter(|(of, _)| *of == place);
        page.map(|(_, page)| page.clone())
    }

    pub(crate) fn keep(&self, place: Place, page: &Output) {
        *lock(&self.0) = Some((place, page.clone()));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Watch {
    waiting: Mutex<HashMap<Of, watch::Sender<Ring>>>,
    calls: Arc<Calls>,
}

impl Watch {
    /// Hears of every change of a session's log from now on.
    pub(crate) fn session(&self, id: SessionId) -> watch::Receiver<Ring> {
        self.subscribe(Of::One(id))
    }

    /// The same for every session of a tree.
    pub(crate) fn tree(&self, root: SessionId) -> watch::Receiver<Ring> {
        self.subscribe(Of::Tree(root))
    }

    /// Hears when a session's status or agent becomes another, and of nothing else.
    pub(crate) fn standing(&self, id: SessionId) -> watch::Receiver<Ring> {
        self.subscribe(Of::Standing(id))
    }

    /// Hears of the end of a call of a caller's tool.
    pub(crate) fn call(&self, call_id: Uuid) -> CallEnd {
        let mut calls = lock(&self.calls);
        let sender = calls
            .entry(call_id)
            .or_insert_with(|| watch::Sender::new(None));
        CallEnd {
            calls: self.calls.clone(),
            call_id,
            end: Some(sender.subscribe()),
        }
    }

    fn subscribe(&self, of: Of) -> watch::Receiver<Ring> {
        let mut waiting = lock(&self.waiting);
        let sender = waiting.entry(of).or_default();
        sender.subscribe()
    }

    pub(crate) fn tell(&self, id: SessionId, root: SessionId) {
        self.ring(&[Of::One(id), Of::Tree(root)]);
    }

    pub(crate) fn tell_standing(&self, id: SessionId) {
        self.ring(&[Of::Standing(id)]);
    }

    /// Says what became of a call.
    pub(crate) fn tell_call(&self, call_id: Uuid, ended: Ended) {
        if let Some(sender) = lock(&self.calls).get(&call_id) {
            sender.send_replace(Some(Arc::new(ended)));
        }
    }

    fn ring(&self, all: &[Of]) {
        let mut waiting = lock(&self.waiting);
        for of in all {
            let left = waiting
                .get(of)
                .is_some_and(|sender| sender.send(Ring::default()).is_err());
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
    calls: Arc<Calls>,
    call_id: Uuid,
    end: Option<watch::Receiver<Option<Arc<Ended>>>>,
}

impl CallEnd {
    /// Waits for the end of the call, and says what it was.
    pub(crate) async fn reached(&mut self) -> Arc<Ended> {
        if let Some(end) = &mut self.end
            && let Ok(ended) = end.wait_for(Option::is_some).await
            && let Some(ended) = ended.as_ref()
        {
            return ended.clone();
        }
        // Its sender lives as long as somebody waits.
        std::future::pending().await
    }
}

impl Drop for CallEnd {
    fn drop(&mut self) {
        let mut calls = lock(&self.calls);
        drop(self.end.take());
        let last = |sender: &watch::Sender<_>| sender.receiver_count() == 0;
        if calls.get(&self.call_id).is_some_and(last) {
            calls.remove(&self.call_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use oubliette_model::CallerToolOutcome;

    use super::*;

    #[tokio::test]
    async fn nothing_is_kept_of_a_call_that_nobody_waits_for() {
        let watch = Watch::default();
        let call = Uuid::from_u128(1);
        let (mut one, other) = (watch.call(call), watch.call(call));
        let ended = Ended {
            outcome: CallerToolOutcome::Answered,
            answer: "so it is".into(),
        };
        watch.tell_call(call, ended.clone());
        assert_eq!(*one.reached().await, ended);
        drop(one);
        let mut late = watch.call(call);
        assert_eq!(*late.reached().await, ended);
        drop((other, late));
        assert!(lock(&watch.calls).is_empty());
        watch.tell_call(call, ended);
        assert!(lock(&watch.calls).is_empty(), "nobody waits for it");
    }
}
