//! The server itself: endpoints, keys, permissions, MCP sessions, start and stop.

mod audit;
mod bad_input;
mod data_directory;
mod doc_examples;
mod http_endpoints;
mod keys;
mod mcp_sessions;
mod permissions;
pub(crate) mod push;
mod shutdown;
