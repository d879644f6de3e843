//! What the client is told when it is started; only through its environment.

use std::path::PathBuf;

/// Where the relay is, and what to show there.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) socket: PathBuf,
    pub(super) session: Option<Session>,
    pub(super) api_key: Option<String>,
}

/// The session that the agent is.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) key: String,
}

impl Settings {
    pub(super) fn read() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let id = variable("OUBLIETTE_SESSION_ID");
        let key = variable("OUBLIETTE_SESSION_KEY");
        let socket = variable("OUBLIETTE_SOCKET");
        Self {
            socket: socket.unwrap_or_else(|| "/mcp/relay.sock".into()).into(),
            session: id.zip(key).map(|(id, key)| Session { id, key }),
            api_key: variable("OUBLIETTE_API_KEY"),
        }
    }
}
