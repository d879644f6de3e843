//! Which tools of its caller the client of an agent received last. An agent gets a prompt only after
//! the tools that were declared with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oubliette_model::SessionId;
use oubliette_wire::CallerTools;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Callers;
use crate::Result;

/// A client that does not take its tool list in this time gets the prompt without it.
const TOOL_DELIVERY_TIMEOUT: Duration = Duration::from_secs(1);

/// The tools that each connection received, by session and connection number.
type Delivered = HashMap<SessionId, HashMap<u64, Option<CallerTools>>>;

#[derive(Debug, Clone, Default)]
pub(super) struct ToolListSubscribers {
    delivered: Arc<Mutex<Delivered>>,
    next: Arc<AtomicU64>,
    changed: Arc<watch::Sender<()>>,
}

impl ToolListSubscribers {
    fn set(&self, subscriber: &ToolListSubscriber, tools: Option<CallerTools>) {
        self.delivered
            .lock()
            .entry(subscriber.session)
            .or_default()
            .insert(subscriber.number, tools);
        self.changed.send_replace(());
    }

    fn all_have(&self, session: SessionId, tools: &CallerTools) -> bool {
        let delivered = self.delivered.lock();
        let mut lists = delivered
            .get(&session)
            .into_iter()
            .flat_map(HashMap::values);
        lists.all(|delivered| delivered.as_ref() == Some(tools))
    }
}

/// A connection of an agent's client that receives the tool list of a session.
#[derive(Debug)]
pub struct ToolListSubscriber {
    subscribers: ToolListSubscribers,
    session: SessionId,
    number: u64,
}

impl ToolListSubscriber {
    /// Records that the connection received these tools.
    pub fn set_delivered(&self, tools: &CallerTools) {
        self.subscribers.set(self, Some(tools.clone()));
    }
}

impl Drop for ToolListSubscriber {
    fn drop(&mut self) {
        let mut delivered = self.subscribers.delivered.lock();
        if let Some(connections) = delivered.get_mut(&self.session) {
            connections.remove(&self.number);
            if connections.is_empty() {
                delivered.remove(&self.session);
            }
        }
        drop(delivered);
        self.subscribers.changed.send_replace(());
    }
}

impl Callers<'_> {
    /// Registers a connection that receives the tool list of a session.
    pub fn subscribe_tool_list(self, session: SessionId) -> ToolListSubscriber {
        let subscribers = self.state().tool_list_subscribers.clone();
        let subscriber = ToolListSubscriber {
            session,
            number: subscribers.next.fetch_add(1, Ordering::Relaxed),
            subscribers,
        };
        subscriber.subscribers.set(&subscriber, None);
        subscriber
    }

    /// Waits until every client of a session has received its current tools, within a limit.
    pub(crate) async fn wait_until_tools_delivered(self, session: SessionId) -> Result<()> {
        let tools = self.tools(session).await?;
        let subscribers = &self.state().tool_list_subscribers;
        let mut changed = subscribers.changed.subscribe();
        let delivery = async {
            while !subscribers.all_have(session, &tools) && changed.changed().await.is_ok() {}
        };
        let _ = tokio::time::timeout(TOOL_DELIVERY_TIMEOUT, delivery).await;
        Ok(())
    }
}
