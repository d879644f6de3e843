//! `session_message`.

use oubliette_model::{Access, Mode, ProjectId, SessionId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::deliver::Delivered;
use super::message_params::MessageParams;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session that gets the message. No other id is needed.
    session_id: Option<SessionId>,
    /// Without `session_id`: the project; the newest session of the workspace gets the message, as with
    /// `session_spawn`.
    project_id: Option<ProjectId>,
    #[serde(flatten)]
    message: MessageParams,
}

#[derive(Debug)]
pub(crate) struct Message;

impl Operation for Message {
    const NAME: &'static str = "session_message";
    const ABOUT: &'static str = "Send a message to a session. Messages queue while a turn is running; a message to an ended \
         session resumes it. Returns at once: use `session_events` with `wait_seconds` to wait for the \
         agent.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
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
        let (sessions, message) = (engine.sessions(), &params.message);
        if let Some(id) = params.session_id {
            return sessions.deliver(actor, id, message, &call).await;
        }
        let Some(project_id) = params.project_id else {
            return Err(EngineError::invalid(
                "give `session_id`, or `project_id` for the newest session of its workspace",
            ));
        };
        let project = engine.project(project_id).await?;
        let origin = sessions.origin(actor).await?;
        sessions.spawn(&project, message, origin, &call).await
    }
}
