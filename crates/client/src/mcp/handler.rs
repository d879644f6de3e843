//! Handles the requests of the agent: the list of tools, and tool calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oubliette_wire::{
    AGENT_INSTRUCTIONS, CallTool, CallerTool, RpcError, ToolResult, codes, relay_methods,
};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ContentBlock, CustomRequest, CustomResult,
    DiscoverRequestMethod, DiscoverResult, ErrorData, Implementation, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ServerCapabilities, ServerConfig,
};
use rmcp::service::{NotificationContext, Peer, RequestContext};
use rmcp::{RoleServer, ServerHandler};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::base_tools;
use super::relay_connection::RelayConnection;
use super::settings::Settings;
use super::tool_registry::{ToolRegistry, ToolTarget};

/// How long the first list waits for the server's tools: some agents request the list only once.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the connection to read what the server has already sent.
const LIST_DELAY: Duration = Duration::from_millis(2);
/// Short enough that an agent does not time out.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(4);

pub(super) struct Handler {
    settings: Settings,
    tools: Arc<ToolRegistry>,
    relay: RelayConnection,
    listed: AtomicBool,
}

impl Handler {
    pub(super) fn new(
        settings: Settings,
        tools: Arc<ToolRegistry>,
        relay: RelayConnection,
    ) -> Self {
        Self {
            settings,
            tools,
            relay,
            listed: AtomicBool::new(false),
        }
    }

    async fn call(&self, target: ToolTarget, arguments: Map<String, Value>) -> CallToolResult {
        let call_id = uuid::Uuid::new_v4().to_string();
        let result = match target {
            ToolTarget::Base(name) => {
                let mut params = arguments;
                if base_tools::takes_call_id(name) {
                    params.insert("call_id".to_owned(), call_id.into());
                }
                let result = self.relay.call(name, params).await;
                result.map(CallToolResult::structured)
            }
            ToolTarget::Caller(tool) => {
                let call = CallerTool {
                    tool,
                    arguments: Some(arguments),
                    call_id: Some(call_id),
                };
                let method = relay_methods::CALLER_TOOL;
                let result = self.relay.call(method, params(&call)).await;
                result.map(caller_result)
            }
            ToolTarget::Oubliette(tool) => {
                let call = CallTool {
                    api_key: self.settings.api_key.clone().unwrap_or_default(),
                    tool,
                    arguments: Some(arguments),
                    call_id: Some(call_id),
                };
                let method = relay_methods::OUBLIETTE_CALL_TOOL;
                let result = self.relay.call(method, params(&call)).await;
                result.map(mcp_result)
            }
        };
        result.unwrap_or_else(|error| error_result(&error))
    }
}

fn params(call: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(call) {
        Ok(Value::Object(params)) => params,
        _ => Map::new(),
    }
}

/// An error as a result that the model reads.
fn error_result(error: &RpcError) -> CallToolResult {
    let text = if error.code == codes::NOT_ATTACHED {
        format!(
            "{}; this agent's session was started again or has ended",
            error.message
        )
    } else {
        error.message.clone()
    };
    CallToolResult::error(vec![ContentBlock::text(text)])
}

/// A result in the form of MCP; blocks of an unknown type become text.
fn mcp_result(result: Value) -> CallToolResult {
    let Ok(result) = serde_json::from_value::<ToolResult>(result.clone()) else {
        return CallToolResult::structured(result);
    };
    let block = |block: Value| {
        serde_json::from_value(block.clone())
            .unwrap_or_else(|_| ContentBlock::text(block.to_string()))
    };
    let blocks = result.content.into_iter().map(block).collect();
    let mut rendered = if result.is_error {
        CallToolResult::error(blocks)
    } else {
        CallToolResult::success(blocks)
    };
    rendered.structured_content = result.structured_content;
    rendered
}

/// The result of a caller's tool: MCP content and text unchanged, everything else as JSON.
fn caller_result(result: Value) -> CallToolResult {
    let blocks = result["content"].as_array();
    let is_mcp = blocks.is_some_and(|blocks| {
        !blocks.is_empty() && blocks.iter().all(|block| block["type"].is_string())
    });
    match result {
        result if is_mcp => mcp_result(result),
        result @ Value::Object(_) => CallToolResult::structured(result),
        // Most agents require an object as structured content.
        other => {
            let text = match &other {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let mut rendered = CallToolResult::success(vec![ContentBlock::text(text)]);
            rendered.structured_content = Some(json!({ "result": other }));
            rendered
        }
    }
}

/// Sends progress notifications for a call, as long as the future is polled.
async fn send_progress(peer: Peer<RoleServer>, token: ProgressToken) -> std::convert::Infallible {
    let started = Instant::now();
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let seconds = started.elapsed().as_secs_f64().round();
        let progress = ProgressNotificationParam::new(token.clone(), seconds)
            .with_message(format!("waiting for {seconds} s"));
        if peer.notify_progress(progress).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        let mut info = ServerConfig::new(capabilities).with_instructions(AGENT_INSTRUCTIONS);
        info.server_info = Implementation::new("oubliette", env!("CARGO_PKG_VERSION"));
        info
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.tools.set_peer(context.peer);
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if self.listed.load(Ordering::Relaxed) {
            tokio::time::sleep(LIST_DELAY).await;
        } else {
            let complete = self.tools.wait_until_complete();
            let _ = tokio::time::timeout(FIRST_LIST_TIMEOUT, complete).await;
            self.listed.store(true, Ordering::Relaxed);
        }
        let tools = self.tools.list();
        self.tools.set_listed();
        Ok(ListToolsResult {
            ttl_ms: Some(0),
            ..ListToolsResult::with_all_items(tools)
        })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut target = self.tools.resolve(&request.name);
        if target.is_none() {
            // The server may not have sent this tool yet.
            let complete = self.tools.wait_until_complete();
            let _ = tokio::time::timeout(FIRST_LIST_TIMEOUT, complete).await;
            target = self.tools.resolve(&request.name);
        }
        let Some(target) = target else {
            return Err(ErrorData::invalid_params(
                format!(
                    "unknown tool `{}`; `tools/list` shows the available tools",
                    request.name
                ),
                None,
            ));
        };
        let calling = self.call(target, request.arguments.unwrap_or_default());
        let reporting = async {
            match context.meta.get_progress_token() {
                Some(token) => send_progress(context.peer.clone(), token).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = calling => Ok(result.into()),
            never = reporting => match never {},
            // The agent ignores the reply to a call that it cancelled.
            () = context.ct.cancelled() => Err(ErrorData::internal_error("cancelled", None)),
        }
    }

    async fn discover(&self, _: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        Err(ErrorData::method_not_found::<DiscoverRequestMethod>())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<
            ListResourceTemplatesRequestMethod,
        >())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // The SDK also passes known methods with invalid parameters to this function.
        let error = match request.method.as_str() {
            "tools/call" | "tools/list" | "initialize" => {
                ErrorData::invalid_params("the parameters are not valid for this method", None)
            }
            other => ErrorData::new(
                rmcp::model::ErrorCode::METHOD_NOT_FOUND,
                other.to_owned(),
                None,
            ),
        };
        Err(error)
    }
}
