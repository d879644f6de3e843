//! Oubliette's own tools for agents in containers. Every call shows a key, which is checked each time.

use oubliette_engine::operations::{ToolNames, tools};
use oubliette_engine::{Actor, Call};
use oubliette_model::ToolStyle;
use oubliette_wire::{CallTool, RpcError, ToolEntry, ToolList, ToolResult};
use serde_json::json;

use super::audit_address;
use super::methods::{RequestSource, RpcResult, parse_call_id, to_json};
use crate::errors;

/// Lists the tools that a key may call, by the names that agents of the container's project see.
pub(super) async fn list(source: RequestSource<'_>, key: &str) -> RpcResult {
    let actor = authenticate(source, key).await?;
    let engine = &source.relay.engine;
    let style = engine
        .tool_style(source.container)
        .await
        .map_err(|error| errors::rpc_error(&error))?;
    let entry = |tool: &tools::Tool| ToolEntry {
        name: tool.name.clone(),
        description: Some(tool.about.clone()),
        input_schema: Some(tool.input.as_ref().clone()),
    };
    to_json(&ToolList {
        tools: tools::list_for_agents(actor.scope, style)
            .iter()
            .map(entry)
            .collect(),
    })
}

/// Calls a tool by any of its names.
pub(super) async fn call(source: RequestSource<'_>, params: CallTool, call: Call) -> RpcResult {
    let call_id = parse_call_id(params.call_id.as_deref())?;
    let actor = authenticate(source, &params.api_key).await?;
    let arguments = params.arguments.unwrap_or_default();
    let engine = &source.relay.engine;
    let calling = engine.call_once(&actor, &params.tool, arguments, call_id, call);
    let (text, structured_content, is_error) = match Box::pin(calling).await {
        Ok(value) => (value.to_string(), Some(value), false),
        Err(error) => {
            let style = engine.tool_style(source.container).await;
            let names = ToolNames::of_style(style.unwrap_or(ToolStyle::Both))
                .for_call(&params.tool)
                .with_prefix(tools::AGENT_PREFIX);
            (errors::tool_error(&error, names)?, None, true)
        }
    };
    to_json(&ToolResult {
        content: vec![json!({ "type": "text", "text": text })],
        structured_content,
        is_error,
    })
}

/// The actor of a key. On a connection that is attached to a session, every key acts for that session,
/// and the key of another session is rejected. On any other connection a key that belongs to no session
/// may be used by any agent of the container, and is held to what all of them may do.
async fn authenticate(source: RequestSource<'_>, key: &str) -> Result<Actor, RpcError> {
    let RequestSource {
        relay, container, ..
    } = source;
    let found = relay
        .engine
        .tokens()
        .authenticate(key, Some(audit_address(container)))
        .await
        .map_err(|error| errors::rpc_error(&error))?;
    let attached = source.session.map(|session| session.id());
    let actor = found
        .map(|found| found.actor)
        .filter(|actor| attached.is_none() || actor.session.is_none() || actor.session == attached);
    match actor {
        Some(actor) => Ok(Actor {
            unattached: actor.session.is_none() && attached.is_none(),
            session: actor.session.or(attached),
            ..actor
        }),
        None => Err(relay
            .reject_key(container, "invalid or expired API key")
            .await),
    }
}
