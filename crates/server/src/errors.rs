//! The one table from the engine's errors to what MCP clients get.

use oubliette_engine::EngineError;
use rmcp::model::{CallToolResult, ContentBlock, ErrorCode, ErrorData};
use serde_json::json;

const REFUSED: ErrorCode = ErrorCode(-32002);
const FAULT: ErrorCode = ErrorCode(-32000);

/// Protocol errors for what the client program must mend; results for what a model can.
pub(crate) fn render(error: &EngineError) -> Result<CallToolResult, ErrorData> {
    let text = error.to_string();
    match error {
        EngineError::UnknownTool { .. } => Err(ErrorData::invalid_params(text, None)),
        EngineError::Refused { parameter } => {
            let data = parameter.map(|name| json!({ "parameter": name }));
            Err(ErrorData::new(REFUSED, text, data))
        }
        EngineError::Fault(_) => Err(ErrorData::new(FAULT, text, None)),
        EngineError::NotFound { .. }
        | EngineError::AlreadyExists { .. }
        | EngineError::Invalid(_)
        | EngineError::Failed(_)
        | EngineError::Cancelled => Ok(CallToolResult::error(vec![ContentBlock::text(text)])),
    }
}
