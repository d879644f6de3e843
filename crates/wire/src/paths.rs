//! Paths inside containers that the server, the supervisor and the client agree on.

/// The socket of the relay.
pub const RELAY_SOCKET_PATH: &str = "/mcp/relay.sock";

/// The program that is PID 1, the agents' MCP server and the demo agent.
pub const CLIENT_PATH: &str = "/usr/local/bin/oubliette-client";
