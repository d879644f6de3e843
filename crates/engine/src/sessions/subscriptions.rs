//! Wakes tasks that wait for a session to change. A wakeup carries no events, which are in the log; but
//! the first of several readers that it wakes leaves the page it read for the others.

use std::collections::HashMap;
use std::sync::Arc;

use oubliette_model::SessionId;
use oubliette_store::CallerRequestResult;
use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use super::log_reader::{LogPage, PageRequest};

/// What a subscriber is woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Topic {
    Log(SessionId),
    /// The logs of all sessions with this root.
    TreeLogs(SessionId),
    Status(SessionId),
}

/// Outcomes of calls of callers' tools, for the tasks that wait for them.
type CallOutcomes = Mutex<HashMap<Uuid, watch::Sender<Option<Arc<CallerRequestResult>>>>>;

/// The sender lives at least as long as the subscription, so `changed` does not fail.
pub(crate) type Subscription = watch::Receiver<Wakeup>;

/// One wakeup, and the page that a reader read after it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wakeup(Arc<Mutex<Option<(PageRequest, LogPage)>>>);

impl Wakeup {
    /// The page that another reader, woken by the same wakeup, has read.
    pub(super) fn shared_page(&self, request: PageRequest) -> Option<LogPage> {
        let shared = self.0.lock();
        let matching = shared.as_ref().filter(|(of, _)| *of == request);
        matching.map(|(_, page)| page.clone())
    }

    pub(super) fn share_page(&self, request: PageRequest, page: &LogPage) {
        *self.0.lock() = Some((request, page.clone()));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    senders: Mutex<HashMap<Topic, watch::Sender<Wakeup>>>,
    call_outcomes: Arc<CallOutcomes>,
}

impl Subscriptions {
    /// Subscribes to changes of a session's log.
    pub(crate) fn log(&self, id: SessionId) -> Subscription {
        self.subscribe(Topic::Log(id))
    }

    /// Subscribes to changes of the logs of a tree of sessions.
    pub(crate) fn tree_logs(&self, root: SessionId) -> Subscription {
        self.subscribe(Topic::TreeLogs(root))
    }

    /// Subscribes to changes of a session's status or agent.
    pub(crate) fn status(&self, id: SessionId) -> Subscription {
        self.subscribe(Topic::Status(id))
    }

    /// Subscribes to the outcome of a call of a caller's tool.
    pub(crate) fn call_outcome(&self, call_id: Uuid) -> CallOutcome {
        let mut senders = self.call_outcomes.lock();
        let sender = senders
            .entry(call_id)
            .or_insert_with(|| watch::Sender::new(None));
        CallOutcome {
            senders: self.call_outcomes.clone(),
            call_id,
            receiver: Some(sender.subscribe()),
        }
    }

    fn subscribe(&self, topic: Topic) -> Subscription {
        self.senders.lock().entry(topic).or_default().subscribe()
    }

    pub(crate) fn notify_log(&self, id: SessionId, root: SessionId) {
        self.notify(&[Topic::Log(id), Topic::TreeLogs(root)]);
    }

    pub(crate) fn notify_status(&self, id: SessionId) {
        self.notify(&[Topic::Status(id)]);
    }

    pub(crate) fn notify_call_outcome(&self, call_id: Uuid, ended: CallerRequestResult) {
        if let Some(sender) = self.call_outcomes.lock().get(&call_id) {
            sender.send_replace(Some(Arc::new(ended)));
        }
    }

    fn notify(&self, topics: &[Topic]) {
        let mut senders = self.senders.lock();
        for topic in topics {
            let unused = senders
                .get(topic)
                .is_some_and(|sender| sender.send(Wakeup::default()).is_err());
            if unused {
                senders.remove(topic);
            }
        }
    }
}

/// A subscription to the outcome of one call. Call ids are many and never reused, so the last
/// subscription that is dropped removes the call's sender.
#[derive(Debug)]
pub(crate) struct CallOutcome {
    senders: Arc<CallOutcomes>,
    call_id: Uuid,
    receiver: Option<watch::Receiver<Option<Arc<CallerRequestResult>>>>,
}

impl CallOutcome {
    /// Waits until the call has ended.
    pub(crate) async fn wait(&mut self) -> Arc<CallerRequestResult> {
        if let Some(receiver) = &mut self.receiver
            && let Ok(ended) = receiver.wait_for(Option::is_some).await
            && let Some(ended) = ended.as_ref()
        {
            return ended.clone();
        }
        // Not reached: the sender lives as long as its receivers.
        std::future::pending().await
    }
}

impl Drop for CallOutcome {
    fn drop(&mut self) {
        let mut senders = self.senders.lock();
        drop(self.receiver.take());
        let unused = |sender: &watch::Sender<_>| sender.receiver_count() == 0;
        if senders.get(&self.call_id).is_some_and(unused) {
            senders.remove(&self.call_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use oubliette_model::CallerToolOutcome;

    use super::*;

    #[tokio::test]
    async fn the_last_dropped_subscription_removes_the_sender_of_a_call() {
        let subscriptions = Subscriptions::default();
        let call = Uuid::from_u128(1);
        let mut first = subscriptions.call_outcome(call);
        let second = subscriptions.call_outcome(call);
        let ended = CallerRequestResult {
            outcome: CallerToolOutcome::Answered,
            answer: "so it is".into(),
        };
        subscriptions.notify_call_outcome(call, ended.clone());
        assert_eq!(*first.wait().await, ended);
        drop(first);
        let mut late = subscriptions.call_outcome(call);
        assert_eq!(*late.wait().await, ended);
        drop((second, late));
        assert!(subscriptions.call_outcomes.lock().is_empty());
        subscriptions.notify_call_outcome(call, ended);
        assert!(subscriptions.call_outcomes.lock().is_empty());
    }
}
