//! Sees that every call of a caller's tool ends: by its deadline, with its caller, or with its agent.

use std::time::Duration;

use oubliette_model::{CallerToolOutcome, Status};
use oubliette_store::{CallerRequest, Ended, Session};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::presence::There;
use super::request::disconnected;
use crate::sessions::watch::{CallEnd, Ring};
use crate::{Engine, OnDisconnect, Result};

/// A store that failed is asked again after so long.
const AGAIN: Duration = Duration::from_secs(1);
/// What is only heard of is looked at after so long all the same.
const LOOK: Duration = Duration::from_secs(30);

/// Who listens for a call.
#[derive(Debug)]
pub(super) struct Ears {
    end: CallEnd,
    standing: watch::Receiver<Ring>,
}

/// A call that is minded.
struct Minded {
    asked: CallerRequest,
    session: Session,
    caller_id: String,
    ears: Ears,
    /// Whether the store was looked at since somebody listens.
    looked: bool,
}

impl Engine {
    /// Takes up the calls that a server before this one left pending. Their deadlines hold.
    pub(crate) async fn adopt_requests(&self) -> Result<()> {
        for asked in self.store().all_pending_requests().await? {
            let Some(session) = self.store().session(asked.session_id).await? else {
                continue;
            };
            if asked.handed {
                let left = self.left(asked.deadline);
                self.callers()
                    .presence
                    .handed(session.id, asked.request_id, left);
            }
            let declared = self.store().caller_tools(session.id).await?;
            let caller_id = declared.map(|declared| declared.caller_id);
            self.mind(&asked, session, caller_id.unwrap_or_default(), None);
        }
        Ok(())
    }

    /// Hears of what ends a call, from now on.
    pub(super) fn ears_for(&self, asked: &CallerRequest) -> Ears {
        let watch = &self.sessions().watch;
        Ears {
            end: watch.call(asked.call_id),
            standing: watch.standing(asked.session_id),
        }
    }

    /// Minds a call to its end. The session is as it was when the agent asked; `now` is what it was when
    /// the call was noted, and who has listened since before that.
    pub(super) fn mind(
        &self,
        asked: &CallerRequest,
        session: Session,
        caller_id: String,
        now: Option<(Ears, Session)>,
    ) {
        // The store has its arguments.
        let asked = CallerRequest {
            arguments: Value::Null,
            tool: asked.tool.clone(),
            ended: None,
            ..*asked
        };
        let (ears, looked) = match now {
            Some((ears, now)) => (ears, !is_over(&session, &now)),
            None => (self.ears_for(&asked), false),
        };
        let mut minded = Minded {
            asked,
            session,
            caller_id,
            ears,
            looked,
        };
        let engine = self.clone();
        self.spawn(async move {
            tokio::select! {
                () = engine.see_it_end(&mut minded) => {}
                // The next server does.
                () = engine.stopping() => {}
            }
        });
    }

    /// A store that fails now may work later, and somebody waits.
    async fn see_it_end(&self, minded: &mut Minded) {
        while let Err(error) = self.watch_over(minded).await {
            let request = minded.asked.request_id;
            tracing::error!(%request, %error, "a call of a caller's tool could not be looked after");
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn watch_over(&self, minded: &mut Minded) -> Result<()> {
        let settings = &self.settings().caller_tools;
        let fails = settings.on_disconnect == OnDisconnect::Fail;
        let mut presence = self.callers().presence.subscribe();
        let Minded {
            asked,
            session,
            caller_id,
            ears,
            looked,
        } = minded;
        loop {
            if !std::mem::take(looked) {
                let now = self.store().caller_call(session.id, asked.call_id).await?;
                if now.is_none_or(|now| now.ended.is_some()) {
                    return Ok(());
                }
                let now = self.store().session(session.id).await?;
                if now.is_none_or(|now| is_over(session, &now)) {
                    return self.cancel_request(asked, session).await;
                }
            }
            let look_again = Instant::now() + LOOK;
            // Callers come and go more often than sessions change: no look at the store for that.
            while Instant::now() < look_again {
                presence.mark_unchanged();
                let left = self.left(asked.deadline);
                let there = self.callers().presence.of(session.id, settings);
                let ended = match there {
                    _ if left.is_zero() => Some((CallerToolOutcome::Timeout, timed_out(asked))),
                    There::No if fails => {
                        Some((CallerToolOutcome::Disconnected, disconnected(caller_id)))
                    }
                    _ => None,
                };
                if let Some((outcome, why)) = ended {
                    let answer = Value::from(why);
                    let ended = Ended { outcome, answer };
                    self.settle_request(asked, session, ended, None).await?;
                    return Ok(());
                }
                let next = look_again.min(Instant::now() + left);
                let next = match there {
                    There::Until(end) if fails => end.min(next),
                    _ => next,
                };
                tokio::select! {
                    _ = ears.end.reached() => return Ok(()),
                    _ = ears.standing.changed() => break,
                    _ = presence.changed() => {}
                    () = tokio::time::sleep_until(next) => {}
                }
            }
        }
    }
}

/// Whether nobody waits any more for a call that was made when the session was as it was then: its agent
/// is gone, or the turn in which it asked is over.
fn is_over(then: &Session, now: &Session) -> bool {
    let in_turn = |session: &Session| matches!(session.status, Status::Running | Status::Waiting);
    let other_turn = now.turns != then.turns || !in_turn(now);
    now.live.is_none() || now.key != then.key || (in_turn(then) && other_turn)
}

fn timed_out(asked: &CallerRequest) -> String {
    let seconds = asked.deadline.duration_since(asked.asked_at).as_secs_f64();
    format!("caller tool \"{}\" timed out after {seconds} s", asked.tool)
}
