//! Sessions as resources: `oubliette://sessions/{id}/events` is the newest page of a session's log,
//! and its subscribers are notified of new events.

use oubliette_engine::{Actor, Call, Engine, EngineError};
use oubliette_model::SessionId;
use rmcp::model::{
    CacheScope, ErrorData, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate, SubscriptionFilter,
};
use rmcp::service::SubscriptionContext;
use serde_json::{Map, Value, json};

use super::push::{EventPusher, LOG_WAIT_TIMEOUT, McpClient};
use crate::errors;

const URI_PREFIX: &str = "oubliette://sessions/";
const URI_SUFFIX: &str = "/events";
const MIME_TYPE: &str = "application/json";
const EVENTS_PER_PAGE: i64 = 200;
/// Logs that one subscription can name.
const MAX_LOGS_PER_SUBSCRIPTION: usize = 100;

fn events_uri(id: &str) -> String {
    format!("{URI_PREFIX}{id}{URI_SUFFIX}")
}

fn parse_events_uri(uri: &str) -> Option<SessionId> {
    uri.strip_prefix(URI_PREFIX)?
        .strip_suffix(URI_SUFFIX)?
        .parse()
        .ok()
}

fn not_found(uri: &str) -> ErrorData {
    let data = json!({ "uri": uri });
    let text = "the resource does not exist, or this token may not read it";
    ErrorData::invalid_params(text, Some(data))
}

/// Lists the active sessions that the token can see.
pub(super) async fn list(engine: &Engine, actor: &Actor) -> Result<ListResourcesResult, ErrorData> {
    let active = Map::from_iter([("active".to_owned(), json!(true))]);
    let found = engine
        .call(actor, "session_list", active, Call::new())
        .await
        .map_err(|error| errors::mcp_error(&error))?;
    let sessions = found["sessions"].as_array().into_iter().flatten();
    let resource = |session: &Value| {
        let id = session["session_id"].as_str()?;
        let name = format!("events of {id}");
        Some(Resource::new(events_uri(id), name).with_mime_type(MIME_TYPE))
    };
    Ok(ListResourcesResult {
        ttl_ms: Some(0),
        cache_scope: Some(CacheScope::Private),
        ..ListResourcesResult::with_all_items(sessions.filter_map(resource).collect())
    })
}

pub(super) fn templates() -> ListResourceTemplatesResult {
    let template = ResourceTemplate::new(events_uri("{session_id}"), "events of a session")
        .with_description(
            "The newest events of a session's log. Subscribe to be notified of new ones.",
        )
        .with_mime_type(MIME_TYPE);
    ListResourceTemplatesResult {
        ttl_ms: Some(0),
        cache_scope: Some(CacheScope::Private),
        ..ListResourceTemplatesResult::with_all_items(vec![template])
    }
}

/// The newest page of a session's log.
pub(super) async fn read(
    engine: &Engine,
    actor: &Actor,
    uri: &str,
) -> Result<ReadResourceResponse, ErrorData> {
    let id = parse_events_uri(uri).ok_or_else(|| not_found(uri))?;
    let mut params = Map::from_iter([("session_id".to_owned(), json!(id))]);
    let session = engine
        .call(actor, "session_get", params.clone(), Call::new())
        .await
        .map_err(|_| not_found(uri))?;
    let since = session["last_index"].as_i64().unwrap_or(-1) - EVENTS_PER_PAGE;
    params.insert("since_index".to_owned(), json!(since.max(-1)));
    let page = engine
        .call(actor, "session_events", params, Call::new())
        .await
        .map_err(|_| not_found(uri))?;
    let contents = ResourceContents::TextResourceContents {
        uri: uri.to_owned(),
        mime_type: Some(MIME_TYPE.to_owned()),
        text: page.to_string(),
        meta: None,
    };
    let result = ReadResourceResult::new(vec![contents])
        .with_ttl_ms(0)
        .with_cache_scope(CacheScope::Private);
    Ok(result.into())
}

/// Accepts subscriptions to logs of sessions. `listen` checks later whether the token may read them.
pub(super) fn accepted_filter(requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
    let mut filter = SubscriptionFilter::default();
    filter.resource_subscriptions = requested.resource_subscriptions.as_ref().map(|uris| {
        let logs = uris.iter().filter(|uri| parse_events_uri(uri).is_some());
        logs.take(MAX_LOGS_PER_SUBSCRIPTION).cloned().collect()
    });
    // Also without any known resource the subscription stays open.
    Some(filter)
}

/// Subscribes a client that has an MCP session.
pub(super) async fn subscribe(
    engine: &Engine,
    pusher: &EventPusher,
    client: McpClient,
    uri: &str,
) -> Result<(), ErrorData> {
    let id = parse_events_uri(uri).ok_or_else(|| not_found(uri))?;
    engine
        .sessions()
        .check_follow(&client.actor, id)
        .await
        .map_err(|_| not_found(uri))?;
    if pusher.subscribe(engine, client, uri, id) {
        Ok(())
    } else {
        let text = "this MCP session has too many subscriptions";
        Err(ErrorData::invalid_params(text, None))
    }
}

/// Notifies a subscriber while its subscription lasts: once at the start, because the log may have
/// changed before, and then of every change.
pub(super) async fn listen(
    engine: &Engine,
    actor: Actor,
    context: SubscriptionContext,
) -> Result<(), ErrorData> {
    let uris = context.accepted().resource_subscriptions.clone();
    let followed_logs = uris.unwrap_or_default().into_iter().map(|uri| {
        let (engine, actor, sink) = (engine.clone(), actor.clone(), context.sink().clone());
        async move {
            let Some(id) = parse_events_uri(&uri) else {
                return Err(not_found(&uri));
            };
            let _listening = engine.callers().listen(&actor, id).await;
            let mut log = engine.sessions().follow(actor, id, -1);
            loop {
                let events = match log.next(LOG_WAIT_TIMEOUT).await {
                    Ok(events) => events,
                    // The server stops.
                    Err(EngineError::Cancelled) => return Ok(()),
                    Err(_) => return Err(not_found(&uri)),
                };
                if !events.is_empty() && sink.notify_resource_updated(uri.clone()).await.is_err() {
                    return Ok(());
                }
            }
        }
    });
    let mut following = futures_util::stream::FuturesUnordered::from_iter(followed_logs);
    tokio::select! {
        Some(ended) = futures_util::StreamExt::next(&mut following) => ended,
        () = context.cancelled() => Ok(()),
    }
}
