//! `session_end`.

use std::time::Duration;

use oubliette_model::{Access, Mode, SessionId, Status};
use oubliette_store::{AuditEntry, Session, StopRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Sessions;
use super::view::PendingRequest;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

/// How long the agents of a tree may take to exit.
const END_TIMEOUT: Duration = Duration::from_secs(45);

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    session_id: SessionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    tree: EndedSessions,
    pending_caller_requests: Vec<PendingRequest>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct EndedSessions {
    session_id: SessionId,
    status: Status,
    /// The sessions below it that were ended with it.
    children_ended: Vec<SessionId>,
}

#[derive(Debug)]
pub(crate) struct End;

impl Operation for End {
    const NAME: &'static str = "session_end";
    const ABOUT: &'static str = "End a session and those below it; a message resumes it.\n\n\
         Returns when their processes have exited. The log is kept.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::session(params.session_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.session_id;
        let sessions = engine.sessions();
        let tree = sessions.end_tree(id, &call).await?;
        let session = sessions.get(id).await?;
        Ok(Output {
            tree,
            pending_caller_requests: engine.callers().deliver_pending(actor, &session).await?,
        })
    }
}

impl Sessions<'_> {
    /// Ends a session and every session below it. Returns when their processes have exited.
    pub(super) async fn end_tree(self, id: SessionId, call: &Call) -> Result<EndedSessions> {
        let mut tree = self.engine.store().session_tree(id).await?;
        tree.retain(|session| !session.status.is_ended() || session.live.is_some());
        if !tree.is_empty() {
            self.request(&tree, StopRequest::End, call.take_audit_entry())
                .await?;
        }
        for session in &tree {
            let has_ended = |session: &Session| session.status.is_ended() && session.live.is_none();
            if !self.wait_until(session.id, END_TIMEOUT, has_ended).await? {
                return Err(EngineError::Failed(format!(
                    "the agent of {} has not exited yet; it will be ended when the server can reach \
                     its container again",
                    session.id
                )));
            }
        }
        let ended = tree.into_iter().map(|session| session.id);
        Ok(EndedSessions {
            session_id: id,
            status: self.get(id).await?.status,
            children_ended: ended.filter(|other| *other != id).collect(),
        })
    }

    /// Ends every session below one that has ended, without waiting.
    pub(super) async fn end_descendants(self, id: SessionId) -> Result<()> {
        let mut tree = self.engine.store().session_tree(id).await?;
        tree.retain(|session| session.id != id && !session.status.is_ended());
        if tree.is_empty() {
            return Ok(());
        }
        self.request(&tree, StopRequest::End, None).await
    }

    /// Stores what is wanted of sessions, and wakes their actors.
    pub(super) async fn request(
        self,
        sessions: &[Session],
        wanted: StopRequest,
        audit: Option<AuditEntry>,
    ) -> Result<()> {
        let ids: Vec<SessionId> = sessions.iter().map(|session| session.id).collect();
        self.engine
            .store()
            .request_stop(&ids, wanted, audit)
            .await?;
        for session in sessions {
            self.wake(session.id, session.project_id);
        }
        Ok(())
    }
}
