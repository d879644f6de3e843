//! What each method of the relay does: parse, call one verb of the engine, render.

use std::sync::Arc;

use oubliette_engine::{Call, CallerError, EngineError, Speaker, Verb};
use oubliette_model::quoted;
use oubliette_runtime::ContainerId;
use oubliette_wire::{CallerTool, ListTools, RpcError, codes, relay_methods};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{Relay, tools};

pub(super) type Outcome = Result<Value, RpcError>;

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct From<'a> {
    pub(super) relay: &'a Arc<Relay>,
    pub(super) container: &'a ContainerId,
    pub(super) speaker: Option<&'a Speaker>,
}

pub(super) async fn answer(
    from: From<'_>,
    method: &str,
    params: Map<String, Value>,
    call: Call,
) -> Outcome {
    if let Some(verb) = Verb::named(method) {
        let session = attached(from).await?;
        let address = super::address(from.container);
        let engine = &from.relay.engine;
        let done = engine.call_as(&session, address, verb, params, call).await;
        return done.map_err(|error| failure(&error));
    }
    match method {
        relay_methods::OUBLIETTE_TOOLS => {
            let ListTools { api_key } = parsed(params)?;
            tools::list(from, &api_key).await
        }
        relay_methods::OUBLIETTE_CALL_TOOL => tools::call(from, parsed(params)?, call).await,
        relay_methods::CALLER_TOOL => {
            let session = attached(from).await?;
            caller_tool(from, &session, parsed(params)?, call).await
        }
        other => Err(RpcError::new(
            codes::METHOD_NOT_FOUND,
            format!("there is no method {}", quoted(other)),
        )),
    }
}

/// The session that the connection speaks for, as it is now.
async fn attached(from: From<'_>) -> Result<oubliette_store::Session, RpcError> {
    let Some(speaker) = from.speaker else {
        return Err(RpcError::new(
            codes::NOT_ATTACHED,
            "not attached to a session; call `attach` first",
        ));
    };
    let session = from.relay.engine.speaking(speaker).await;
    session.map_err(|error| failure(&error))?.ok_or_else(|| {
        RpcError::new(
            codes::NOT_ATTACHED,
            "not attached to a session any more: its agent has ended or was started again",
        )
    })
}

/// Calls a tool of the session's caller, and waits for what becomes of it.
async fn caller_tool(
    from: From<'_>,
    session: &oubliette_store::Session,
    params: CallerTool,
    call: Call,
) -> Outcome {
    let call_id = call_id(params.call_id.as_deref())?;
    let address = super::address(from.container);
    let arguments = params.arguments.unwrap_or_default();
    let engine = &from.relay.engine;
    let calling = engine.call_caller(session, address, &params.tool, arguments, call_id, call);
    calling.await.map_err(|error| match error {
        CallerError::Engine(error) => failure(&error),
        CallerError::Ended(outcome, why) => RpcError {
            data: Some(json!({ "kind": outcome })),
            ..RpcError::new(codes::FAILED, why)
        },
    })
}

/// The name that a client gave a call, or a new one.
pub(super) fn call_id(given: Option<&str>) -> Result<Uuid, RpcError> {
    match given.map(Uuid::try_parse) {
        None => Ok(Uuid::new_v4()),
        Some(Ok(call_id)) => Ok(call_id),
        Some(Err(_)) => Err(RpcError::new(
            codes::INVALID_PARAMS,
            "`call_id` must be a UUID",
        )),
    }
}

pub(super) fn parsed<T: DeserializeOwned>(params: Map<String, Value>) -> Result<T, RpcError> {
    serde_json::from_value(Value::Object(params))
        .map_err(|error| RpcError::new(codes::INVALID_PARAMS, error.to_string()))
}

pub(super) fn rendered(result: &impl Serialize) -> Outcome {
    serde_json::to_value(result).map_err(|error| failure(&EngineError::fault(error)))
}

/// The one table from the engine's errors to those of the relay.
pub(super) fn failure(error: &EngineError) -> RpcError {
    let code = match error {
        EngineError::UnknownTool { .. } | EngineError::Invalid(_) => codes::INVALID_PARAMS,
        EngineError::Refused { .. } => codes::REFUSED,
        EngineError::NotFound { .. }
        | EngineError::AlreadyExists { .. }
        | EngineError::Failed(_)
        | EngineError::Cancelled
        | EngineError::Fault(_) => codes::FAILED,
    };
    let data = match error {
        EngineError::Refused {
            parameter: Some(name),
        } => Some(json!({ "parameter": name })),
        _ => None,
    };
    RpcError {
        data,
        ..RpcError::new(code, error.to_string())
    }
}
