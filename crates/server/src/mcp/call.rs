//! One tool call: its arguments in, progress while it runs, its result out.

#![expect(
    deprecated,
    reason = "log messages are how clients of the older era are told of events; they stay for them"
)]

use std::time::Duration;

use oubliette_engine::{Actor, Call, Progress};
use oubliette_model::SessionId;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, LoggingLevel,
    ProgressNotificationParam, ProgressToken,
};
use rmcp::service::{Peer, RequestContext};
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::handler::{Handler, actor, mcp_session};
use super::push::{self, Client};
use crate::errors;

/// Progress is told at most so often; what comes in between is overtaken by what is newer.
const PACE: Duration = Duration::from_millis(200);

impl Handler {
    pub(super) async fn call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let actor = actor(&context)?;
        let arguments = request.arguments.unwrap_or_default();
        let call = Call::new().with_cancellation(context.ct.clone());
        let (call, teller) = match context.meta.get_progress_token() {
            Some(token) => {
                let (latest, changes) = watch::channel(None);
                let call = call.with_progress(move |progress| drop(latest.send(Some(progress))));
                (call, Some(tell(context.peer.clone(), token, changes)))
            }
            None => (call, None),
        };
        let named = named(&arguments);
        let running = self.engine.call(&actor, &request.name, arguments, call);
        let result = match teller {
            // Nothing may be told about a call after its answer: the teller ends with the call.
            Some(teller) => tokio::select! {
                result = running => result,
                never = teller => match never {},
            },
            None => running.await,
        };
        match result {
            Ok(value) => {
                self.announce(&context, actor, named, &value).await;
                Ok(CallToolResult::structured(value).into())
            }
            Err(error) => errors::render(&error).map(Into::into),
        }
    }
}

impl Handler {
    /// Lets the owner of a session hear of it where it listens: on the stream of its MCP session,
    /// or, in the era without those, on the stream of this answer.
    async fn announce(
        &self,
        context: &RequestContext<RoleServer>,
        actor: Actor,
        named: Option<SessionId>,
        result: &Value,
    ) {
        let told = result["session_id"].as_str().and_then(|id| id.parse().ok());
        let Some(id) = told.or(named) else { return };
        let Some(mcp_session) = mcp_session(context) else {
            if context
                .meta
                .log_level()
                .is_some_and(|level| matches!(level, LoggingLevel::Debug | LoggingLevel::Info))
            {
                push::tell_waiting(&context.peer, result).await;
            }
            return;
        };
        if self.push.is_bound(id, &mcp_session) {
            self.engine.callers().bind_stream(id, &mcp_session);
        } else if push::owns(&self.engine, actor.token_id, id).await {
            let since = ["last_event_index", "last_index"].into_iter();
            let since = since.filter_map(|key| result[key].as_i64()).next();
            let client = Client {
                mcp_session,
                peer: context.peer.clone(),
                actor,
            };
            self.push
                .bind(&self.engine, client, id, since.unwrap_or(-1));
        }
    }
}

/// The session that a call names.
fn named(arguments: &Map<String, Value>) -> Option<SessionId> {
    arguments.get("session_id")?.as_str()?.parse().ok()
}

/// Tells the client of progress for as long as it is polled.
async fn tell(
    peer: Peer<RoleServer>,
    token: ProgressToken,
    mut changes: watch::Receiver<Option<Progress>>,
) -> std::convert::Infallible {
    let mut told = 0.0;
    while changes.changed().await.is_ok() {
        let Some(progress) = changes.borrow_and_update().clone() else {
            continue;
        };
        // The protocol wants every notification's progress to be larger than the one before.
        told = if progress.done > told {
            progress.done
        } else {
            told + 0.001
        };
        let mut notification =
            ProgressNotificationParam::new(token.clone(), told).with_message(progress.message);
        if let Some(total) = progress.total {
            notification = notification.with_total(total.max(told));
        }
        if peer.notify_progress(notification).await.is_err() {
            break;
        }
        tokio::time::sleep(PACE).await;
    }
    std::future::pending().await
}
