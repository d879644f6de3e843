//! Paths inside a container that the server and the client agree on.

/// Where the runtime puts the client's binary.
pub const CLIENT_PATH: &str = "/usr/local/bin/oubliette-client";
/// The socket on which the relay of a container is reached.
pub const RELAY_SOCKET_PATH: &str = "/mcp/relay.sock";
