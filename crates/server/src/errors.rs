//! The one table from the engine's errors to what clients get, over MCP and over the relay.

use oubliette_engine::EngineError;
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
        } => Some(json!({ "parameter": name })),
        _ => None,
    };
    RpcError {
        data,
        ..RpcError::new(code, error.to_string())
    }
}

/// An error of a tool call: the text of a tool result, or a protocol error.
pub(crate) fn tool_error(error: &EngineError) -> Result<String, RpcError> {
    match classify(error) {
        (_, Recipient::Model) => Ok(error.to_string()),
        (_, Recipient::Client) => Err(rpc_error(error)),
    }
}

/// [`rpc_error`] in the types of MCP.
pub(crate) fn mcp_error(error: &EngineError) -> ErrorData {
    error_data(rpc_error(error))
}

/// [`tool_error`] in the types of MCP.
pub(crate) fn mcp_tool_error(error: &EngineError) -> Result<CallToolResult, ErrorData> {
    let text = tool_error(error).map_err(error_data)?;
    Ok(CallToolResult::error(vec![ContentBlock::text(text)]))
}

fn error_data(error: RpcError) -> ErrorData {
    let code = i32::try_from(error.code).map_or(ErrorCode::INTERNAL_ERROR, ErrorCode);
    ErrorData::new(code, error.message, error.data)
}
