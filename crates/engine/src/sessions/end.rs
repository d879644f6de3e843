//! `session_end`.

use std::time::Duration;

use oubliette_model::{Access, Mode, SessionId, Status};
use oubliette_store::Wanted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

/// How long the processes of a tree may take to be gone.
const PATIENCE: Duration = Duration::from_secs(45);

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session, as `session_list` shows it.
    session_id: SessionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    session_id: SessionId,
    status: Status,
    /// The sessions below it that ended with it.
    children_ended: Vec<SessionId>,
}

#[derive(Debug)]
pub(crate) struct End;

impl Operation for End {
    const NAME: &'static str = "session_end";
    const ABOUT: &'static str = "End a session and every session below it, and return when their processes are gone. Its log \
         stays; a message resumes it.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::session(params.session_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        engine.end_tree(params.session_id, &call).await
    }
}

impl Engine {
    /// Ends a session and everything below it, and returns when their processes are gone.
    pub(crate) async fn end_tree(&self, id: SessionId, call: &Call) -> Result<Output> {
        let tree = self.store().tree(id).await?;
        let unsettled: Vec<_> = tree
            .into_iter()
            .filter(|session| !session.status.is_ended() || session.live.is_some())
            .collect();
        let ids: Vec<SessionId> = unsettled.iter().map(|session| session.id).collect();
        if !ids.is_empty() {
            self.store()
                .want(&ids, Wanted::End, call.take_audit_entry())
                .await?;
        }
        for session in &unsettled {
            self.wake_session(session.id, session.project_id);
        }
        for id in &ids {
            let ended = self
                .wait_for_session(*id, PATIENCE, |session| {
                    session.status.is_ended() && session.live.is_none()
                })
                .await?;
            if !ended {
                return Err(EngineError::Failed(format!(
                    "the agent of {id} has not ended yet; it will be when the server reaches its \
                     container again"
                )));
            }
        }
        let session = self.store().session(id).await?;
        let session = session.ok_or_else(|| Self::session_not_found(id))?;
        Ok(Output {
            session_id: id,
            status: session.status,
            children_ended: ids.into_iter().filter(|other| *other != id).collect(),
        })
    }

    /// Ends every session below one that has ended.
    pub(crate) async fn end_below(&self, id: SessionId) -> Result<()> {
        let tree = self.store().tree(id).await?;
        let below: Vec<_> = tree
            .into_iter()
            .filter(|session| session.id != id && !session.status.is_ended())
            .collect();
        if below.is_empty() {
            return Ok(());
        }
        let ids: Vec<SessionId> = below.iter().map(|session| session.id).collect();
        self.store().want(&ids, Wanted::End, None).await?;
        for session in below {
            self.wake_session(session.id, session.project_id);
        }
        Ok(())
    }
}
