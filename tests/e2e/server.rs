//! The server itself: endpoints, keys, permissions, MCP sessions, start and stop.

mod audit;
mod bad_input;
mod data_directory;
mod guide;
mod http_endpoints;
mod keys;
mod mcp_sessions;
mod names;
mod permissions;
pub(crate) mod push;
mod scripted_callers;
mod shutdown;
mod tasks;
