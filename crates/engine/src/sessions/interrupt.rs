//! `session_interrupt`.

use std::time::Duration;

use oubliette_model::{Access, Mode, SessionId, Status};
use oubliette_store::Wanted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session, as `session_list` shows it.
    session_id: SessionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    session_id: SessionId,
    status: Status,
    /// Whether there was a turn to stop.
    interrupted: bool,
}

#[derive(Debug)]
pub(crate) struct Interrupt;

impl Operation for Interrupt {
    const NAME: &'static str = "session_interrupt";
    const ABOUT: &'static str = "Stop the turn that a session is in; the session stays and takes the next message. An agent \
         that does not stop within seconds is ended and resumed later.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::session(params.session_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.session_id;
        let session = engine.store().session(id).await?;
        let session = session.ok_or_else(|| Engine::session_not_found(id))?;
        let queued = engine.store().queued_messages(id).await?;
        let busy = matches!(session.status, Status::Running | Status::Waiting)
            || (queued > 0 && !session.status.is_ended());
        if busy {
            let wanted = Wanted::Interrupt;
            engine
                .store()
                .want(&[id], wanted, call.take_audit_entry())
                .await?;
            engine.wake_session(id, session.project_id);
            let settings = &engine.settings().sessions;
            let patience = Duration::from_secs(settings.cancel_seconds + 15);
            engine
                .wait_for_session(id, patience, |session| {
                    session.wanted.is_none()
                        && !matches!(session.status, Status::Running | Status::Waiting)
                })
                .await?;
        }
        let session = engine.store().session(id).await?;
        Ok(Output {
            session_id: id,
            status: session.map_or(Status::Idle, |session| session.status),
            interrupted: busy,
        })
    }
}

impl Engine {
    /// Interrupts every turn of a tree except one session's own.
    pub(crate) async fn interrupt_tree(&self, root: SessionId, except: SessionId) -> Result<()> {
        let tree = self.store().tree(root).await?;
        let others: Vec<_> = tree
            .into_iter()
            .filter(|session| session.id != except && session.status == Status::Running)
            .collect();
        let ids: Vec<SessionId> = others.iter().map(|session| session.id).collect();
        self.store().want(&ids, Wanted::Interrupt, None).await?;
        for session in others {
            self.wake_session(session.id, session.project_id);
        }
        Ok(())
    }

    /// Waits until a session is as wanted; whether it is in time.
    pub(crate) async fn wait_for_session(
        &self,
        id: SessionId,
        patience: Duration,
        wanted: impl Fn(&oubliette_store::Session) -> bool,
    ) -> Result<bool> {
        let deadline = tokio::time::Instant::now() + patience;
        let mut news = self.sessions().watch.session(id);
        loop {
            news.mark_unchanged();
            match self.store().session(id).await? {
                Some(session) if !wanted(&session) => {}
                _ => return Ok(true),
            }
            tokio::select! {
                changed = news.changed() => {
                    if changed.is_err() {
                        news = self.sessions().watch.session(id);
                    }
                }
                () = tokio::time::sleep_until(deadline) => return Ok(false),
                () = self.stopping() => return Ok(false),
            }
        }
    }
}
