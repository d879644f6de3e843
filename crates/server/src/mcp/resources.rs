//! Resources. `oubliette://sessions/{id}/events` is the newest page of a session's log, and its
//! subscribers are notified of new events. Files of workspaces and differences of sessions are resources, too:
//! results that are cut off link to the rest.

use http::request::Parts;
use oubliette_engine::operations::ToolNames;
use oubliette_engine::{Actor, Call, Engine, EngineError};
use oubliette_model::{ResourceUri, SessionId};
use rmcp::model::{
    CacheScope, ContentBlock, ErrorData, ListResourceTemplatesResult, ListResourcesResult,
    MetaObject, ReadResourceResponse, ReadResourceResult, Resource, ResourceContents,
    ResourceTemplate, SubscriptionFilter,
};
use rmcp::service::SubscriptionContext;
use serde_json::{Map, Value, json};

use super::guide;
use super::push::{EventPusher, LOG_WAIT_TIMEOUT, McpClient};
use crate::errors;

const EVENTS_MIME_TYPE: &str = "application/json";
const DIFF_MIME_TYPE: &str = "text/x-diff";
const GUIDE_MIME_TYPE: &str = "text/markdown";
const TEXT_MIME_TYPE: &str = "text/plain";
/// How much of a file or a difference is read at once.
const MAX_READ_BYTES: u64 = 4 << 20;
/// Clients of earlier versions do not know links in results.
const FIRST_VERSION_WITH_LINKS: &str = "2025-06-18";
/// The field of a result with the URI of what was cut off, and of the metadata of a resource.
const REST_FIELD: &str = "rest_uri";
const STDERR_REST_FIELD: &str = "stderr_rest_uri";
/// Links of one result; the others are in its events.
const MAX_LINKS: usize = 10;
const EVENTS_PER_PAGE: i64 = 200;
/// Logs that one subscription can name.
const MAX_LOGS_PER_SUBSCRIPTION: usize = 100;

fn events_uri(id: &str) -> String {
    format!("oubliette://sessions/{id}/events")
}

fn parse_events_uri(uri: &str) -> Option<SessionId> {
    match uri.parse() {
        Ok(ResourceUri::SessionEvents(id)) => Some(id),
        _ => None,
    }
}

/// The links to what a result has no room for.
pub(super) fn links_to_rest(result: &Value, request: &Parts) -> Vec<ContentBlock> {
    let version = request.headers.get("mcp-protocol-version");
    let version = version.and_then(|version| version.to_str().ok());
    // Versions are dates, which sort as text.
    if version.is_none_or(|version| version < FIRST_VERSION_WITH_LINKS) {
        return Vec::new();
    }
    let events = result["events"].as_array().into_iter().flatten();
    let of_events = events.map(|event| &event[REST_FIELD]);
    [&result[REST_FIELD], &result[STDERR_REST_FIELD]]
        .into_iter()
        .chain(of_events)
        .filter_map(|uri| link_to(uri.as_str()?))
        .take(MAX_LINKS)
        .collect()
}

fn link_to(uri: &str) -> Option<ContentBlock> {
    let (name, mime_type) = match uri.parse().ok()? {
        ResourceUri::WorkspaceFile { path, .. } => (format!("rest of {path}"), None),
        ResourceUri::SessionDiff { .. } => ("rest of the patch".to_owned(), Some(DIFF_MIME_TYPE)),
        ResourceUri::CommandOutput { stream, .. } => {
            (format!("all of {}", stream.as_str()), Some(TEXT_MIME_TYPE))
        }
        ResourceUri::SessionEvent { .. } => ("all of the event".to_owned(), Some(EVENTS_MIME_TYPE)),
        ResourceUri::SessionEvents(_) | ResourceUri::Guide => return None,
    };
    let mut link = Resource::new(uri, name);
    link.mime_type = mime_type.map(str::to_owned);
    Some(ContentBlock::resource_link(link))
}

fn not_found(uri: &str) -> ErrorData {
    let data = json!({ "uri": uri });
    let text = "the resource does not exist, or this token may not read it";
    ErrorData::invalid_params(text, Some(data))
}

/// Lists the guide, and the active sessions that the token can see.
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
        Some(Resource::new(events_uri(id), name).with_mime_type(EVENTS_MIME_TYPE))
    };
    let guide = Resource::new(ResourceUri::Guide.to_string(), "guide")
        .with_description("How to give agents tasks, wait for them and check their work.")
        .with_mime_type(GUIDE_MIME_TYPE);
    let resources = std::iter::once(guide).chain(sessions.filter_map(resource));
    Ok(ListResourcesResult {
        ttl_ms: Some(0),
        cache_scope: Some(CacheScope::Private),
        ..ListResourcesResult::with_all_items(resources.collect())
    })
}

pub(super) fn templates() -> ListResourceTemplatesResult {
    let events = ResourceTemplate::new(events_uri("{session_id}"), "events of a session")
        .with_description(
            "The newest events of a session's log. Subscribe to be notified of new ones.",
        )
        .with_mime_type(EVENTS_MIME_TYPE);
    let diff = ResourceTemplate::new(
        "oubliette://sessions/{session_id}/diff{?turn,from_turn,to_turn,path,cursor}",
        "what a session changed",
    )
    .with_description(
        "The patch that `session_diff` returns, up to 4 MiB; `rest_uri` in the metadata is the rest.",
    )
    .with_mime_type(DIFF_MIME_TYPE);
    let event = ResourceTemplate::new(
        format!("{}/{{index}}", events_uri("{session_id}")),
        "one event of a session",
    )
    .with_description("All of an event whose texts were shortened.")
    .with_mime_type(EVENTS_MIME_TYPE);
    let output = ResourceTemplate::new(
        "oubliette://projects/{project_id}/commands/{exec_id}/{stream}",
        "output of a command",
    )
    .with_description("All of `stdout` or `stderr`, if it was shortened.")
    .with_mime_type(TEXT_MIME_TYPE);
    let file = ResourceTemplate::new(
        "oubliette://projects/{project_id}/workspaces/{workspace_id}/files/{+path}{?offset}",
        "a file of a workspace",
    )
    .with_description(
        "Up to 4 MiB of a file, from a byte on; `rest_uri` in the metadata is the rest.",
    );
    ListResourceTemplatesResult {
        ttl_ms: Some(0),
        cache_scope: Some(CacheScope::Private),
        ..ListResourceTemplatesResult::with_all_items(vec![events, event, diff, output, file])
    }
}

/// Reads a resource by the operations that return the same, with their permission checks.
pub(super) async fn read(
    engine: &Engine,
    actor: &Actor,
    uri: &str,
    names: ToolNames,
) -> Result<ReadResourceResponse, ErrorData> {
    let parsed = uri.parse().map_err(|_| not_found(uri))?;
    let read = match parsed {
        ResourceUri::Guide => Ok(text_contents(
            uri,
            GUIDE_MIME_TYPE,
            guide::text(names),
            None,
        )),
        ResourceUri::SessionEvent { session, index } => {
            read_event(engine, actor, session, index, uri).await
        }
        ResourceUri::CommandOutput {
            project,
            exec_id,
            stream,
        } => {
            let params = json!({ "project_id": project, "exec_id": exec_id, "full": true });
            let output = call(engine, actor, "container_exec", params).await;
            output.map(|mut output| {
                let text = match output[stream.as_str()].take() {
                    Value::String(text) => text,
                    _ => String::new(),
                };
                text_contents(uri, TEXT_MIME_TYPE, text, None)
            })
        }
        ResourceUri::SessionEvents(id) => read_events(engine, actor, id, uri).await,
        ResourceUri::SessionDiff { .. } => read_diff(engine, actor, parsed, uri).await,
        ResourceUri::WorkspaceFile {
            project,
            workspace,
            path,
            offset,
        } => {
            let params = json!({
                "project_id": project, "workspace_id": workspace, "path": path, "offset": offset,
                "length": MAX_READ_BYTES,
            });
            read_file(engine, actor, params, uri).await
        }
    };
    let contents = read.map_err(|error| match error {
        // Which of them it is must not be known to others.
        EngineError::NotFound { .. } | EngineError::Refused { .. } => not_found(uri),
        error => errors::mcp_error(&error),
    })?;
    let result = ReadResourceResult::new(vec![contents])
        .with_ttl_ms(0)
        .with_cache_scope(CacheScope::Private);
    Ok(result.into())
}

async fn call(
    engine: &Engine,
    actor: &Actor,
    operation: &str,
    params: Value,
) -> Result<Value, EngineError> {
    let Value::Object(params) = params else {
        return Err(EngineError::fault("parameters are an object"));
    };
    engine.call(actor, operation, params, Call::new()).await
}

/// The newest page of a session's log.
async fn read_events(
    engine: &Engine,
    actor: &Actor,
    id: SessionId,
    uri: &str,
) -> Result<ResourceContents, EngineError> {
    let session = call(engine, actor, "session_get", json!({ "session_id": id })).await?;
    let since = session["last_index"].as_i64().unwrap_or(-1) - EVENTS_PER_PAGE;
    let params = json!({ "session_id": id, "since_index": since.max(-1), "types": ["all"],
        "full": true });
    let page = call(engine, actor, "session_events", params).await?;
    Ok(text_contents(uri, EVENTS_MIME_TYPE, page.to_string(), None))
}

/// All of one event.
async fn read_event(
    engine: &Engine,
    actor: &Actor,
    id: SessionId,
    index: i64,
    uri: &str,
) -> Result<ResourceContents, EngineError> {
    let params = json!({
        "session_id": id, "since_index": index - 1, "max_events": 1, "types": ["all"], "full": true,
    });
    let page = call(engine, actor, "session_events", params).await?;
    let event = &page["events"][0];
    if event["index"] != index {
        return Err(EngineError::NotFound {
            what: "event",
            id: index.to_string(),
            hint: "old events are deleted",
        });
    }
    Ok(text_contents(
        uri,
        EVENTS_MIME_TYPE,
        event.to_string(),
        None,
    ))
}

/// The pages of a patch, as far as they fit.
async fn read_diff(
    engine: &Engine,
    actor: &Actor,
    mut parsed: ResourceUri,
    uri: &str,
) -> Result<ResourceContents, EngineError> {
    let mut text = String::new();
    while let ResourceUri::SessionDiff {
        session,
        turn,
        from_turn,
        to_turn,
        path,
        cursor,
    } = &parsed
    {
        let params = json!({
            "session_id": session, "turn": turn, "from_turn": from_turn, "to_turn": to_turn,
            "path": path, "cursor": cursor, "full": true,
        });
        let page = call(engine, actor, "session_diff", params).await?;
        text.push_str(page["diff"].as_str().unwrap_or_default());
        let Some(rest) = page[REST_FIELD].as_str() else {
            break;
        };
        if text.len() as u64 >= MAX_READ_BYTES {
            return Ok(text_contents(uri, DIFF_MIME_TYPE, text, Some(rest)));
        }
        parsed = rest.parse()?;
    }
    Ok(text_contents(uri, DIFF_MIME_TYPE, text, None))
}

/// Up to 4 MiB of a file.
async fn read_file(
    engine: &Engine,
    actor: &Actor,
    params: Value,
    uri: &str,
) -> Result<ResourceContents, EngineError> {
    let mut read = call(engine, actor, "workspace_read", params).await?;
    let content = match read["content"].take() {
        Value::String(content) => content,
        _ => String::new(),
    };
    let rest = read[REST_FIELD].as_str();
    if read["encoding"] == "base64" {
        return Ok(ResourceContents::BlobResourceContents {
            uri: uri.to_owned(),
            mime_type: Some("application/octet-stream".to_owned()),
            blob: content,
            meta: rest_meta(rest),
        });
    }
    Ok(text_contents(uri, TEXT_MIME_TYPE, content, rest))
}

fn text_contents(uri: &str, mime_type: &str, text: String, rest: Option<&str>) -> ResourceContents {
    ResourceContents::TextResourceContents {
        uri: uri.to_owned(),
        mime_type: Some(mime_type.to_owned()),
        text,
        meta: rest_meta(rest),
    }
}

fn rest_meta(rest: Option<&str>) -> Option<MetaObject> {
    let mut meta = MetaObject::default();
    meta.0.insert(REST_FIELD.to_owned(), json!(rest?));
    Some(meta)
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
