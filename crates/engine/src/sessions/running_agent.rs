//! Where the agent of a session runs, as the store knows it.

use jiff::Timestamp;
use oubliette_runtime::ContainerId;
use oubliette_store::{Project, Session};

use super::live_agent::LiveAgent;

/// An agent that runs.
#[derive(Debug)]
pub(crate) struct RunningAgent {
    pub(crate) container: ContainerId,
    /// Whether it works on a turn that is not being cancelled.
    pub(crate) is_in_turn: bool,
    /// None for turns that an earlier version of the server started.
    pub(crate) turn_started_at: Option<Timestamp>,
}

impl RunningAgent {
    pub(crate) fn of_session(session: &Session, project: &Project) -> Option<Self> {
        let live = LiveAgent::from_session(session)?;
        let turn = live.turn.as_ref();
        Some(Self {
            container: live.container_id(project),
            is_in_turn: turn.is_some_and(|turn| turn.cancelled.is_none()),
            turn_started_at: turn.and_then(|turn| turn.started_at),
        })
    }
}
