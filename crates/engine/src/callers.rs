//! The tools of callers: an agent calls them, whoever drives the session answers.
//!
//! The store says what is pending; sockets and streams are only ways to hear of it. A call ends by one
//! conditional update, whether an answer, a deadline, a caller that left or an agent that gave up comes
//! first.

pub(crate) mod declare;
mod ears;
mod minder;
mod presence;
mod request;
pub(crate) mod response;
mod schema;

use std::collections::HashMap;
use std::sync::Arc;

use oubliette_model::SessionId;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use declare::dry_declaration;
pub use ears::Ear;
pub use presence::{Listening, OpenLine};
pub use request::CallerError;

use declare::Known;
use ears::Ears;
use presence::Presence;

/// Who is there to answer, and who has to hear of new tools.
#[derive(Debug)]
pub(crate) struct Callers {
    pub(crate) presence: Presence,
    ears: Ears,
    /// Rings when some session's tools were declared anew. The store has them.
    declared: watch::Sender<()>,
    known: Mutex<HashMap<SessionId, Arc<Known>>>,
}

impl Default for Callers {
    fn default() -> Self {
        Self {
            presence: Presence::default(),
            ears: Ears::default(),
            declared: watch::Sender::new(()),
            known: Mutex::default(),
        }
    }
}
