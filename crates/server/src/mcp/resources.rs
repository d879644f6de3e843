//! Sessions as resources: `oubliette://sessions/{id}/events` is the newest page of a log, and who
//! subscribes to it hears when there is more.

use std::time::Duration;

use oubliette_engine::{Actor, Call, Engine, EngineError};
use oubliette_model::SessionId;
use rmcp::model::{
    CacheScope, ErrorData, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate, SubscriptionFilter,
};
use rmcp::service::SubscriptionContext;
use serde_json::{Map, Value, json};

use super::push::{Client, Push};
use crate::errors;

const SCHEME: &str = "oubliette://sessions/";
const EVENTS: &str = "/events";
const JSON: &str = "application/json";
/// How many events a page has.
const PAGE: i64 = 200;
/// How many logs one subscription can be about.
const SUBSCRIPTIONS: usize = 100;
const WAIT: Duration = Duration::from_secs(50);

fn uri(id: &str) -> String {
    format!("{SCHEME}{id}{EVENTS}")
}

fn session_of(uri: &str) -> Option<SessionId> {
    uri.strip_prefix(SCHEME)?.strip_suffix(EVENTS)?.parse().ok()
}

fn not_found(uri: &str) -> ErrorData {
    let data = json!({ "uri": uri });
    ErrorData::invalid_params("there is no such resource, or it is not yours", Some(data))
}

/// The active sessions that the token can see.
pub(super) async fn list(engine: &Engine, actor: &Actor) -> Result<ListResourcesResult, ErrorData> {
    let active = Map::from_iter([("active".to_owned(), json!(true))]);
    let found = engine
        .call(actor, "session_list", active, Call::new())
        .await;
    let found = found.map_err(|error| failed(&error))?;
    let sessions = found["sessions"].as_array().into_iter().flatten();
    let resource = |session: &Value| {
        let id = session["session_id"].as_str()?;
        let name = format!("events of {id}");
        Some(Resource::new(uri(id), name).with_mime_type(JSON))
    };
    Ok(ListResourcesResult {
        ttl_ms: Some(0),
        cache_scope: Some(CacheScope::Private),
        ..ListResourcesResult::with_all_items(sessions.filter_map(resource).collect())
    })
}

pub(super) fn templates() -> ListResourceTemplatesResult {
    let template = ResourceTemplate::new(uri("{session_id}"), "events of a session")
        .with_description("The newest events of a session's log; subscribe to hear of more.")
        .with_mime_type(JSON);
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
    let id = session_of(uri).ok_or_else(|| not_found(uri))?;
    let get = Map::from_iter([("session_id".to_owned(), json!(id))]);
    let session = engine
        .call(actor, "session_get", get.clone(), Call::new())
        .await;
    let session = session.map_err(|_| not_found(uri))?;
    let mut page = get;
    let since = session["last_index"].as_i64().unwrap_or(-1) - PAGE;
    page.insert("since_index".to_owned(), json!(since.max(-1)));
    let page = engine
        .call(actor, "session_events", page, Call::new())
        .await;
    let page = page.map_err(|_| not_found(uri))?;
    let contents = ResourceContents::TextResourceContents {
        uri: uri.to_owned(),
        mime_type: Some(JSON.to_owned()),
        text: page.to_string(),
        meta: None,
    };
    let result = ReadResourceResult::new(vec![contents])
        .with_ttl_ms(0)
        .with_cache_scope(CacheScope::Private);
    Ok(result.into())
}

/// What can be subscribed to: logs of sessions. Whether they are the caller's is looked at later,
/// when the caller is known.
pub(super) fn accepted(requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
    let mut filter = SubscriptionFilter::default();
    filter.resource_subscriptions = requested.resource_subscriptions.as_ref().map(|uris| {
        let known = uris.iter().filter(|uri| session_of(uri).is_some());
        known.take(SUBSCRIPTIONS).cloned().collect()
    });
    // Of what there is nothing, a subscription is kept open all the same and stays silent.
    Some(filter)
}

/// Subscribes a client of the era with sessions.
pub(super) async fn subscribe(
    engine: &Engine,
    push: &Push,
    client: Client,
    uri: &str,
) -> Result<(), ErrorData> {
    let id = session_of(uri).ok_or_else(|| not_found(uri))?;
    let allowed = engine.may_follow(&client.actor, id).await;
    allowed.map_err(|_| not_found(uri))?;
    match push.subscribe(engine, client, uri, id) {
        true => Ok(()),
        false => Err(ErrorData::invalid_params(
            "this MCP session has too many subscriptions",
            None,
        )),
    }
}

/// Rings for as long as the subscription lasts: once at the start, because what changed before
/// anybody listened is news too, and then whenever there is more.
pub(super) async fn listen(
    engine: &Engine,
    actor: Actor,
    context: SubscriptionContext,
) -> Result<(), ErrorData> {
    let uris = context.accepted().resource_subscriptions.clone();
    let bells = uris.unwrap_or_default().into_iter().map(|uri| {
        let (engine, actor, sink) = (engine.clone(), actor.clone(), context.sink().clone());
        async move {
            let Some(id) = session_of(&uri) else {
                return Err(not_found(&uri));
            };
            let _there = engine.callers().listen(&actor, id).await;
            let mut log = engine.follow(actor, id, -1);
            loop {
                let events = match log.next(WAIT).await {
                    Ok(events) => events,
                    // The server ends, and the stream with it.
                    Err(EngineError::Cancelled) => return Ok(()),
                    Err(_) => return Err(not_found(&uri)),
                };
                if !events.is_empty() && sink.notify_resource_updated(uri.clone()).await.is_err() {
                    return Ok(());
                }
            }
        }
    });
    let mut ringing = futures_util::stream::FuturesUnordered::from_iter(bells);
    tokio::select! {
        Some(ended) = futures_util::StreamExt::next(&mut ringing) => ended,
        () = context.cancelled() => Ok(()),
    }
}

fn failed(error: &EngineError) -> ErrorData {
    match errors::render(error) {
        Err(error) => error,
        Ok(_) => ErrorData::internal_error(error.to_string(), None),
    }
}
