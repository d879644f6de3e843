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

/// How long an agent may take to start its MCP servers, or to list tools that have changed. A busy machine
/// needs seconds for it; an agent that never lists them delays its first prompt by this time.
const TOOL_LISTING_TIMEOUT: Duration = Duration::from_secs(10);

/// What each connection received, by session and connection number.
type Delivered = HashMap<SessionId, HashMap<u64, ToolListState>>;

#[derive(Debug, Default)]
struct ToolListState {
    delivered: Option<CallerTools>,
    /// Whether the client reports what its agent has listed.
    reports_listing: bool,
    /// What the agent has listed last, by its fingerprint.
    listed: Option<String>,
}

/// What a prompt waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AwaitedTools {
    /// The clients have the tools.
    Delivered,
    /// The agent has listed them, too.
    Listed,
    /// The agent has started its client, and has listed them.
    StartedAndListed,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ToolListSubscribers {
    delivered: Arc<Mutex<Delivered>>,
    next: Arc<AtomicU64>,
    changed: Arc<watch::Sender<()>>,
}

impl ToolListSubscribers {
    fn update(&self, subscriber: &ToolListSubscriber, change: impl FnOnce(&mut ToolListState)) {
        let mut delivered = self.delivered.lock();
        let connections = delivered.entry(subscriber.session).or_default();
        change(connections.entry(subscriber.number).or_default());
        drop(delivered);
        self.changed.send_replace(());
    }

    fn all_have(&self, session: SessionId, tools: &CallerTools, awaited: AwaitedTools) -> bool {
        let fingerprint = tools.fingerprint();
        let delivered = self.delivered.lock();
        let Some(connections) = delivered.get(&session) else {
            return awaited != AwaitedTools::StartedAndListed;
        };
        let has = |state: &ToolListState| {
            let is_listed = state.listed.as_ref() == Some(&fingerprint);
            let needs_listing = awaited != AwaitedTools::Delivered && state.reports_listing;
            state.delivered.as_ref() == Some(tools) && (is_listed || !needs_listing)
        };
        connections.values().all(has)
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
        self.subscribers
            .update(self, |state| state.delivered = Some(tools.clone()));
    }

    /// Records what the agent has listed, by its fingerprint.
    pub fn set_listed(&self, fingerprint: String) {
        self.subscribers
            .update(self, |state| state.listed = Some(fingerprint));
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
    pub fn subscribe_tool_list(
        self,
        session: SessionId,
        reports_listing: bool,
    ) -> ToolListSubscriber {
        let subscribers = self.state().tool_list_subscribers.clone();
        let subscriber = ToolListSubscriber {
            session,
            number: subscribers.next.fetch_add(1, Ordering::Relaxed),
            subscribers,
        };
        let subscribers = &subscriber.subscribers;
        subscribers.update(&subscriber, |state| state.reports_listing = reports_listing);
        subscriber
    }

    /// Waits until every client of a session has its current tools, within a limit. Whether its agent has
    /// listed them, if that is awaited.
    pub(crate) async fn wait_until_tools_known(
        self,
        session: SessionId,
        awaited: AwaitedTools,
    ) -> Result<bool> {
        let tools = self.tools(session).await?;
        let subscribers = &self.state().tool_list_subscribers;
        let mut changed = subscribers.changed.subscribe();
        let delivery = async {
            while !subscribers.all_have(session, &tools, awaited) && changed.changed().await.is_ok()
            {
            }
        };
        let limit = match awaited {
            AwaitedTools::Delivered => TOOL_DELIVERY_TIMEOUT,
            AwaitedTools::Listed | AwaitedTools::StartedAndListed => TOOL_LISTING_TIMEOUT,
        };
        let is_known = tokio::time::timeout(limit, delivery).await.is_ok();
        Ok(is_known || awaited == AwaitedTools::Delivered)
    }
}
