//! What a message to an agent is made of: the same for `session_spawn` and `session_message`.

use std::path::{Component, Path};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_model::{Level, Scope, TokenId, WorkspaceId, quoted};
use oubliette_store::{Attachment, Choices, Message};
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::deliver::Origin;
use crate::callers::declare::Context;
use crate::{Engine, EngineError, Result, agents};

const LONGEST_PROMPT: usize = 1 << 20;
const MOST_ATTACHMENTS: usize = 100;
/// Of the short texts by which callers find things again. A change's directory has a longer name at
/// most.
pub(super) const LONGEST_NAME: usize = 255;

/// What both operations take.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Ask {
    /// What the agent is to do.
    pub(super) prompt: Option<String>,
    /// The same as `prompt`.
    message: Option<String>,
    /// The workspace to work in; the default one if absent.
    pub(super) workspace_id: Option<WorkspaceId>,
    /// Whether a workspace that does not exist is made; without `workspace_id`, a new one.
    pub(super) create_workspace: Option<bool>,
    /// Whether a new session is made although the workspace has one.
    pub(super) new_session: Option<bool>,
    /// A name of the caller's own for the session, to find it by.
    external_id: Option<String>,
    /// Where the request comes from, for the caller's own use.
    source: Option<String>,
    /// The agent; the project's if absent. `project_options` lists them.
    pub(super) agent: Option<String>,
    /// The model the agent uses; the project's if absent.
    model: Option<String>,
    /// What the agent may do without asking; the project's if absent.
    autonomy: Option<Level>,
    /// The same as `autonomy`.
    autonomy_level: Option<Level>,
    /// How hard the agent thinks; the project's if absent.
    reasoning: Option<Level>,
    /// The same as `reasoning`.
    reasoning_level: Option<Level>,
    /// Tools that the agent of a new session may use, and no others, as it names them; `*` stands
    /// for any part of a name. Not every agent can be kept to that: `project_options` says which.
    pub(super) tools_allowed: Option<Vec<String>>,
    /// Tools that the agent of a new session may not use.
    pub(super) tools_disallowed: Option<Vec<String>>,
    /// The scope of the key that the agent gets to call Oubliette itself; no wider than your own.
    agent_scope: Option<Scope>,
    /// The OpenSpec change that the session works on, as `project_changes` names it.
    change_id: Option<String>,
    /// Files that are written into the workspace first.
    attachments: Option<Vec<File>>,
    /// What you say about yourself: tools of yours that the agent may call, for one.
    context: Option<Context>,
}

/// A file that comes with a message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct File {
    /// Its path in the workspace.
    name: String,
    /// Its content, as text.
    text: Option<String>,
    /// Or as base64.
    content_base64: Option<String>,
}

/// What an agent is to do must say something, and not too much.
pub(crate) fn check_prompt(text: &str) -> Result<()> {
    if text.trim().is_empty() {
        return Err(EngineError::invalid(
            "`prompt` is empty; say what the agent is to do",
        ));
    }
    if text.len() > LONGEST_PROMPT {
        return Err(EngineError::invalid(format!(
            "`prompt` has {} bytes; at most {LONGEST_PROMPT} are taken. Put what is longer into a \
             file of the workspace",
            text.len()
        )));
    }
    Ok(())
}

impl Ask {
    /// The message, checked, with the tools that it declares and what there is to say about those.
    pub(super) async fn to_declaring(
        &self,
        engine: &Engine,
        by: Option<TokenId>,
    ) -> Result<(Message, Vec<String>)> {
        let message = self.to_message(engine)?;
        let Some(context) = &self.context else {
            return Ok((message, Vec::new()));
        };
        let Some(by) = by else {
            return Err(no_context());
        };
        // Hundreds of schemas take their time.
        let (context, most) = (context.clone(), engine.settings().caller_tools.max_tools);
        let declared = move || context.declaration(most as usize, by);
        let declared = tokio::task::spawn_blocking(declared).await;
        Ok(match declared.map_err(EngineError::fault)?? {
            Some((declaration, warnings)) => {
                let declaration = Some(declaration);
                let message = Message {
                    declaration,
                    ..message
                };
                (message, warnings)
            }
            None => (message, Vec::new()),
        })
    }

    /// The message, checked.
    pub(super) fn to_message(&self, engine: &Engine) -> Result<Message> {
        let text = match (&self.prompt, &self.message) {
            (Some(_), Some(_)) => {
                return Err(EngineError::invalid(
                    "`prompt` and `message` are the same parameter; give one of them",
                ));
            }
            (Some(text), None) | (None, Some(text)) => text,
            (None, None) => {
                return Err(EngineError::invalid(
                    "missing parameter `prompt`: what the agent is to do",
                ));
            }
        };
        check_prompt(text)?;
        if self.change_id.as_ref().is_some_and(String::is_empty) {
            return Err(EngineError::invalid(
                "`change_id` is empty; leave it out, or name a change as `project_changes` does",
            ));
        }
        check_length("change_id", self.change_id.as_ref())?;
        let files = self.attachments.as_deref().unwrap_or_default();
        if files.len() > MOST_ATTACHMENTS {
            return Err(EngineError::invalid(format!(
                "`attachments` has {} files; at most {MOST_ATTACHMENTS} are taken",
                files.len()
            )));
        }
        Ok(Message {
            id: 0,
            text: text.clone(),
            attachments: files.iter().map(File::check).collect::<Result<_>>()?,
            declaration: None,
            change_id: self.change_id.clone(),
            created_at: engine.now(),
        })
    }

    /// What agents ask of sessions below their own has none.
    pub(super) fn no_context(&self) -> Result<()> {
        match self.context {
            Some(_) => Err(no_context()),
            None => Ok(()),
        }
    }

    /// Gives a workspace that is to be made a name, if it has none.
    pub(super) fn name_workspace(&mut self, name: Uuid) {
        if self.workspace_id.is_none() && self.create_workspace == Some(true) {
            self.workspace_id = Some(WorkspaceId::from_uuid(name));
        }
    }

    /// What was chosen, checked against what the agent can do.
    pub(super) fn choices(&self, engine: &Engine, origin: &Origin, agent: &str) -> Result<Choices> {
        let row = agents::find(engine.settings(), agent)?;
        let tools = self.tools_below(origin.parent.as_ref(), agent)?;
        if let Some(objection) = row.tool_enforcement.unsupported_reason(&tools) {
            return Err(EngineError::invalid(format!(
                "the agent `{agent}` {objection}; leave out `tools_allowed` and `tools_disallowed`, \
                 or change them"
            )));
        }
        if self.model.is_some() && !row.takes_model {
            return Err(EngineError::invalid(format!(
                "the agent `{agent}` has no models to choose from; leave out `model`"
            )));
        }
        let reasoning = self.reasoning.or(self.reasoning_level);
        if reasoning.is_some() && !row.takes_reasoning {
            return Err(EngineError::invalid(format!(
                "the agent `{agent}` has no setting for `reasoning`; leave it out"
            )));
        }
        if let Some(wanted) = self.agent_scope
            && !origin.grant.is_some_and(|grant| grant.covers(wanted))
        {
            return Err(match (origin.grant, &origin.parent) {
                (Some(grant), None) => EngineError::invalid(format!(
                    "`agent_scope` `{wanted}` is wider than your own scope `{grant}`"
                )),
                _ => EngineError::Refused {
                    parameter: Some("agent_scope"),
                },
            });
        }
        check_length("model", self.model.as_ref())?;
        check_length("external_id", self.external_id.as_ref())?;
        check_length("source", self.source.as_ref())?;
        Ok(Choices {
            model: self.model.clone(),
            autonomy: self.autonomy.or(self.autonomy_level),
            reasoning,
            tools_allowed: tools.allowed,
            tools_disallowed: tools.disallowed,
            // A child is like its parent, unless somebody says otherwise.
            agent_scope: self.agent_scope.or_else(|| {
                let parent = origin.parent.as_ref();
                parent.and_then(|parent| parent.choices.agent_scope)
            }),
            granted: origin.grant,
            external_id: self.external_id.clone(),
            source: self.source.clone(),
            change_id: self.change_id.clone(),
        })
    }
}

fn check_length(name: &str, text: Option<&String>) -> Result<()> {
    match text {
        Some(text) if text.len() > LONGEST_NAME => Err(EngineError::invalid(format!(
            "`{name}` is longer than {LONGEST_NAME} bytes"
        ))),
        _ => Ok(()),
    }
}

impl File {
    fn check(&self) -> Result<Attachment> {
        let name = &self.name;
        let inside = !name.is_empty()
            && name.len() <= 1000
            && !name.contains(['\0', '\n'])
            && Path::new(name)
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
            && !name.ends_with('/');
        if !inside {
            return Err(EngineError::invalid(format!(
                "`attachments`: {} must be the path of a file inside the workspace, relative to \
                 it, without `..`",
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

fn no_context() -> EngineError {
    EngineError::invalid("`context` is for callers from outside; leave it out")
}
