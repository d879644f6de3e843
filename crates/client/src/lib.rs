//! What runs inside a container, on behalf of the server.
//!
//! `mcp` is the MCP server of an agent: what an agent can ask of Oubliette, it asks there. `init` is the supervisor, PID 1: it starts processes when the server asks, keeps their output
//! until the server has it, and outlives any server. Everything around it is hostile; it keeps
//! nothing but the processes and their bytes.

// What runs in containers runs on Linux, wherever the server does.
#[cfg(target_os = "linux")]
mod channel;
#[cfg(target_os = "linux")]
mod init;
#[cfg(target_os = "linux")]
mod mcp;
#[cfg(target_os = "linux")]
mod stage;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs one of the client's roles, by its first argument.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().skip(1);
    let role = arguments.next();
    match role.as_deref().map(|role| role.to_str()) {
        #[cfg(target_os = "linux")]
        None | Some(Some(mcp::ROLE)) => mcp::run(),
        #[cfg(target_os = "linux")]
        Some(Some("init")) => init::run(),
        #[cfg(target_os = "linux")]
        Some(Some(channel::ROLE)) => channel::run(),
        #[cfg(target_os = "linux")]
        Some(Some(stage::ROLE)) => stage::run(arguments),
        _ => {
            eprintln!(
                "usage: oubliette-client [mcp|init]\n\nRuns inside Oubliette's containers: as the \
                 MCP server of an agent, or as the first process."
            );
            ExitCode::from(2)
        }
    }
}
