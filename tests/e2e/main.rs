//! The real server, driven from outside: what works, what is refused, and what survives.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod agent_keys;
mod audit;
mod bad_input;
mod callers;
mod children;
mod clone;
mod command_line;
mod containers;
mod crashes;
mod cut_short;
mod data_directory;
mod door;
mod engine_faults;
mod full_disk;
mod hostile_commands;
mod keys;
mod leftovers;
mod machines;
mod mcp_sessions;
mod openspec;
mod oubliette_tools;
mod pages;
mod permission;
mod projects;
mod push;
mod races;
mod real_agents;
mod real_relay;
mod relay;
mod schedule_crashes;
mod schedules;
mod session_commands;
mod session_crashes;
mod session_faults;
mod session_tools;
mod sessions;
mod shutdown;
mod surface;
mod terminal;
mod versions;
mod workspace_containers;
