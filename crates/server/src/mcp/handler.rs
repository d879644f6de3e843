//! What the product answers to MCP clients: the tools a token may use, and their calls.

#![expect(
    deprecated,
    reason = "log messages are how clients of the older era are told of events; they stay for them"
)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use http::request::Parts;
use oubliette_engine::operations::tools;
use oubliette_engine::{Actor, Engine};
use oubliette_model::{Scope, ToolStyle};
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ErrorData, Implementation, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, SetLevelRequestMethod, SetLevelRequestParams,
    SubscribeRequestMethod, SubscribeRequestParams, SubscriptionFilter, Tool, ToolAnnotations,
    UnsubscribeRequestMethod, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::SessionRestoreMarker;
use rmcp::{RoleServer, ServerHandler};

use super::push::{Client, Push};
use super::resources;
use crate::McpSettings;

const INSTRUCTIONS: &str = "Oubliette runs coding agents in isolated containers. Make a project with `project` (action \
     `create`), then give an agent work with `session` (action `spawn`) and follow it with action \
     `events` and `wait_seconds`. Tools of yours that you declare in `context` the agent can call: \
     answer what is in `pending_caller_requests` with `caller_tool_response`. Each tool's `action` says what to do; errors say how to mend a \
     call.";

/// The handler of the product's endpoint. Cheap to clone: there is one per request.
#[derive(Debug, Clone)]
pub struct Handler {
    pub(super) engine: Engine,
    pub(super) push: Push,
    versions: Arc<[ProtocolVersion]>,
}

impl Handler {
    pub fn new(engine: Engine, settings: &McpSettings) -> Self {
        let known = ProtocolVersion::KNOWN_VERSIONS.iter().cloned();
        let newest = settings.max_protocol.as_deref();
        // Dates compare as they are written.
        let allowed = |version: &ProtocolVersion| newest.is_none_or(|max| version.as_str() <= max);
        Self {
            engine,
            push: Push::default(),
            versions: known.filter(allowed).collect(),
        }
    }
}

/// Whose request this is. The middleware has put it there; without it nothing is answered.
pub(super) fn actor(context: &RequestContext<RoleServer>) -> Result<Actor, ErrorData> {
    context
        .extensions
        .get::<Parts>()
        .and_then(|parts| parts.extensions.get::<Actor>())
        .cloned()
        .ok_or_else(|| ErrorData::internal_error("the request has no caller", None))
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_logging()
            .build();
        let mut info = ServerConfig::new(capabilities).with_instructions(INSTRUCTIONS);
        info.server_info = Implementation::new("oubliette", env!("CARGO_PKG_VERSION"));
        info
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Owned(self.versions.to_vec())
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let parts = context.extensions.get::<Parts>();
        let actor = parts.and_then(|parts| parts.extensions.get::<Actor>());
        // Only a session that was there before is bound to anything.
        let restored = context.extensions.get::<SessionRestoreMarker>();
        if let (Some(actor), Some(restored)) = (actor, restored) {
            let client = Client {
                mcp_session: restored.id.to_string(),
                peer: context.peer.clone(),
                actor: actor.clone(),
            };
            self.push.bind_again(&self.engine, client).await;
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let scope = actor(&context)?.scope;
        let style = self
            .engine
            .settings()
            .tools
            .style
            .unwrap_or(ToolStyle::Unified);
        let tools = tools::list(scope, style).iter().map(rendered).collect();
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
        self.call(request, context).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        BY_NAME.get(name).cloned()
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
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(&self.engine, &actor(&context)?).await
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
        resources::read(&self.engine, &actor(&context)?, &request.uri).await
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        resources::accepted(requested)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let actor = actor(context.request_context())?;
        resources::listen(&self.engine, actor, context).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let Some(mcp_session) = mcp_session(&context) else {
            return Err(ErrorData::method_not_found::<SubscribeRequestMethod>());
        };
        let client = Client {
            mcp_session,
            peer: context.peer.clone(),
            actor: actor(&context)?,
        };
        resources::subscribe(&self.engine, &self.push, client, &request.uri).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let Some(mcp_session) = mcp_session(&context) else {
            return Err(ErrorData::method_not_found::<UnsubscribeRequestMethod>());
        };
        self.push.unsubscribe(&mcp_session, &request.uri);
        Ok(())
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let Some(mcp_session) = mcp_session(&context) else {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        };
        self.push
            .set_level(&mcp_session, request.level, context.peer);
        Ok(())
    }
}

/// The MCP session of a request, in the era that has them.
pub(super) fn mcp_session(context: &RequestContext<RoleServer>) -> Option<String> {
    let parts = context.extensions.get::<Parts>()?;
    let id = parts.headers.get("mcp-session-id")?.to_str().ok()?;
    Some(id.to_owned())
}

/// Every tool by every name, for checks of a request's headers before its caller is known.
static BY_NAME: LazyLock<HashMap<&str, Tool>> = LazyLock::new(|| {
    let all = tools::list(Scope::Admin, ToolStyle::Both);
    all.iter()
        .map(|tool| (tool.name.as_str(), rendered(tool)))
        .collect()
});

fn rendered(tool: &'static tools::Tool) -> Tool {
    let hints = ToolAnnotations::new()
        .read_only(tool.hints.read_only)
        .destructive(tool.hints.destructive)
        .idempotent(tool.hints.idempotent)
        .open_world(false);
    Tool::new(tool.name.as_str(), tool.about.as_str(), tool.input.clone())
        .with_raw_output_schema(tool.output.clone())
        .with_annotations(hints)
}
