//! What the product answers to MCP clients: the tools a token may use, and their calls.

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
    ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProtocolVersion, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};

use crate::McpSettings;

const INSTRUCTIONS: &str = "Oubliette runs coding agents in isolated containers. Make a project with `project` (action \
     `create`), then work in it. Each tool's `action` says what to do; errors say how to mend a \
     call.";

/// The handler of the product's endpoint. Cheap to clone: there is one per request.
#[derive(Debug, Clone)]
pub struct Handler {
    pub(super) engine: Engine,
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
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_instructions(INSTRUCTIONS);
        info.server_info = Implementation::new("oubliette", env!("CARGO_PKG_VERSION"));
        info
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Owned(self.versions.to_vec())
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
