//! A handler with everything the suite asks of a server: its tools, prompts and resources, by the
//! names and with the texts that the suite expects. Nothing of it is in the product.

// Logging, sampling and subscribing are gone from the newest revision, but not from the older one.
#![allow(deprecated)]

mod input;
mod prompts;
mod requests;
mod resources;
mod tools;

use rmcp::model::*;
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use input::Issued;

/// A picture of one pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVQI12P4z8AAAAMBAQAY3Y2wAAAAAElFTkSuQmCC";

/// What all handlers of one server share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared {
    /// AgentKeys when the list of tools, or of prompts, has changed.
    tools: watch::Sender<()>,
    prompts: watch::Sender<()>,
    issued: Issued,
}

#[derive(Debug)]
pub(crate) struct Fixture {
    shared: Shared,
    /// Made with the handler: a subscription is acknowledged before `listen` runs, and what
    /// changes in between must not be lost.
    tools: watch::Receiver<()>,
    prompts: watch::Receiver<()>,
}

impl Fixture {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self {
            shared: shared.clone(),
            tools: shared.tools.subscribe(),
            prompts: shared.prompts.subscribe(),
        }
    }
}

/// A value of the protocol as it is written there.
fn written<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the fixture is not what the protocol says")
}

/// Whether this is a request of a revision with sessions; those without have fewer methods.
fn has_session(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version| version.has_initialize())
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let capabilities = json!({
            "tools": { "listChanged": true },
            "prompts": { "listChanged": true },
            "resources": { "subscribe": true },
            "logging": {},
            "completions": {},
        });
        let mut info = ServerConfig::new(written(capabilities));
        info.server_info = Implementation::new("fixture", "0");
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult {
            ttl_ms: Some(0),
            cache_scope: Some(CacheScope::Private),
            ..ListToolsResult::with_all_items(tools::TOOLS.clone())
        })
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::TOOLS.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        tools::call(&self.shared, request, &context).await
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(prompts::list())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        prompts::get(request)
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let completion = json!({ "values": ["paris", "park"], "total": 2, "hasMore": false });
        Ok(CompleteResult::new(written(completion)))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(resources::list())
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
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&request.uri)
    }

    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if has_session(&context) {
            Ok(())
        } else {
            Err(ErrorData::method_not_found::<SubscribeRequestMethod>())
        }
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if has_session(&context) {
            Ok(())
        } else {
            Err(ErrorData::method_not_found::<UnsubscribeRequestMethod>())
        }
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if has_session(&context) {
            Ok(())
        } else {
            Err(ErrorData::method_not_found::<SetLevelRequestMethod>())
        }
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let (mut tools, mut prompts) = (self.tools.clone(), self.prompts.clone());
        let sink = context.sink();
        loop {
            // The sink refuses a notification that the client did not subscribe to.
            let _ = tokio::select! {
                _ = tools.changed() => sink.notify_tool_list_changed().await,
                _ = prompts.changed() => sink.notify_prompt_list_changed().await,
                () = context.cancelled() => return Ok(()),
            };
        }
    }
}
