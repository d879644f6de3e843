//! The configuration of the faces. Every field has a default.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::Deserialize;

/// `[server]`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// The address on which the server listens.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Host names by which clients may reach the server, besides `localhost` and the loopback
    /// addresses; with or without a port.
    pub allowed_hosts: Vec<String>,
    /// Web origins that may call the server, besides those on this machine.
    pub allowed_origins: Vec<String>,
    /// Maximum size of a request body.
    pub max_body_mb: u32,
    /// How long calls in flight may continue after the server was told to stop.
    pub drain_seconds: u64,
    /// Maximum number of open connections. A quarter of them is for connections without a valid key
    /// yet, and a sixteenth is kept for admin tokens.
    pub max_connections: usize,
    /// Maximum number of open connections of one token; a call in flight and an open stream need one
    /// each.
    pub max_connections_per_token: usize,
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
            max_connections_per_token: 512,
        }
    }
}

/// `[mcp]`
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct McpSettings {
    /// The newest protocol version to accept, for example `2025-11-25`. If absent, the newest one
    /// that this server knows.
    pub max_protocol: Option<String>,
}
