//! `session_interrupt`.

use std::slice;
use std::time::Duration;

use oubliette_model::{Access, Mode, SessionId, Status};
use oubliette_store::{Session, StopOutcome, StopRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::view::PendingRequest;
use super::{Sessions, TurnId};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

/// How long a turn may take to end after its agent had `sessions.cancel_seconds` and was killed.
const INTERRUPT_EXTRA_SECONDS: u64 = 15;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    session_id: SessionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    session_id: SessionId,
    status: Status,
    /// Whether there was a turn to stop.
    interrupted: bool,
    pending_caller_requests: Vec<PendingRequest>,
}

#[derive(Debug)]
pub(crate) struct Interrupt;

impl Operation for Interrupt {
    const NAME: &'static str = "session_interrupt";
    const ABOUT: &'static str = "Stop the current turn.\n\n\
         The session continues with the next message. An agent that does not stop within seconds is \
         killed, and resumed by the next message.";
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
        let busy = match call.turn() {
            Some(turn) => sessions.interrupt_turn(turn, &call).await?,
            None => sessions.interrupt(id, &call).await?,
        };
        let session = sessions.get(id).await?;
        Ok(Output {
            session_id: id,
            status: session.status,
            interrupted: busy,
            pending_caller_requests: engine.callers().deliver_pending(actor, &session).await?,
        })
    }
}

pub(super) fn in_turn(session: &Session) -> bool {
    matches!(session.status, Status::Running | Status::Waiting)
}

impl Sessions<'_> {
    /// Stops the current turn, or the queued one that would start next. False if there is none.
    async fn interrupt(self, id: SessionId, call: &Call) -> Result<bool> {
        let session = self.get(id).await?;
        let queued = self.engine.store().queued_messages(id).await?;
        let busy = in_turn(&session) || (queued > 0 && !session.status.is_ended());
        if busy {
            let (wanted, audit) = (StopRequest::Interrupt, call.take_audit_entry());
            self.request(slice::from_ref(&session), wanted, audit)
                .await?;
            let interrupted =
                |session: &Session| session.stop_request.is_none() && !in_turn(session);
            self.wait_until(id, self.interrupt_timeout(), interrupted)
                .await?;
        }
        Ok(busy)
    }

    /// Stops the turn of a message, or removes the message from the queue. False if the turn has ended.
    async fn interrupt_turn(self, turn: TurnId, call: &Call) -> Result<bool> {
        let (id, store) = (turn.session(), self.engine.store());
        let session = self.get(id).await?;
        let stopped = store.stop_message(id, turn.message(), call.take_audit_entry());
        match stopped.await?.ok_or_else(TurnId::not_found)? {
            StopOutcome::Ended => return Ok(false),
            StopOutcome::Dropped => self.subscriptions().notify_log(id, session.root_id),
            StopOutcome::Requested => {
                self.wake(id, session.project_id);
                self.wait_until_turn_ends(turn, self.interrupt_timeout())
                    .await?;
            }
        }
        Ok(true)
    }

    fn interrupt_timeout(self) -> Duration {
        let cancel_seconds = self.engine.settings().sessions.cancel_seconds;
        Duration::from_secs(cancel_seconds + INTERRUPT_EXTRA_SECONDS)
    }

    /// Interrupts every turn of a tree except that of one session.
    pub(super) async fn interrupt_tree(self, root: SessionId, except: SessionId) -> Result<()> {
        let store = self.engine.store();
        for (session, project) in store.interrupt_turns(root, except).await? {
            self.wake(session, project);
        }
        Ok(())
    }

    /// Waits until a session fulfils a condition or is deleted; false after `timeout`, or if the server
    /// stops.
    pub(crate) async fn wait_until(
        self,
        id: SessionId,
        timeout: Duration,
        condition: impl Fn(&Session) -> bool,
    ) -> Result<bool> {
        let deadline = Instant::now() + timeout;
        let mut subscription = self.subscriptions().log(id);
        loop {
            subscription.mark_unchanged();
            let session = self.engine.store().session(id).await?;
            if session.is_none_or(|session| condition(&session)) {
                return Ok(true);
            }
            tokio::select! {
                () = subscription.changed() => {}
                () = tokio::time::sleep_until(deadline) => return Ok(false),
                () = self.engine.draining() => return Ok(false),
            }
        }
    }
}
