//! The faces of the server: HTTP, MCP, health and metrics.
//!
//! A face parses, calls one verb of the engine and renders. It decides nothing about permission.

mod auth;
mod errors;
mod listen;
mod mcp;
mod metrics;
mod relay;
mod router;
mod settings;

pub use listen::serve;
pub use mcp::Handler;
pub use relay::{Doorkeeper, Relay};
pub use router::{App, app, app_with};
pub use settings::{McpSettings, ServerSettings};
