//! Handles the requests of MCP clients: lists of the tools a token may use, calls, and resources.

#![expect(
    deprecated,
    reason = "clients of protocol versions with MCP sessions get events as log messages"
)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use http::request::Parts;
use oubliette_engine::operations::{ToolNames, tools};
use oubliette_engine::{Actor, Engine};
use oubliette_model::{Scope, ToolStyle};
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ErrorData, GetPromptRequestParams, GetPromptResponse,
    GetTaskParams, GetTaskResult, Implementation, InitializeRequestParams, InitializeResult,
    JsonObject, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, SetLevelRequestMethod,
    SetLevelRequestParams, SubscribeRequestMethod, SubscribeRequestParams, SubscriptionFilter,
    TASKS_EXTENSION_ID, Tool, ToolAnnotations, UnsubscribeRequestMethod, UnsubscribeRequestParams,
    UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::SessionRestoreMarker;
use rmcp::{RoleServer, ServerHandler};

use super::push::{EventPusher, McpClient};
use super::{guide, resources, tasks};
use crate::tasks::Tasks;
use crate::{McpSettings, errors};

/// The handler of the product's MCP endpoint. Cheap to clone: there is one per request.
#[derive(Debug, Clone)]
pub(crate) struct Handler {
    pub(super) engine: Engine,
    pub(super) pusher: EventPusher,
    versions: Arc<[ProtocolVersion]>,
}

impl Handler {
    pub(crate) fn new(engine: Engine, settings: &McpSettings, tasks: Tasks) -> Self {
        let known = ProtocolVersion::KNOWN_VERSIONS.iter().cloned();
        let newest = settings.max_protocol.as_deref();
        // Versions are dates, which sort as text.
        let is_allowed =
            |version: &ProtocolVersion| newest.is_none_or(|max| version.as_str() <= max);
        Self {
            engine,
            pusher: EventPusher::new(tasks),
            versions: known.filter(is_allowed).collect(),
        }
    }

    /// The form in which callers see the tools.
    pub(super) fn tool_style(&self) -> ToolStyle {
        let configured = self.engine.settings().tools.style;
        configured.unwrap_or(ToolStyle::Unified)
    }

    fn tool_names(&self) -> ToolNames {
        ToolNames::of_style(self.tool_style())
    }
}

/// Who sent a request. The authentication middleware has added it to the request.
pub(super) fn requesting_actor(context: &RequestContext<RoleServer>) -> Result<Actor, ErrorData> {
    context
        .extensions
        .get::<Parts>()
        .and_then(|parts| parts.extensions.get::<Actor>())
        .cloned()
        .ok_or_else(|| ErrorData::internal_error("the request has no authenticated token", None))
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_prompts()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_logging()
            .build();
        if self.versions.contains(&tasks::FIRST_VERSION) {
            let extension = (TASKS_EXTENSION_ID.to_owned(), JsonObject::new());
            capabilities.extensions = Some([extension].into());
        }
        let mut info = ServerConfig::new(capabilities)
            .with_instructions(guide::instructions(self.tool_names()));
        info.server_info = Implementation::new("oubliette", env!("CARGO_PKG_VERSION"));
        info
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Owned(self.versions.to_vec())
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        let mut result = self.negotiate_initialize(&request)?;
        // Protocol versions that begin with this request have no tasks.
        result.capabilities.extensions = None;
        Ok(result)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let parts = context.extensions.get::<Parts>();
        let actor = parts.and_then(|parts| parts.extensions.get::<Actor>());
        // Only a restored MCP session can have bindings.
        let restored = context.extensions.get::<SessionRestoreMarker>();
        if let (Some(actor), Some(restored)) = (actor, restored) {
            let client = McpClient {
                mcp_session: restored.id.to_string(),
                peer: context.peer.clone(),
                actor: actor.clone(),
            };
            self.pusher.restore_bindings(&self.engine, client).await;
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let scope = requesting_actor(&context)?.scope;
        let tools = tools::list(scope, self.tool_style())
            .iter()
            .map(to_mcp_tool)
            .collect();
        Ok(ListToolsResult {
            ttl_ms: Some(0),
            cache_scope: Some(CacheScope::Private),
            ..ListToolsResult::with_all_items(tools)
        })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        errors::mcp_answer(self.call(request, context)).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        errors::mcp_answer(self.poll_task(request, context)).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        errors::mcp_answer(self.refuse_input(request, context)).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        errors::mcp_answer(self.stop_task(request, context)).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        TOOLS_BY_NAME.get(name).cloned()
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
        Ok(guide::list_prompts())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        guide::get_prompt(request, self.tool_names()).map(Into::into)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let actor = requesting_actor(&context)?;
        errors::mcp_answer(resources::list(&self.engine, &actor)).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let actor = requesting_actor(&context)?;
        errors::mcp_answer(resources::read(
            &self.engine,
            &actor,
            &request.uri,
            self.tool_names(),
        ))
        .await
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        resources::accepted_filter(requested)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let actor = requesting_actor(context.request_context())?;
        resources::listen(&self.engine, actor, context).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let Some(mcp_session) = mcp_session_id(&context) else {
            return Err(ErrorData::method_not_found::<SubscribeRequestMethod>());
        };
        let client = McpClient {
            mcp_session,
            peer: context.peer.clone(),
            actor: requesting_actor(&context)?,
        };
        resources::subscribe(&self.engine, &self.pusher, client, &request.uri).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let Some(mcp_session) = mcp_session_id(&context) else {
            return Err(ErrorData::method_not_found::<UnsubscribeRequestMethod>());
        };
        self.pusher.unsubscribe(&mcp_session, &request.uri);
        Ok(())
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let Some(mcp_session) = mcp_session_id(&context) else {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        };
        self.pusher
            .set_log_level(&mcp_session, request.level, context.peer);
        Ok(())
    }
}

/// The MCP session of a request; none in protocol versions without MCP sessions.
pub(super) fn mcp_session_id(context: &RequestContext<RoleServer>) -> Option<String> {
    let parts = context.extensions.get::<Parts>()?;
    let id = parts.headers.get("mcp-session-id")?.to_str().ok()?;
    Some(id.to_owned())
}

/// Every tool by name: rmcp checks a request's headers before the token is known.
static TOOLS_BY_NAME: LazyLock<HashMap<&str, Tool>> = LazyLock::new(|| {
    let all = tools::list(Scope::Admin, ToolStyle::Both);
    all.iter()
        .map(|tool| (tool.name.as_str(), to_mcp_tool(tool)))
        .collect()
});

fn to_mcp_tool(tool: &'static tools::Tool) -> Tool {
    let hints = ToolAnnotations::new()
        .read_only(tool.hints.read_only)
        .destructive(tool.hints.destructive)
        .idempotent(tool.hints.idempotent)
        .open_world(tool.hints.open_world);
    Tool::new(tool.name.as_str(), tool.about.as_str(), tool.input.clone())
        .with_raw_output_schema(tool.output.clone())
        .with_annotations(hints)
}
