//! Pushes events of agent sessions to MCP clients. A client that misses some reads them from the
//! same log by its cursor.

#![expect(
    deprecated,
    reason = "clients of protocol versions with MCP sessions get events as log messages"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oubliette_engine::{Actor, Engine};
use oubliette_model::SessionId;
use parking_lot::Mutex;
use rmcp::RoleServer;
use rmcp::model::{
    LoggingLevel, LoggingMessageNotificationParam, ResourceUpdatedNotificationParam,
};
use rmcp::service::Peer;
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::tasks::Tasks;

/// One read of a log waits this long for new events before it checks again whether its client is
/// connected.
pub(super) const LOG_WAIT_TIMEOUT: Duration = Duration::from_secs(50);
const LOGGER: &str = "oubliette.session";
const MAX_SUBSCRIPTIONS_PER_MCP_SESSION: usize = 100;
const MAX_TRACKED_LOG_LEVELS: usize = 10_000;

/// The tasks that push events, and the log levels that clients have set.
#[derive(Debug, Clone, Default)]
pub(super) struct EventPusher {
    tasks: Tasks,
    bindings: Arc<Mutex<HashMap<SessionId, Binding>>>,
    /// By MCP session and resource.
    subscriptions: Arc<Mutex<HashMap<(String, String), AbortHandle>>>,
    /// By MCP session.
    log_levels: Arc<Mutex<HashMap<String, ClientLogLevel>>>,
}

type ClientLogLevel = (LoggingLevel, Peer<RoleServer>);

/// The MCP session to which the events of an agent session go.
#[derive(Debug)]
struct Binding {
    mcp_session: String,
    peer: Peer<RoleServer>,
    task: AbortHandle,
}

impl Binding {
    /// Whether events go to this MCP session now. A restored MCP session has a new stream, which a
    /// task from before may not have noticed.
    fn is_active(&self, mcp_session: &str) -> bool {
        let is_open = !self.task.is_finished() && !self.peer.is_transport_closed();
        is_open && self.mcp_session == mcp_session
    }
}

/// A client with an MCP session, and the token that opened it.
#[derive(Debug, Clone)]
pub(super) struct McpClient {
    pub(super) mcp_session: String,
    pub(super) peer: Peer<RoleServer>,
    pub(super) actor: Actor,
}

impl EventPusher {
    pub(super) fn new(tasks: Tasks) -> Self {
        Self {
            tasks,
            ..Self::default()
        }
    }

    pub(super) fn set_log_level(
        &self,
        mcp_session: &str,
        level: LoggingLevel,
        peer: Peer<RoleServer>,
    ) {
        let mut levels = self.log_levels.lock();
        if levels.len() >= MAX_TRACKED_LOG_LEVELS {
            levels.retain(|_, (_, peer)| !peer.is_transport_closed());
        }
        if levels.len() < MAX_TRACKED_LOG_LEVELS || levels.contains_key(mcp_session) {
            levels.insert(mcp_session.to_owned(), (level, peer));
        }
    }

    fn wants_info(&self, mcp_session: &str) -> bool {
        let levels = self.log_levels.lock();
        let level = levels.get(mcp_session).map(|(level, _)| *level);
        level.is_none_or(|level| matches!(level, LoggingLevel::Debug | LoggingLevel::Info))
    }

    /// Whether all events of an agent session go to this MCP session already.
    pub(super) fn is_bound(&self, id: SessionId, mcp_session: &str) -> bool {
        let bindings = self.bindings.lock();
        bindings
            .get(&id)
            .is_some_and(|binding| binding.is_active(mcp_session))
    }

    /// Sends all events of an agent session after `since` to the MCP session of its owner that named
    /// it last.
    pub(super) fn bind(&self, engine: &Engine, client: McpClient, id: SessionId, since: i64) {
        engine.callers().bind_stream(id, &client.mcp_session);
        let mut bindings = self.bindings.lock();
        bindings.retain(|_, binding| !binding.task.is_finished());
        if let Some(binding) = bindings.get(&id) {
            if binding.is_active(&client.mcp_session) {
                return;
            }
            binding.task.abort();
        }
        let (mcp_session, peer) = (client.mcp_session.clone(), client.peer.clone());
        let pushing = push_events(self.clone(), engine.clone(), client, id, since);
        let binding = Binding {
            mcp_session,
            peer,
            task: self.tasks.spawn(pushing),
        };
        bindings.insert(id, binding);
    }

    /// Binds a restored MCP session to the agent sessions that it was bound to before.
    pub(super) async fn restore_bindings(&self, engine: &Engine, client: McpClient) {
        let stored = engine
            .mcp_sessions()
            .bound_sessions(&client.mcp_session, client.actor.token_id)
            .await;
        match stored {
            Ok(bound) => {
                for session in bound {
                    self.bind(engine, client.clone(), session.id, session.since);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "could not restore the bindings of an MCP session");
            }
        }
    }

    /// Notifies a client whenever a log has new events. False if its MCP session has too many
    /// subscriptions.
    pub(super) fn subscribe(
        &self,
        engine: &Engine,
        client: McpClient,
        uri: &str,
        id: SessionId,
    ) -> bool {
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.retain(|_, task| !task.is_finished());
        let existing = subscriptions
            .keys()
            .filter(|(mcp_session, _)| *mcp_session == client.mcp_session);
        if existing.count() >= MAX_SUBSCRIPTIONS_PER_MCP_SESSION {
            return false;
        }
        let key = (client.mcp_session.clone(), uri.to_owned());
        let notifying = notify_updates(engine.clone(), client, uri.to_owned(), id);
        let replaced = subscriptions.insert(key, self.tasks.spawn(notifying));
        if let Some(task) = replaced {
            task.abort();
        }
        true
    }

    pub(super) fn unsubscribe(&self, mcp_session: &str, uri: &str) {
        let key = (mcp_session.to_owned(), uri.to_owned());
        if let Some(task) = self.subscriptions.lock().remove(&key) {
            task.abort();
        }
    }
}

async fn notify_updates(engine: Engine, client: McpClient, uri: String, id: SessionId) {
    let owner = client.actor.token_id;
    if engine.mcp_sessions().may_bind(owner, id).await {
        engine.callers().bind_stream(id, &client.mcp_session);
    }
    let mut log = engine.sessions().follow(client.actor.clone(), id, -1);
    while let Ok(events) = log.next(LOG_WAIT_TIMEOUT).await {
        let notification = ResourceUpdatedNotificationParam::new(uri.clone());
        let is_gone = client.peer.is_transport_closed()
            || (!events.is_empty()
                && client
                    .peer
                    .notify_resource_updated(notification)
                    .await
                    .is_err());
        if is_gone {
            return;
        }
    }
}

/// Sends the events of a session to a client until either is gone.
async fn push_events(
    pusher: EventPusher,
    engine: Engine,
    client: McpClient,
    id: SessionId,
    since: i64,
) {
    if let Err(error) = engine.mcp_sessions().bind(id, &client.mcp_session).await {
        tracing::warn!(
            session = %id, %error,
            "could not store the binding; its events are not pushed after a restart"
        );
    }
    let mut log = engine.sessions().follow(client.actor.clone(), id, since);
    while let Ok(events) = log.next(LOG_WAIT_TIMEOUT).await {
        for event in events {
            if !pusher.wants_info(&client.mcp_session) || !is_pushed(&event) {
                continue;
            }
            let notified = client.peer.notify_logging_message(log_message(event));
            if notified.await.is_err() {
                return;
            }
        }
        if client.peer.is_transport_closed() {
            return;
        }
    }
}

/// Deltas and log events are too many to push.
fn is_pushed(event: &Value) -> bool {
    !matches!(event["type"].as_str(), Some("delta" | "log"))
}

fn log_message(event: Value) -> LoggingMessageNotificationParam {
    LoggingMessageNotificationParam::new(LoggingLevel::Info, event).with_logger(LOGGER)
}

/// Sends the events in a call's result as notifications before the result.
pub(super) async fn notify_result_events(peer: &Peer<RoleServer>, result: &Value) {
    for event in result["events"].as_array().into_iter().flatten() {
        if !is_pushed(event) {
            continue;
        }
        let notified = peer.notify_logging_message(log_message(event.clone()));
        if notified.await.is_err() {
            return;
        }
    }
}
