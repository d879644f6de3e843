//! Wakes tasks that wait for a session to change. A wakeup carries no events, which are in the log; but
//! the first of several readers that it wakes leaves the page it read for the others.

use std::collections::HashMap;
use std::hash::Hash;
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

/// Senders by topic. Topics are many, so the last receiver of one that is dropped removes its sender.
type Senders<T, V> = Mutex<HashMap<T, watch::Sender<V>>>;

type Outcome = Option<Arc<CallerRequestResult>>;

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
    senders: Arc<Senders<Topic, Wakeup>>,
    call_outcomes: Arc<Senders<Uuid, Outcome>>,
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
        CallOutcome(TopicReceiver::new(&self.call_outcomes, call_id))
    }

    fn subscribe(&self, topic: Topic) -> Subscription {
        Subscription(TopicReceiver::new(&self.senders, topic))
    }

    /// How many topics have subscribers.
    pub(crate) fn count_topics(&self) -> usize {
        self.senders.lock().len() + self.call_outcomes.lock().len()
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
        let senders = self.senders.lock();
        for topic in topics {
            if let Some(sender) = senders.get(topic) {
                sender.send_replace(Wakeup::default());
            }
        }
    }
}

/// A receiver of one topic.
#[derive(Debug)]
struct TopicReceiver<T: Copy + Eq + Hash, V> {
    senders: Arc<Senders<T, V>>,
    topic: T,
    /// None only while it is dropped.
    receiver: Option<watch::Receiver<V>>,
}

impl<T: Copy + Eq + Hash, V: Default> TopicReceiver<T, V> {
    fn new(senders: &Arc<Senders<T, V>>, topic: T) -> Self {
        let receiver = senders.lock().entry(topic).or_default().subscribe();
        Self {
            senders: senders.clone(),
            topic,
            receiver: Some(receiver),
        }
    }
}

impl<T: Copy + Eq + Hash, V> Drop for TopicReceiver<T, V> {
    fn drop(&mut self) {
        let mut senders = self.senders.lock();
        drop(self.receiver.take());
        let unused = |sender: &watch::Sender<V>| sender.receiver_count() == 0;
        if senders.get(&self.topic).is_some_and(unused) {
            senders.remove(&self.topic);
        }
    }
}

/// A subscription to the changes of a session.
#[derive(Debug)]
pub(crate) struct Subscription(TopicReceiver<Topic, Wakeup>);

impl Subscription {
    /// Waits until there was a change since the last one that was seen. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        if let Some(receiver) = &mut self.0.receiver
            && receiver.changed().await.is_ok()
        {
            return;
        }
        // Not reached: the sender lives as long as its receivers.
        std::future::pending::<()>().await;
    }

    /// Changes until now count as seen.
    pub(crate) fn mark_unchanged(&mut self) {
        if let Some(receiver) = &mut self.0.receiver {
            receiver.mark_unchanged();
        }
    }

    /// The last wakeup, which counts as seen.
    pub(super) fn last_wakeup(&mut self) -> Wakeup {
        let receiver = self.0.receiver.as_mut();
        receiver.map_or_else(Wakeup::default, |receiver| {
            receiver.borrow_and_update().clone()
        })
    }
}

/// A subscription to the outcome of one call.
#[derive(Debug)]
pub(crate) struct CallOutcome(TopicReceiver<Uuid, Outcome>);

impl CallOutcome {
    /// Waits until the call has ended.
    pub(crate) async fn wait(&mut self) -> Arc<CallerRequestResult> {
        if let Some(receiver) = &mut self.0.receiver
            && let Ok(ended) = receiver.wait_for(Option::is_some).await
            && let Some(ended) = ended.as_ref()
        {
            return ended.clone();
        }
        // Not reached: the sender lives as long as its receivers.
        std::future::pending().await
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
    #[tokio::test]
    async fn a_topic_is_forgotten_with_its_last_subscription() {
        let subscriptions = Subscriptions::default();
        let id = SessionId::new(Uuid::from_u128(1));
        let (mut first, second) = (subscriptions.log(id), subscriptions.log(id));
        let others = (subscriptions.tree_logs(id), subscriptions.status(id));
        subscriptions.notify_log(id, id);
        first.changed().await;
        drop(first);
        assert_eq!(subscriptions.count_topics(), 3);
        drop((second, others));
        assert_eq!(subscriptions.count_topics(), 0);
        subscriptions.notify_log(id, id);
        subscriptions.notify_status(id);
        assert_eq!(subscriptions.count_topics(), 0);
    }
}
