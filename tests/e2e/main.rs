//! The real server, driven from outside: what works, what is refused, and what survives.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod audit;
mod bad_input;
mod clone;
mod command_line;
mod containers;
mod crashes;
mod cut_short;
mod data_directory;
mod keys;
mod leftovers;
mod mcp_sessions;
mod permission;
mod projects;
mod real_agents;
mod session_commands;
mod session_crashes;
mod session_faults;
mod sessions;
mod shutdown;
mod surface;
mod terminal;
mod workspace_containers;
