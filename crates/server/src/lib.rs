//! The faces of the server: the HTTP endpoint with MCP, health and metrics, and the relay, by which
//! containers reach the server.
//!
//! A face parses, calls one verb of the engine and renders. It never reads the store and decides
//! nothing about permission.

mod auth;
mod connection_counts;
mod connection_limits;
mod errors;
mod files;
mod listen;
mod local_socket;
mod mcp;
mod metrics;
mod relay;
mod router;
mod settings;
mod tasks;

pub use connection_counts::ConnectionCounts;
pub use listen::{Listeners, serve};
pub use local_socket::LocalSocket;
pub use mcp::STRUCTURED_ONLY;
pub use relay::RelayServer;
pub use router::{App, app, app_with};
pub use settings::{McpSettings, ServerSettings};
