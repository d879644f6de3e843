//! What the agent asks, answered: the tools there are, and their calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oubliette_wire::{CallTool, CallerTool, RpcError, ToolResult, calls, codes};
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

use super::base;
use super::link::Link;
use super::settings::Settings;
use super::tools::{Meant, Tools};

/// How long the first list waits for the server: one agent of five asks only once.
const FIRST_LIST: Duration = Duration::from_secs(2);
/// By then everything is read that waits to be.
const HEAR: Duration = Duration::from_millis(2);
/// An agent that hears of progress so often does not give up.
const PROGRESS: Duration = Duration::from_secs(4);

const INSTRUCTIONS: &str = "Tools of Oubliette, which runs this agent in a container. `session_message` has another agent \
     do something and waits for its answer.";

pub(super) struct Handler {
    settings: Settings,
    tools: Arc<Tools>,
    link: Link,
    listed: AtomicBool,
}

impl Handler {
    pub(super) fn new(settings: Settings, tools: Arc<Tools>, link: Link) -> Self {
        Self {
            settings,
            tools,
            link,
            listed: AtomicBool::new(false),
        }
    }

    async fn ask(&self, meant: Meant, arguments: Map<String, Value>) -> CallToolResult {
        let call_id = uuid::Uuid::new_v4().to_string();
        match meant {
            Meant::Base(name) => {
                let mut params = arguments;
                if base::happens_once(name) {
                    params.insert("call_id".to_owned(), call_id.into());
                }
                match self.link.call(name, params).await {
                    Ok(result) => CallToolResult::structured(result),
                    Err(error) => failed(&error),
                }
            }
            Meant::Caller(tool) => {
                let call = CallerTool {
                    tool,
                    arguments: Some(arguments),
                    call_id: Some(call_id),
                };
                match self.link.call(calls::CALLER_TOOL, params(&call)).await {
                    Ok(result) => caller_result(result),
                    Err(error) => failed(&error),
                }
            }
            Meant::Oubliette(tool) => {
                let call = CallTool {
                    api_key: self.settings.api_key.clone().unwrap_or_default(),
                    tool,
                    arguments: Some(arguments),
                    call_id: Some(call_id),
                };
                match self
                    .link
                    .call(calls::OUBLIETTE_CALL_TOOL, params(&call))
                    .await
                {
                    Ok(result) => mcp_result(result),
                    Err(error) => failed(&error),
                }
            }
        }
    }
}

fn params(call: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(call) {
        Ok(Value::Object(params)) => params,
        _ => Map::new(),
    }
}

/// What went wrong, as something that a model can read.
fn failed(error: &RpcError) -> CallToolResult {
    let text = match error.code {
        codes::NOT_ATTACHED => format!(
            "{}; this agent's session was started again or has ended",
            error.message
        ),
        _ => error.message.clone(),
    };
    CallToolResult::error(vec![ContentBlock::text(text)])
}

/// A result that is MCP's already; blocks that this client does not know become text.
fn mcp_result(result: Value) -> CallToolResult {
    let Ok(result) = serde_json::from_value::<ToolResult>(result.clone()) else {
        return CallToolResult::structured(result);
    };
    let blocks = result.content.into_iter().map(|block| {
        serde_json::from_value(block.clone())
            .unwrap_or_else(|_| ContentBlock::text(block.to_string()))
    });
    let blocks: Vec<ContentBlock> = blocks.collect();
    let mut rendered = match result.is_error {
        true => CallToolResult::error(blocks),
        false => CallToolResult::success(blocks),
    };
    rendered.structured_content = result.structured_content;
    rendered
}

/// What a caller's tool returned: MCP's own content and text as they are, anything else as JSON.
fn caller_result(result: Value) -> CallToolResult {
    let blocks = result["content"].as_array();
    let is_mcp = blocks.is_some_and(|blocks| {
        !blocks.is_empty() && blocks.iter().all(|block| block["type"].is_string())
    });
    match result {
        result if is_mcp => mcp_result(result),
        result @ Value::Object(_) => CallToolResult::structured(result),
        // Structured content is an object for most agents.
        other => {
            let text = match &other {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let text = ContentBlock::text(text);
            let mut rendered = CallToolResult::success(vec![text]);
            rendered.structured_content = Some(json!({ "result": other }));
            rendered
        }
    }
}

/// Tells the agent that a call is still being worked on, for as long as it is polled.
async fn reassure(peer: Peer<RoleServer>, token: ProgressToken) -> std::convert::Infallible {
    let since = Instant::now();
    loop {
        tokio::time::sleep(PROGRESS).await;
        let seconds = since.elapsed().as_secs_f64().round();
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
        let mut info = ServerConfig::new(capabilities).with_instructions(INSTRUCTIONS);
        info.server_info = Implementation::new("oubliette", env!("CARGO_PKG_VERSION"));
        info
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.tools.introduce(context.peer);
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if !self.listed.load(Ordering::Relaxed) {
            let _ = tokio::time::timeout(FIRST_LIST, self.tools.complete()).await;
            self.listed.store(true, Ordering::Relaxed);
        } else {
            // What the server said before this was asked is heard first.
            tokio::time::sleep(HEAR).await;
        }
        Ok(ListToolsResult {
            ttl_ms: Some(0),
            ..ListToolsResult::with_all_items(self.tools.list())
        })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut meant = self.tools.meant(&request.name);
        if meant.is_none() {
            // It may be a tool that the server has not told of yet.
            let _ = tokio::time::timeout(FIRST_LIST, self.tools.complete()).await;
            meant = self.tools.meant(&request.name);
        }
        let Some(meant) = meant else {
            return Err(ErrorData::invalid_params(
                format!(
                    "unknown tool `{}`; `tools/list` shows those there are",
                    request.name
                ),
                None,
            ));
        };
        let asking = self.ask(meant, request.arguments.unwrap_or_default());
        let reassuring = async {
            match context.meta.get_progress_token() {
                Some(token) => reassure(context.peer.clone(), token).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = asking => Ok(result.into()),
            never = reassuring => match never {},
            // Nobody hears this: the call is over for the agent.
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
        // A known method whose parameters are of no shape that is known ends up here, too.
        let error = match request.method.as_str() {
            "tools/call" | "tools/list" | "initialize" => {
                ErrorData::invalid_params("the parameters are not as the protocol has them", None)
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
