//! Events of sessions to those who want to hear of them: the same log, by the same cursor, told
//! instead of asked for. Losing any of it costs a caller nothing but time.

#![expect(
    deprecated,
    reason = "log messages are how clients of the older era are told of events; they stay for them"
)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oubliette_engine::{Actor, Engine};
use oubliette_model::{SessionId, TokenId, owns_session};
use rmcp::RoleServer;
use rmcp::model::{
    LoggingLevel, LoggingMessageNotificationParam, ResourceUpdatedNotificationParam,
};
use rmcp::service::Peer;
use serde_json::Value;
use tokio::task::AbortHandle;

/// One look at the log waits so long; then the right to it is looked at again.
const WAIT: Duration = Duration::from_secs(50);
const LOGGER: &str = "oubliette.session";
/// Subscriptions of one MCP session.
const BELLS: usize = 100;
/// MCP sessions whose level is remembered.
const LEVELS: usize = 10_000;

/// Which agent session is told of where.
#[derive(Debug, Clone, Default)]
pub(super) struct Push {
    bound: Arc<Mutex<HashMap<SessionId, Bound>>>,
    /// Subscriptions of clients with sessions, by MCP session and resource.
    bells: Arc<Mutex<HashMap<(String, String), AbortHandle>>>,
    /// By MCP session.
    levels: Arc<Mutex<HashMap<String, Level>>>,
}

/// The level that a client has set, and where that client is.
type Level = (LoggingLevel, Peer<RoleServer>);

#[derive(Debug)]
struct Bound {
    mcp_session: String,
    peer: Peer<RoleServer>,
    task: AbortHandle,
}

impl Bound {
    /// A session that was taken up again has another stream, and its task may not know yet.
    fn is_to(&self, mcp_session: &str) -> bool {
        let open = !self.task.is_finished() && !self.peer.is_transport_closed();
        open && self.mcp_session == mcp_session
    }
}

/// A client of the era with sessions: where its stream leads, and whose it is.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) mcp_session: String,
    pub(super) peer: Peer<RoleServer>,
    pub(super) actor: Actor,
}

impl Push {
    pub(super) fn set_level(&self, mcp_session: &str, level: LoggingLevel, peer: Peer<RoleServer>) {
        let mut levels = lock(&self.levels);
        if levels.len() >= LEVELS {
            levels.retain(|_, (_, peer)| !peer.is_transport_closed());
        }
        if levels.len() < LEVELS || levels.contains_key(mcp_session) {
            levels.insert(mcp_session.to_owned(), (level, peer));
        }
    }

    fn wants_info(&self, mcp_session: &str) -> bool {
        let levels = lock(&self.levels);
        let level = levels.get(mcp_session).map(|(level, _)| *level);
        level.is_none_or(|level| matches!(level, LoggingLevel::Debug | LoggingLevel::Info))
    }

    /// Whether all events of an agent session go to this MCP session already.
    pub(super) fn is_bound(&self, id: SessionId, mcp_session: &str) -> bool {
        let bound = lock(&self.bound);
        bound.get(&id).is_some_and(|bound| bound.is_to(mcp_session))
    }

    /// Binds an agent session to the MCP session of its owner that named it last: from `since` on,
    /// all its events go there.
    pub(super) fn bind(&self, engine: &Engine, client: Client, id: SessionId, since: i64) {
        engine.callers().bind_stream(id, &client.mcp_session);
        let mut bound = lock(&self.bound);
        bound.retain(|_, bound| !bound.task.is_finished());
        if let Some(known) = bound.get(&id) {
            if known.is_to(&client.mcp_session) {
                return;
            }
            known.task.abort();
        }
        let (mcp_session, peer) = (client.mcp_session.clone(), client.peer.clone());
        let task = tokio::spawn(tell(self.clone(), engine.clone(), client, id, since));
        let task = task.abort_handle();
        let binding = Bound {
            mcp_session,
            peer,
            task,
        };
        bound.insert(id, binding);
    }
}

impl Push {
    /// Goes on where a server before this one, or this one before the client fell silent, had stopped:
    /// with what its caller has to answer, and then with what is new.
    pub(super) async fn bind_again(&self, engine: &Engine, client: Client) {
        let bound = engine.store().bound_sessions(&client.mcp_session).await;
        for id in bound.unwrap_or_default() {
            let session = engine.store().session(id).await;
            let pending = engine.store().pending_requests(id).await;
            let (Ok(Some(session)), Ok(pending)) = (session, pending) else {
                continue;
            };
            if owns_session(session.owner_id, client.actor.token_id) {
                let first = pending.iter().map(|asked| asked.event_index).min();
                let since = first.unwrap_or(session.log_end) - 1;
                self.bind(engine, client.clone(), id, since);
            }
        }
    }

    /// Rings for a client with a session whenever there is more in a log; false if it has too many
    /// such subscriptions.
    pub(super) fn subscribe(
        &self,
        engine: &Engine,
        client: Client,
        uri: &str,
        id: SessionId,
    ) -> bool {
        let mut bells = lock(&self.bells);
        bells.retain(|_, task| !task.is_finished());
        let own = bells
            .keys()
            .filter(|(session, _)| *session == client.mcp_session);
        if own.count() >= BELLS {
            return false;
        }
        let key = (client.mcp_session.clone(), uri.to_owned());
        let task = tokio::spawn(ring(engine.clone(), client, uri.to_owned(), id));
        if let Some(before) = bells.insert(key, task.abort_handle()) {
            before.abort();
        }
        true
    }

    pub(super) fn unsubscribe(&self, mcp_session: &str, uri: &str) {
        let key = (mcp_session.to_owned(), uri.to_owned());
        if let Some(task) = lock(&self.bells).remove(&key) {
            task.abort();
        }
    }
}

async fn ring(engine: Engine, client: Client, uri: String, id: SessionId) {
    // It hears the bell on its stream, and nowhere else.
    if owns(&engine, client.actor.token_id, id).await {
        engine.callers().bind_stream(id, &client.mcp_session);
    }
    let mut log = engine.sessions().follow(client.actor.clone(), id, -1);
    while let Ok(events) = log.next(WAIT).await {
        let news = ResourceUpdatedNotificationParam::new(uri.clone());
        let gone = client.peer.is_transport_closed()
            || (!events.is_empty() && client.peer.notify_resource_updated(news).await.is_err());
        if gone {
            return;
        }
    }
}

/// Tells a client of everything that happens in a session, except what is only of passing interest.
async fn tell(push: Push, engine: Engine, client: Client, id: SessionId, since: i64) {
    let noted = engine.store().bind_session(id, &client.mcp_session).await;
    if let Err(error) = noted {
        tracing::warn!(session = %id, %error, "after a restart its caller must name it again");
    }
    let mut log = engine.sessions().follow(client.actor.clone(), id, since);
    while let Ok(events) = log.next(WAIT).await {
        for event in events {
            if !push.wants_info(&client.mcp_session) || !is_told(&event) {
                continue;
            }
            if client
                .peer
                .notify_logging_message(message(event))
                .await
                .is_err()
            {
                return;
            }
        }
        if client.peer.is_transport_closed() {
            return;
        }
    }
}

fn is_told(event: &Value) -> bool {
    !matches!(event["type"].as_str(), Some("delta" | "log"))
}

fn message(event: Value) -> LoggingMessageNotificationParam {
    LoggingMessageNotificationParam::new(LoggingLevel::Info, event).with_logger(LOGGER)
}

/// Tells a caller that waits of what its answer holds, on the stream of that answer.
pub(super) async fn tell_waiting(peer: &Peer<RoleServer>, result: &Value) {
    for event in result["events"].as_array().into_iter().flatten() {
        if is_told(event)
            && peer
                .notify_logging_message(message(event.clone()))
                .await
                .is_err()
        {
            return;
        }
    }
}

/// Whether a session belongs to this token, so that it may be told of it.
pub(super) async fn owns(engine: &Engine, token: TokenId, id: SessionId) -> bool {
    let session = engine.store().session(id).await;
    matches!(session, Ok(Some(session)) if owns_session(session.owner_id, token))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
