//! The settings of the agent's MCP server, from its environment.

use std::path::PathBuf;

use oubliette_wire::{CONFIRM_LISTS_VARIABLE, RELAY_SOCKET_PATH};

/// Where the relay is, and the keys for it.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) socket: PathBuf,
    pub(super) session: Option<SessionCredentials>,
    pub(super) api_key: Option<String>,
    /// Whether the agent uses a changed list only some time after it has asked for it.
    pub(super) confirms_lists: bool,
}

/// The agent's own session.
#[derive(Clone)]
pub(super) struct SessionCredentials {
    pub(super) id: String,
    pub(super) key: String,
}

impl Settings {
    pub(super) fn from_env() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let id = variable("OUBLIETTE_SESSION_ID");
        let key = variable("OUBLIETTE_SESSION_KEY");
        let socket = variable("OUBLIETTE_SOCKET");
        Self {
            socket: socket.unwrap_or_else(|| RELAY_SOCKET_PATH.into()).into(),
            session: id.zip(key).map(|(id, key)| SessionCredentials { id, key }),
            api_key: variable("OUBLIETTE_API_KEY"),
            confirms_lists: variable(CONFIRM_LISTS_VARIABLE).is_some(),
        }
    }
}
