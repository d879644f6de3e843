//! What runs inside a container, on behalf of the server.
//!
//! `mcp` is the MCP server of an agent: what an agent can ask of Oubliette, it asks there. `init` is the supervisor, PID 1: it starts processes when the server asks, keeps their output
//! until the server has it, and outlives any server. Everything around it is hostile; it keeps
//! nothing but the processes and their bytes.

mod init;
mod mcp;
mod stage;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs one of the client's roles, by its first argument.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().skip(1);
    let Some(role) = arguments.next() else {
        return mcp::run();
    };
    match role.to_str() {
        Some(mcp::ROLE) => mcp::run(),
        Some("init") => init::run(),
        Some(stage::ROLE) => stage::run(arguments),
        _ => {
            eprintln!(
                "usage: oubliette-client [mcp|init]\n\nRuns inside Oubliette's containers: as the \
                 MCP server of an agent, or as the first process."
            );
            ExitCode::from(2)
        }
    }
}
