//! What the configuration decides for the faces. Every field has a default.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::Deserialize;

/// `[server]`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// Where the server listens.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Names by which clients may reach the server besides this machine's own; with a port or
    /// without.
    pub allowed_hosts: Vec<String>,
    /// Web origins that may call the server besides this machine's own.
    pub allowed_origins: Vec<String>,
    /// The largest request body.
    pub max_body_mb: u32,
    /// How long calls in flight may go on after the server was told to stop.
    pub drain_seconds: u64,
    /// Most connections at once.
    pub max_connections: usize,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7433)),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body_mb: 16,
            drain_seconds: 10,
            max_connections: 4096,
        }
    }
}

/// `[mcp]`
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct McpSettings {
    /// The newest protocol version to speak, e.g. `2025-11-25`; absent means the newest known.
    pub max_protocol: Option<String>,
}
