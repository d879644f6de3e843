//! The methods of the relay: each parses, calls one verb of the engine and renders.

use oubliette_engine::{AgentTool, AttachedSession, Call, CallerError, EngineError};
use oubliette_model::quoted;
use oubliette_runtime::ContainerId;
use oubliette_wire::{CallerTool, ListTools, RpcError, codes, relay_methods};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{Relay, audit_address, tools};
use crate::errors;

pub(super) type RpcResult = Result<Value, RpcError>;

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestSource<'a> {
    pub(super) relay: &'a Relay,
    pub(super) container: &'a ContainerId,
    /// The session that its connection is attached to.
    pub(super) session: Option<&'a AttachedSession>,
}

pub(super) async fn dispatch(
    source: RequestSource<'_>,
    method: &str,
    params: Map<String, Value>,
    call: Call,
) -> RpcResult {
    if let Some(verb) = AgentTool::from_name(method) {
        let session = attached_session(source).await?;
        let address = audit_address(source.container);
        let engine = &source.relay.engine;
        let result = engine
            .sessions()
            .call_from_agent(&session, address, verb, params, call)
            .await;
        return result.map_err(|error| errors::rpc_error(&error));
    }
    match method {
        relay_methods::OUBLIETTE_TOOLS => {
            let ListTools { api_key } = parse_params(params)?;
            tools::list(source, &api_key).await
        }
        relay_methods::OUBLIETTE_CALL_TOOL => {
            tools::call(source, parse_params(params)?, call).await
        }
        relay_methods::CALLER_TOOL => {
            let session = attached_session(source).await?;
            call_caller_tool(source, &session, parse_params(params)?, call).await
        }
        other => {
            let message = format!("unknown method {}", quoted(other));
            Err(RpcError::new(codes::METHOD_NOT_FOUND, message))
        }
    }
}

/// The current state of the session that the connection is attached to.
async fn attached_session(source: RequestSource<'_>) -> Result<oubliette_store::Session, RpcError> {
    let not_attached = |reason| RpcError::new(codes::NOT_ATTACHED, reason);
    let Some(attached) = source.session else {
        return Err(not_attached(
            "not attached to a session; call `attach` first",
        ));
    };
    let session = source.relay.engine.sessions().resolve(attached).await;
    session
        .map_err(|error| errors::rpc_error(&error))?
        .ok_or_else(|| {
            not_attached("no longer attached to a session: its agent has ended or was restarted")
        })
}

/// Calls a tool of the session's caller, and waits for its result.
async fn call_caller_tool(
    source: RequestSource<'_>,
    session: &oubliette_store::Session,
    params: CallerTool,
    call: Call,
) -> RpcResult {
    let call_id = parse_call_id(params.call_id.as_deref())?;
    let address = audit_address(source.container);
    let arguments = params.arguments.unwrap_or_default();
    let engine = &source.relay.engine;
    let calling =
        engine
            .callers()
            .call_tool(session, address, &params.tool, arguments, call_id, call);
    calling.await.map_err(|error| match error {
        CallerError::Engine(error) => errors::rpc_error(&error),
        CallerError::Ended(outcome, reason) => RpcError {
            data: Some(json!({ "kind": outcome })),
            ..RpcError::new(codes::FAILED, reason)
        },
    })
}

/// The id that a client gave a call, or a new one.
pub(super) fn parse_call_id(given: Option<&str>) -> Result<Uuid, RpcError> {
    match given.map(Uuid::try_parse) {
        None => Ok(Uuid::new_v4()),
        Some(Ok(call_id)) => Ok(call_id),
        Some(Err(_)) => Err(RpcError::new(
            codes::INVALID_PARAMS,
            "`call_id` must be a UUID",
        )),
    }
}

pub(super) fn parse_params<T: DeserializeOwned>(params: Map<String, Value>) -> Result<T, RpcError> {
    serde_json::from_value(Value::Object(params))
        .map_err(|error| RpcError::new(codes::INVALID_PARAMS, error.to_string()))
}

pub(super) fn to_json(result: &impl Serialize) -> RpcResult {
    serde_json::to_value(result).map_err(|error| errors::rpc_error(&EngineError::fault(error)))
}
