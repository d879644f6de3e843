//! One tool call: its arguments, progress while it runs, its result.

#![expect(
    deprecated,
    reason = "clients of protocol versions with MCP sessions get events as log messages"
)]

use std::time::Duration;

use http::request::Parts;
use oubliette_engine::operations::ToolNames;
use oubliette_engine::{Actor, Call, Progress};
use oubliette_model::SessionId;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, LoggingLevel,
    ProgressNotificationParam, ProgressToken,
};
use rmcp::service::{Peer, RequestContext};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::handler::{Handler, mcp_session_id, requesting_actor};
use super::push::{self, McpClient};
use super::{resources, tasks};
use crate::{errors, files};

/// Between two notifications only the newest progress is kept.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The others are in the log.
const MAX_EVENTS_OF_WAIT: u32 = 1000;

/// The key in the `_meta` of a call whose caller needs no text beside the structured result.
pub const STRUCTURED_ONLY: &str = "oubliette/structured_only";

impl Handler {
    pub(super) async fn call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let actor = requesting_actor(&context)?;
        let arguments = request.arguments.unwrap_or_default();
        let mut call_without_progress = Call::new().with_cancellation(context.ct.clone());
        if tasks::are_supported(&context) {
            call_without_progress = call_without_progress.with_detaching();
        }
        let (call, notifier) = match context.meta.get_progress_token() {
            Some(token) => {
                let (latest, changes) = watch::channel(None);
                let call = call_without_progress
                    .with_progress(move |progress| drop(latest.send(Some(progress))));
                let notifier = notify_progress(context.peer.clone(), token, changes);
                (call, Some(notifier))
            }
            None => (call_without_progress, None),
        };
        let session_argument = session_argument(&arguments);
        let names = self.names(&context).for_call(&request.name);
        let running = self
            .engine
            .call(&actor, &request.name, arguments, call.clone());
        let result = match notifier {
            // The notifier ends with the call: no progress may follow the response.
            Some(notifier) => tokio::select! {
                result = running => result,
                never = notifier => match never {},
            },
            None => running.await,
        };
        match result {
            Ok(value) => {
                if let Some(turn) = call.detached_turn() {
                    return self.create_task(&context, &actor, turn, names).await;
                }
                self.push_session_events(&context, actor, session_argument, &value)
                    .await;
                Ok(tool_result(value, &context).into())
            }
            Err(error) => errors::mcp_tool_error(&error, names).map(Into::into),
        }
    }

    /// The names of the operations for a client that has called none.
    pub(super) fn names(&self, context: &RequestContext<RoleServer>) -> ToolNames {
        if context.meta.contains_key(STRUCTURED_ONLY) {
            // The command line has its own words for operations.
            ToolNames::SPLIT
        } else {
            ToolNames::of_style(self.tool_style())
        }
    }

    /// Sends events of the session that a call named or returned to the session's owner: from now on
    /// to its MCP session, or, in protocol versions without those, with this response.
    async fn push_session_events(
        &self,
        context: &RequestContext<RoleServer>,
        actor: Actor,
        session_argument: Option<SessionId>,
        result: &Value,
    ) {
        let returned = result["session_id"].as_str().and_then(|id| id.parse().ok());
        let Some(id) = returned.or(session_argument) else {
            return;
        };
        let Some(mcp_session) = mcp_session_id(context) else {
            if context
                .meta
                .log_level()
                .is_some_and(|level| matches!(level, LoggingLevel::Debug | LoggingLevel::Info))
            {
                push::notify_result_events(&context.peer, result).await;
                if result.get("completed").is_some()
                    && let Some(events) = self.events_of_wait(&actor, result).await
                {
                    push::notify_result_events(&context.peer, &events).await;
                }
            }
            return;
        };
        if self.pusher.is_bound(id, &mcp_session) {
            self.engine.callers().bind_stream(id, &mcp_session);
        } else if self
            .engine
            .mcp_sessions()
            .may_bind(actor.token_id, id)
            .await
        {
            let since = ["last_event_index", "last_index"]
                .into_iter()
                .find_map(|key| result[key].as_i64());
            let client = McpClient {
                mcp_session,
                peer: context.peer.clone(),
                actor,
            };
            self.pusher
                .bind(&self.engine, client, id, since.unwrap_or(-1));
        }
    }
}

impl Handler {
    /// What happened in a session while a call waited for its turn.
    async fn events_of_wait(&self, actor: &Actor, result: &Value) -> Option<Value> {
        let params = json!({
            "session_id": result["session_id"], "since_index": result.get("last_event_index")?,
            "types": ["all"], "max_events": MAX_EVENTS_OF_WAIT,
        });
        let params = params.as_object()?.clone();
        let page = self
            .engine
            .call(actor, "session_events", params, Call::new());
        page.await.ok()
    }
}

/// The result of a call that succeeded.
pub(super) fn tool_result(
    mut value: Value,
    context: &RequestContext<RoleServer>,
) -> CallToolResult {
    let parts = context.extensions.get::<Parts>();
    if let Some(parts) = parts {
        files::complete_urls(&mut value, parts);
    }
    let links = parts.map(|parts| resources::links_to_rest(&value, parts));
    let mut result = CallToolResult::default();
    // Most clients show the model only the text, so it has everything again.
    if !context.meta.contains_key(STRUCTURED_ONLY) {
        result.content.push(ContentBlock::text(value.to_string()));
    }
    result.structured_content = Some(value);
    result.is_error = Some(false);
    result.content.extend(links.into_iter().flatten());
    result
}

fn session_argument(arguments: &Map<String, Value>) -> Option<SessionId> {
    arguments.get("session_id")?.as_str()?.parse().ok()
}

/// Sends progress to the client while it is polled.
async fn notify_progress(
    peer: Peer<RoleServer>,
    token: ProgressToken,
    mut changes: watch::Receiver<Option<Progress>>,
) -> std::convert::Infallible {
    let mut last_sent = 0.0;
    while changes.changed().await.is_ok() {
        let Some(progress) = changes.borrow_and_update().clone() else {
            continue;
        };
        // The protocol requires that progress increases with every notification.
        last_sent = if progress.done > last_sent {
            progress.done
        } else {
            last_sent + 0.001
        };
        let mut notification =
            ProgressNotificationParam::new(token.clone(), last_sent).with_message(progress.message);
        if let Some(total) = progress.total {
            notification = notification.with_total(total.max(last_sent));
        }
        if peer.notify_progress(notification).await.is_err() {
            break;
        }
        tokio::time::sleep(PROGRESS_INTERVAL).await;
    }
    std::future::pending().await
}
