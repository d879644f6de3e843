//! Oubliette's own tools, from inside a container: with a key that is checked on every call.

use oubliette_engine::operations::tools;
use oubliette_engine::{Actor, Call, EngineError};
use oubliette_model::ToolStyle;
use oubliette_wire::{CallTool, RpcError, ToolEntry, ToolList, ToolResult};
use serde_json::json;

use super::methods::{From, Outcome, call_id, failure, rendered};

const WRONG_KEY: &str = "invalid or expired API key";

/// The tools that a key may call.
pub(super) async fn list(from: From<'_>, key: &str) -> Outcome {
    let actor = authenticated(from, key).await?;
    let listed = tools::list(actor.scope, style(from).await?).iter();
    let entry = |tool: &tools::Tool| ToolEntry {
        name: tool.name.clone(),
        description: Some(tool.about.clone()),
        input_schema: Some(tool.input.as_ref().clone()),
    };
    rendered(&ToolList {
        tools: listed.map(entry).collect(),
    })
}

/// Which names of the operations agents of a container's project see.
async fn style(from: From<'_>) -> Result<ToolStyle, RpcError> {
    let engine = &from.relay.engine;
    let own = engine.tool_style(from.container).await;
    own.map_err(|error| failure(&error))
}

/// Calls a tool by whichever of its names.
pub(super) async fn call(from: From<'_>, params: CallTool, call: Call) -> Outcome {
    let call_id = call_id(params.call_id.as_deref())?;
    let actor = authenticated(from, &params.api_key).await?;
    let arguments = params.arguments.unwrap_or_default();
    let engine = &from.relay.engine;
    let calling = engine.call_once(&actor, &params.tool, arguments, call_id, call);
    let (text, structured_content, is_error) = match Box::pin(calling).await {
        Ok(value) => (value.to_string(), Some(value), false),
        Err(
            error @ (EngineError::UnknownTool { .. }
            | EngineError::Refused { .. }
            | EngineError::Fault(_)),
        ) => return Err(failure(&error)),
        Err(error) => (error.to_string(), None, true),
    };
    rendered(&ToolResult {
        content: vec![json!({ "type": "text", "text": text })],
        structured_content,
        is_error,
    })
}

/// Whose key it is. What an agent does with any key, on the connection of its session, it does as that
/// session; the key of another session is none here.
async fn authenticated(from: From<'_>, key: &str) -> Result<Actor, RpcError> {
    let engine = &from.relay.engine;
    let address = super::address(from.container);
    let found = engine.tokens().authenticate(key, Some(address)).await;
    let found = found.map_err(|error| failure(&error))?;
    let own = from.speaker.map(|speaker| speaker.id());
    let actor = found.map(|found| found.actor).filter(|actor| {
        let of_another = actor.session.is_some_and(|session| Some(session) != own);
        own.is_none() || !of_another
    });
    match actor {
        Some(actor) => Ok(Actor {
            session: actor.session.or(own),
            ..actor
        }),
        None => Err(from.relay.unauthenticated(from.container, WRONG_KEY).await),
    }
}
