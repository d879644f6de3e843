//! Ends every call of a caller's tool that gets no response: at its deadline, when its caller
//! disconnects, or when its agent ends.

use std::time::Duration;

use oubliette_model::{CallerToolOutcome, SessionId, Status};
use oubliette_store::{CallerRequest, CallerRequestResult, Session};
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::Callers;
use super::presence::Connected;
use super::request::disconnected;
use crate::sessions::subscriptions::{CallOutcome, Subscription};
use crate::{Engine, OnDisconnect, Result};

const STORE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The store is read this often even if no notification comes.
const REQUEST_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// What can end a request before its deadline.
#[derive(Debug)]
pub(super) struct RequestEvents {
    end: CallOutcome,
    status: Subscription,
}

/// A request until it ends.
struct WatchedRequest {
    request: CallerRequest,
    /// As it was when the agent called.
    session: Session,
    caller_id: String,
    events: RequestEvents,
    /// Whether the store was read since `events` are subscribed to.
    is_current: bool,
}

impl Callers<'_> {
    /// Watches the requests that a dead server left pending. Their deadlines are unchanged.
    pub(crate) async fn recover_requests(self) -> Result<()> {
        let pending = self.engine.store().all_pending_requests().await?;
        let calls = pending
            .iter()
            .map(|request| (request.session_id, request.call_id));
        let recover = |engine: Engine, (session, call_id)| async move {
            engine.callers().recover_request(session, call_id).await
        };
        self.engine
            .repair_each("caller request", calls, recover)
            .await;
        Ok(())
    }

    async fn recover_request(self, session: SessionId, call_id: Uuid) -> Result<()> {
        let store = self.engine.store();
        let request = store.caller_request_by_call(session, call_id).await?;
        let Some(request) = request.filter(|request| request.result.is_none()) else {
            return Ok(());
        };
        let Some(session) = store.session(session).await? else {
            return Ok(());
        };
        let declared = store.caller_tools(session.id).await?;
        if request.delivered {
            let left = self.time_left(request.deadline);
            let presence = &self.state().presence;
            presence.record_delivered(session.id, request.request_id, left);
        }
        let caller_id = declared.map(|declared| declared.caller_id);
        self.watch_request(&request, session, caller_id.unwrap_or_default(), None);
        Ok(())
    }

    /// Subscribes to what can end a request.
    pub(super) fn subscribe_request(self, request: &CallerRequest) -> RequestEvents {
        let subscriptions = self.engine.sessions().subscriptions();
        RequestEvents {
            end: subscriptions.call_outcome(request.call_id),
            status: subscriptions.status(request.session_id),
        }
    }

    /// Watches a request until it ends, in a task of its own. `session` is the session when the agent
    /// called. For a new request, `stored` is the session when the request was stored, and what was
    /// subscribed to before that.
    pub(super) fn watch_request(
        self,
        request: &CallerRequest,
        session: Session,
        caller_id: String,
        stored: Option<(RequestEvents, Session)>,
    ) {
        // The arguments can be large and the store has them.
        let request = CallerRequest {
            arguments: Value::Null,
            tool: request.tool.clone(),
            result: None,
            ..*request
        };
        let (events, is_current) = match stored {
            Some((events, stored)) => (events, !is_over(&session, &stored)),
            None => (self.subscribe_request(&request), false),
        };
        let mut watched = WatchedRequest {
            request,
            session,
            caller_id,
            events,
            is_current,
        };
        self.engine.spawn_until_stopping(|engine| async move {
            while let Err(error) = engine.callers().end_request(&mut watched).await {
                let request = watched.request.request_id;
                tracing::error!(%request, %error, "could not watch a caller request; trying again");
                tokio::time::sleep(STORE_RETRY_DELAY).await;
            }
        });
    }

    /// Returns when the request has ended.
    async fn end_request(self, watched: &mut WatchedRequest) -> Result<()> {
        let settings = &self.engine.settings().caller_tools;
        let fails = settings.on_disconnect == OnDisconnect::Fail;
        let mut presence = self.state().presence.subscribe();
        let WatchedRequest {
            request,
            session,
            caller_id,
            events,
            is_current,
        } = watched;
        loop {
            if !std::mem::take(is_current) {
                let store = self.engine.store();
                let stored = store
                    .caller_request_by_call(session.id, request.call_id)
                    .await?;
                if stored.is_none_or(|stored| stored.result.is_some()) {
                    return Ok(());
                }
                let stored = store.session(session.id).await?;
                if stored.is_none_or(|stored| is_over(session, &stored)) {
                    return self.cancel_request(request, session).await;
                }
            }
            let poll_at = Instant::now() + REQUEST_POLL_INTERVAL;
            // Presence changes more often than sessions do and needs no read of the store.
            while Instant::now() < poll_at {
                presence.mark_unchanged();
                let left = self.time_left(request.deadline);
                let connected = self.state().presence.connected(session.id, settings);
                let ended = match connected {
                    _ if left.is_zero() => Some((CallerToolOutcome::Timeout, timed_out(request))),
                    Connected::No if fails => {
                        Some((CallerToolOutcome::Disconnected, disconnected(caller_id)))
                    }
                    _ => None,
                };
                if let Some((outcome, why)) = ended {
                    let answer = Value::from(why);
                    let ended = CallerRequestResult { outcome, answer };
                    self.settle_request(request, session, ended, None).await?;
                    return Ok(());
                }
                let deadline = poll_at.min(Instant::now() + left);
                let wake_at = match connected {
                    Connected::Until(end) if fails => end.min(deadline),
                    _ => deadline,
                };
                tokio::select! {
                    _ = events.end.wait() => return Ok(()),
                    () = events.status.changed() => break,
                    _ = presence.changed() => {}
                    () = tokio::time::sleep_until(wake_at) => {}
                }
            }
        }
    }
}

/// Whether the agent no longer waits for a request: it has ended, or the turn of its call is over.
fn is_over(at_call: &Session, now: &Session) -> bool {
    let in_turn = |session: &Session| matches!(session.status, Status::Running | Status::Waiting);
    let other_turn = now.turns != at_call.turns || !in_turn(now);
    now.live.is_none() || now.key != at_call.key || (in_turn(at_call) && other_turn)
}

fn timed_out(request: &CallerRequest) -> String {
    let seconds = request
        .deadline
        .duration_since(request.asked_at)
        .as_secs_f64();
    format!(
        "caller tool \"{}\" timed out after {seconds} s",
        request.tool
    )
}
