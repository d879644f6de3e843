//! The one table from the engine's errors to what clients get, over MCP and over the relay.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use oubliette_engine::EngineError;
use oubliette_engine::operations::ToolNames;
use oubliette_wire::{RpcError, codes};
use rmcp::model::{CallToolResult, ContentBlock, ErrorCode, ErrorData};
use serde_json::json;

/// Who can correct the cause of an error that a tool call returns.
enum Recipient {
    /// The client program, by a protocol error.
    Client,
    /// The model, by the tool's result.
    Model,
}

fn classify(error: &EngineError) -> (i64, Recipient) {
    match error {
        EngineError::UnknownTool { .. } => (codes::INVALID_PARAMS, Recipient::Client),
        EngineError::Refused { .. } => (codes::REFUSED, Recipient::Client),
        EngineError::Fault(_) => (codes::FAILED, Recipient::Client),
        EngineError::Invalid(_) => (codes::INVALID_PARAMS, Recipient::Model),
        EngineError::NotFound { .. }
        | EngineError::AlreadyExists { .. }
        | EngineError::Failed(_)
        | EngineError::Cancelled => (codes::FAILED, Recipient::Model),
    }
}

/// An error as a protocol error.
pub(crate) fn rpc_error(error: &EngineError) -> RpcError {
    let (code, _) = classify(error);
    let data = match error {
        EngineError::Refused {
            parameter: Some(name),
            ..
        } => Some(json!({ "parameter": name })),
        _ => None,
    };
    RpcError {
        data,
        ..RpcError::new(code, error.to_string())
    }
}

/// An error of a tool call: the text of a tool result, or a protocol error. It names tools as the client
/// knows them.
pub(crate) fn tool_error(error: &EngineError, names: ToolNames) -> Result<String, RpcError> {
    match classify(error) {
        (_, Recipient::Model) => Ok(names.apply(&error.to_string()).into_owned()),
        (_, Recipient::Client) => {
            let error = rpc_error(error);
            Err(RpcError {
                message: names.apply(&error.message).into_owned(),
                ..error
            })
        }
    }
}

/// [`rpc_error`] in the types of MCP.
pub(crate) fn mcp_error(error: &EngineError) -> ErrorData {
    error_data(rpc_error(error))
}

/// [`mcp_error`] for a request about a task. It names tools as the client knows them.
pub(crate) fn mcp_task_error(error: &EngineError, names: ToolNames) -> ErrorData {
    let error = rpc_error(error);
    error_data(RpcError {
        message: names.apply(&error.message).into_owned(),
        ..error
    })
}

/// [`tool_error`] in the types of MCP.
pub(crate) fn mcp_tool_error(
    error: &EngineError,
    names: ToolNames,
) -> Result<CallToolResult, ErrorData> {
    let text = tool_error(error, names).map_err(error_data)?;
    Ok(CallToolResult::error(vec![ContentBlock::text(text)]))
}

/// Answers a request. One whose handling panics gets an error; without this it would get no reply at all.
///
/// Not an `async fn`, which would hold the large future twice.
pub(crate) fn answer<T>(
    handling: impl Future<Output = Result<T, RpcError>>,
) -> impl Future<Output = Result<T, RpcError>> {
    let handled = AssertUnwindSafe(handling).catch_unwind();
    handled.map(|result| {
        result.unwrap_or_else(|_| {
            let text = "the server failed in this call; its log has the details";
            Err(RpcError::new(codes::FAILED, text))
        })
    })
}

/// [`answer`] in the types of MCP.
pub(crate) fn mcp_answer<T>(
    handling: impl Future<Output = Result<T, ErrorData>>,
) -> impl Future<Output = Result<T, ErrorData>> {
    let handled = answer(handling.map(Ok));
    handled.map(|result| result.unwrap_or_else(|error| Err(error_data(error))))
}

fn error_data(error: RpcError) -> ErrorData {
    let code = i32::try_from(error.code).map_or(ErrorCode::INTERNAL_ERROR, ErrorCode);
    ErrorData::new(code, error.message, error.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_whose_handling_panics_gets_an_error() {
        let panicking = async { panic!("as the test asks") };
        let reply: Result<(), ErrorData> = mcp_answer(panicking).await;
        let error = reply.unwrap_err();
        assert_eq!(i64::from(error.code.0), codes::FAILED);
        assert!(error.message.contains("log"), "{}", error.message);
        let reply = mcp_answer(async { Ok(7) }).await;
        assert_eq!(reply.unwrap(), 7);
    }
}
