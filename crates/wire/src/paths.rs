//! Paths and variables inside every container that the server and the client agree on.

/// The directory of the relay socket.
pub const RELAY_DIR_PATH: &str = "/mcp";
/// The socket on which the supervisor and the agents' MCP servers reach the server.
pub const RELAY_SOCKET_PATH: &str = "/mcp/relay.sock";
/// The socket on which the tunnel of a container with the network `policy` reaches the gate.
pub const EGRESS_SOCKET_PATH: &str = "/mcp/egress.sock";
/// The variable of PID 1 that names that socket; without it there is no tunnel.
pub const EGRESS_SOCKET_VARIABLE: &str = "OUBLIETTE_EGRESS_SOCKET";
/// The environment variable with the ports of loopback that lead to the server's machine, with commas between them.
pub const LOOPBACK_PORTS_VARIABLE: &str = "OUBLIETTE_LOOPBACK_PORTS";
/// The program that is PID 1 and the agents' MCP server.
pub const CLIENT_PATH: &str = "/usr/local/bin/oubliette-client";

/// The variable that tells an agent's MCP server to notify the agent of a changed tool list twice.
pub const CONFIRM_LISTS_VARIABLE: &str = "OUBLIETTE_CONFIRM_LISTS";

/// What every agent is told about its MCP server `oubliette`.
pub const AGENT_INSTRUCTIONS: &str = "Tools of Oubliette, which runs this agent in a container. \
     `session_message` gives another agent a task and waits for its answer.";
