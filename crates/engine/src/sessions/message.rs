//! `session_message`.

use oubliette_model::{Access, Mode, ProjectId, SessionId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::deliver::Delivered;
use super::message_params::MessageParams;
use super::waiting::{WaitTarget, parse_wait};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    ///
    /// No other id is needed.
    session_id: Option<SessionId>,
    /// Project name or id.
    ///
    /// Without `session_id`: the newest session of the workspace gets the message, as with `session_spawn`.
    project_id: Option<ProjectId>,
    /// Wait for the end of the turn (0-50).
    wait_seconds: Option<f64>,
    #[serde(flatten)]
    message: MessageParams,
}

#[derive(Debug)]
pub(crate) struct Message;

impl Operation for Message {
    const NAME: &'static str = "session_message";
    const ABOUT: &'static str = "Send a prompt to a session: queued while a turn runs, resumes an ended one. Without `prompt`, go \
         on waiting.\n\n\
         Without a prompt it needs `session_id` and `wait_seconds`. A wait ends with the turn, when the \
         agent needs an answer (`waiting_for`, `pending_caller_requests`), or after `wait_seconds`. \
         Without `session_id`, the newest session of the project's workspace gets the message.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = Delivered;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: params.project_id,
            session: params.session_id,
            depends_on_tree: true,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Delivered> {
        let wait = parse_wait(params.wait_seconds)?;
        let (sessions, mut message) = (engine.sessions(), params.message);
        if let Some(id) = params.session_id
            && !wait.is_zero()
            && !message.has_prompt()
        {
            return sessions.wait_on(actor, id, wait, &call).await;
        }
        let awaited = (!wait.is_zero()).then(|| WaitTarget::Message(message.await_turn()));
        let delivered = match (params.session_id, params.project_id) {
            (Some(id), _) => sessions.deliver(actor, id, &message, &call).await?,
            (None, Some(project_id)) => {
                let project = engine.project(project_id).await?;
                let origin = sessions.origin(actor).await?;
                sessions.spawn(&project, &message, origin, &call).await?
            }
            (None, None) => {
                return Err(EngineError::invalid(
                    "give `session_id`, or `project_id` for the newest session of its workspace",
                ));
            }
        };
        match awaited {
            Some(awaited) => {
                sessions
                    .wait_after_delivery(actor, delivered, awaited, wait, &call)
                    .await
            }
            None => Ok(delivered),
        }
    }
}
