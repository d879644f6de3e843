//! What each method of the relay does: parse, call one verb of the engine, render.

use std::sync::Arc;

use oubliette_engine::{Call, Engine, EngineError, Speaker, Verb};
use oubliette_model::quoted;
use oubliette_runtime::ContainerId;
use oubliette_wire::{CallerTools, ListTools, RpcError, calls, codes};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

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
        calls::OUBLIETTE_TOOLS => {
            let ListTools { api_key } = parsed(params)?;
            tools::list(from, &api_key).await
        }
        calls::OUBLIETTE_CALL_TOOL => tools::call(from, parsed(params)?, call).await,
        calls::CALLER_TOOL => {
            attached(from).await?;
            Err(RpcError::new(
                codes::FAILED,
                "the caller of this session has declared no tools",
            ))
        }
        other => Err(RpcError::new(
            codes::METHOD,
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

/// The tools that the caller of a session has declared.
pub(super) async fn caller_tools(_: &Engine, _: &Speaker) -> CallerTools {
    CallerTools::default()
}

pub(super) fn parsed<T: DeserializeOwned>(params: Map<String, Value>) -> Result<T, RpcError> {
    serde_json::from_value(Value::Object(params))
        .map_err(|error| RpcError::new(codes::PARAMS, error.to_string()))
}

pub(super) fn rendered(result: &impl Serialize) -> Outcome {
    serde_json::to_value(result).map_err(|error| failure(&EngineError::fault(error)))
}

/// The one table from the engine's errors to those of the relay.
pub(super) fn failure(error: &EngineError) -> RpcError {
    let code = match error {
        EngineError::UnknownTool { .. } | EngineError::Invalid(_) => codes::PARAMS,
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
