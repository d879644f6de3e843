//! The tools of callers: an agent calls them, and the client that drives the session responds.
//!
//! The store has the pending calls; sockets and streams only announce them. One conditional update
//! ends a call: the first of a response, the timeout, a caller that disconnects and an agent that
//! cancels.

pub(crate) mod declare;
mod presence;
mod request;
mod request_timeout;
pub(crate) mod response;
mod schema;
mod tool_list;

use std::collections::HashMap;
use std::sync::Arc;

use oubliette_model::SessionId;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use declare::dry_declaration;
pub use presence::{ListeningGuard, OpenStream};
pub use request::CallerError;
pub(crate) use tool_list::AwaitedTools;
pub use tool_list::ToolListSubscriber;

use declare::CompiledTools;
use presence::Presence;
use tool_list::ToolListSubscribers;

use crate::Engine;

/// Which callers are connected, and which clients of agents have to hear of new tools.
#[derive(Debug, Default)]
pub(crate) struct CallerState {
    presence: Presence,
    tool_list_subscribers: ToolListSubscribers,
    /// Wakes subscribers when the tools of a session were declared. The store has the tools.
    declared: watch::Sender<()>,
    compiled_tools: Mutex<HashMap<SessionId, Arc<CompiledTools>>>,
}

/// The verbs about callers and their tools.
#[derive(Debug, Clone, Copy)]
pub struct Callers<'a> {
    engine: &'a Engine,
}

impl<'a> Callers<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine }
    }

    fn state(self) -> &'a CallerState {
        &self.engine.parts.callers
    }
}
