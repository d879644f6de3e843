//! The parameters of a message to an agent, which `session_spawn` and `session_message` share.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_model::{Level, Scope, TokenId, WorkspaceId, may_grant, quoted};
use oubliette_store::{
    Attachment, Project, RequestedSettings, Session, SessionChoices, SessionMessage,
};
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::deliver::Origin;
use crate::callers::declare::Context;
use crate::{Engine, EngineError, Result, agents};

const MAX_PROMPT_BYTES: usize = 1 << 20;
const MAX_ATTACHMENTS: usize = 100;
const MAX_ATTACHMENT_NAME_BYTES: usize = 1000;
/// Of names and short texts. It is also the maximum of a file name, which the id of a change is.
pub(super) const MAX_NAME_BYTES: usize = 255;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct MessageParams {
    /// What the agent should do.
    #[schemars(extend("x-aliases" = ["message"]))]
    prompt: Option<String>,
    /// Workspace id.
    ///
    /// Default: `default`.
    pub(super) workspace_id: Option<WorkspaceId>,
    /// Create the workspace if missing.
    ///
    /// Without `workspace_id`, create a new one.
    pub(super) create_workspace: Option<bool>,
    /// Do not continue a session.
    pub(super) new_session: Option<bool>,
    /// Your own name for the session.
    #[schemars(extend("x-unlisted" = true))]
    external_id: Option<String>,
    /// Where the request comes from.
    #[schemars(extend("x-unlisted" = true))]
    source: Option<String>,
    /// Agent name.
    ///
    /// From `project_options`; default: the project's.
    pub(super) agent: Option<String>,
    /// Model.
    ///
    /// Default: the project's.
    model: Option<String>,
    /// Models by agent, for the tree.
    ///
    /// `{"AGENT": "model"}`, for a new session and those that its agent starts.
    models: Option<BTreeMap<String, String>>,
    /// What the agent may do unasked.
    #[schemars(extend("x-aliases" = ["autonomy_level"]))]
    autonomy: Option<Level>,
    /// Reasoning effort.
    #[schemars(extend("x-aliases" = ["reasoning_level"]))]
    reasoning: Option<Level>,
    /// The agent's only tools.
    ///
    /// `*` matches any part of a name. By the agent's own names, for a new session. `project_options` lists the
    /// agents that support this.
    pub(super) tools_allowed: Option<Vec<String>>,
    /// Tools it may not use.
    ///
    /// For a new session.
    pub(super) tools_disallowed: Option<Vec<String>>,
    /// Scope of the agent's key.
    ///
    /// Not wider than your own.
    agent_scope: Option<Scope>,
    /// OpenSpec change.
    ///
    /// That the session works on, from `project_changes`.
    change_id: Option<String>,
    /// Files to write first.
    attachments: Option<Vec<AttachmentParams>>,
    /// Your tools for the agent; answer calls with `caller_tool_response`.
    context: Option<Context>,
    /// Set if someone waits for the turn of the message.
    #[serde(skip)]
    #[schemars(skip)]
    wait_id: Option<Uuid>,
}

/// A file that comes with a message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct AttachmentParams {
    /// Path in the workspace.
    name: String,
    /// Content.
    text: Option<String>,
    /// Instead of `text`.
    content_base64: Option<String>,
}

pub(crate) fn check_prompt(text: &str) -> Result<()> {
    if text.trim().is_empty() {
        return Err(EngineError::invalid(
            "`prompt` is empty; say what the agent should do",
        ));
    }
    if text.len() > MAX_PROMPT_BYTES {
        return Err(EngineError::invalid(format!(
            "`prompt` has {} bytes; the maximum is {MAX_PROMPT_BYTES}. Put longer texts into a file of \
             the workspace",
            text.len()
        )));
    }
    Ok(())
}

impl MessageParams {
    /// The message with the tools that it declares, and warnings about those.
    pub(super) async fn to_message_with_tools(
        &self,
        engine: &Engine,
        caller: Option<TokenId>,
    ) -> Result<(SessionMessage, Vec<String>)> {
        let message = self.to_message(engine)?;
        let Some(context) = self.context.clone() else {
            return Ok((message, Vec::new()));
        };
        let Some(caller) = caller else {
            return Err(context_refused());
        };
        let max_tools = engine.settings().caller_tools.max_tools as usize;
        // On a blocking thread: compiling hundreds of schemas takes long.
        let parse = move || context.declaration(max_tools, caller);
        let parsed = tokio::task::spawn_blocking(parse).await;
        let Some((declaration, warnings)) = parsed.map_err(EngineError::fault)?? else {
            return Ok((message, Vec::new()));
        };
        let declaration = Some(declaration);
        let message = SessionMessage {
            declaration,
            ..message
        };
        Ok((message, warnings))
    }

    /// The validated message, without the tools that it declares.
    pub(super) fn to_message(&self, engine: &Engine) -> Result<SessionMessage> {
        let Some(text) = &self.prompt else {
            return Err(EngineError::invalid(
                "missing parameter `prompt`: what the agent should do",
            ));
        };
        check_prompt(text)?;
        if self.change_id.as_ref().is_some_and(String::is_empty) {
            return Err(EngineError::invalid(
                "`change_id` is empty; omit it, or use a name from `project_changes`",
            ));
        }
        check_length("change_id", self.change_id.as_ref())?;
        let files = self.attachments.as_deref().unwrap_or_default();
        if files.len() > MAX_ATTACHMENTS {
            return Err(EngineError::invalid(format!(
                "`attachments` has {} files; the maximum is {MAX_ATTACHMENTS}",
                files.len()
            )));
        }
        Ok(SessionMessage {
            id: 0,
            text: text.clone(),
            attachments: files
                .iter()
                .map(AttachmentParams::validate)
                .collect::<Result<_>>()?,
            declaration: None,
            change_id: self.change_id.clone(),
            sender_scope: None,
            wait_id: self.wait_id,
            created_at: engine.now(),
        })
    }

    pub(super) fn has_prompt(&self) -> bool {
        self.prompt.is_some()
    }

    /// Makes the turn of the message one that can be waited for, by the id that this returns.
    pub(super) fn await_turn(&mut self) -> Uuid {
        *self.wait_id.get_or_insert_with(Uuid::new_v4)
    }

    /// Names the workspace that is to be created, unless it has a name.
    pub(super) fn name_workspace(&mut self, name: Uuid) {
        if self.workspace_id.is_none() && self.create_workspace == Some(true) {
            self.workspace_id = Some(WorkspaceId::from_uuid(name));
        }
    }

    /// The settings that a session of a project must have to get the message.
    pub(super) fn requested_settings(
        &self,
        engine: &Engine,
        project: &Project,
    ) -> RequestedSettings {
        let settings = &project.settings;
        let default_agent = &engine.settings().sessions.default_agent;
        RequestedSettings {
            agent: self.agent.clone(),
            given: SessionChoices {
                model: self.model.clone(),
                models: self.models.clone().unwrap_or_default(),
                autonomy: self.autonomy,
                reasoning: self.reasoning,
                agent_scope: self.agent_scope,
                external_id: self.external_id.clone(),
                source: self.source.clone(),
                ..SessionChoices::default()
            },
            defaults: SessionChoices {
                models: settings.models_by_agent(default_agent),
                autonomy: Some(settings.autonomy.unwrap_or(Level::High)),
                reasoning: settings.reasoning,
                agent_scope: settings.agent_scope,
                ..SessionChoices::default()
            },
        }
    }

    /// The choices for a new session, validated against what the agent supports.
    pub(super) fn choices(
        &self,
        engine: &Engine,
        origin: &Origin,
        agent: &str,
    ) -> Result<SessionChoices> {
        let row = agents::find(engine.settings(), agent)?;
        let tools = self.tools()?;
        if self.model.is_some() && !row.takes_model {
            return Err(EngineError::invalid(format!(
                "the agent `{agent}` does not support choosing a model; omit `model`"
            )));
        }
        let reasoning = self.reasoning;
        if reasoning.is_some() && !row.takes_reasoning {
            return Err(EngineError::invalid(format!(
                "the agent `{agent}` does not support `reasoning`; omit it"
            )));
        }
        if let Some(wanted) = self.agent_scope
            && !may_grant(origin.max_scope, wanted)
        {
            return Err(match (origin.max_scope, &origin.parent) {
                (Some(own), None) => EngineError::invalid(format!(
                    "`agent_scope` `{wanted}` is wider than your own scope `{own}`"
                )),
                (own, _) => {
                    let own = match own {
                        Some(own) => format!("wider than this agent's own scope `{own}`"),
                        None => "refused, because this agent has no scope to give".to_owned(),
                    };
                    let reason = format!("`agent_scope` `{wanted}` is {own}");
                    EngineError::refused_parameter("agent_scope", reason)
                }
            });
        }
        check_length("model", self.model.as_ref())?;
        let models = self.models_below(engine, origin.parent.as_ref())?;
        check_length("external_id", self.external_id.as_ref())?;
        check_length("source", self.source.as_ref())?;
        Ok(SessionChoices {
            starts_from_transcript: false,
            network_allowed: Vec::new(),
            model: self.model.clone(),
            used_model: None,
            models,
            autonomy: self.autonomy,
            reasoning,
            tools_allowed: tools.allowed,
            tools_disallowed: tools.disallowed,
            // A child has its parent's scope by default.
            agent_scope: self.agent_scope.or_else(|| {
                let parent = origin.parent.as_ref();
                parent.and_then(|parent| parent.choices.agent_scope)
            }),
            granted: origin.max_scope,
            external_id: self.external_id.clone(),
            source: self.source.clone(),
            change_id: self.change_id.clone(),
        })
    }
}

impl MessageParams {
    /// The models of agents in a new session and below it: those of its parent, changed by the given
    /// ones.
    fn models_below(
        &self,
        engine: &Engine,
        parent: Option<&Session>,
    ) -> Result<BTreeMap<String, String>> {
        let mut models = parent.map_or_else(BTreeMap::new, |parent| parent.choices.models.clone());
        for (agent, model) in self.models.iter().flatten() {
            agents::find(engine.settings(), agent)?;
            check_length("models", Some(model))?;
            models.insert(agent.clone(), model.clone());
        }
        Ok(models)
    }
}

fn check_length(name: &str, text: Option<&String>) -> Result<()> {
    if text.is_some_and(|text| text.len() > MAX_NAME_BYTES) {
        return Err(EngineError::invalid(format!(
            "`{name}` is longer than {MAX_NAME_BYTES} bytes"
        )));
    }
    Ok(())
}

impl AttachmentParams {
    fn validate(&self) -> Result<Attachment> {
        let name = &self.name;
        let is_inside_workspace = !name.is_empty()
            && name.len() <= MAX_ATTACHMENT_NAME_BYTES
            && !name.contains(['\0', '\n'])
            && Path::new(name)
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
            && !name.ends_with('/');
        if !is_inside_workspace {
            return Err(EngineError::invalid(format!(
                "`attachments`: {} must be the path of a file relative to the workspace, without `..`",
                quoted(name)
            )));
        }
        let content_base64 = match (&self.text, &self.content_base64) {
            (Some(text), None) => STANDARD.encode(text),
            (None, Some(encoded)) if STANDARD.decode(encoded).is_ok() => encoded.clone(),
            (None, Some(_)) => {
                return Err(EngineError::invalid(format!(
                    "`attachments`: `content_base64` of {} is not base64",
                    quoted(name)
                )));
            }
            _ => {
                return Err(EngineError::invalid(format!(
                    "`attachments`: {} needs exactly one of `text` and `content_base64`",
                    quoted(name)
                )));
            }
        };
        Ok(Attachment {
            name: name.clone(),
            content_base64,
        })
    }
}

fn context_refused() -> EngineError {
    EngineError::invalid("`context` is for callers outside the container; omit it")
}
