//! The programs that run inside a container on behalf of the server.
//!
//! `mcp` is the MCP server of an agent. `init` is the supervisor, PID 1: it starts processes for the
//! server, buffers their output until the server has stored it, and keeps running without a server.
//! `agent` makes the home directory of an agent and then becomes the agent.
//! Other processes of the container are not trusted; the supervisor holds only processes and their
//! bytes.

// Containers run Linux; the server can also be built on other systems.
#[cfg(target_os = "linux")]
mod agent;
#[cfg(target_os = "linux")]
mod apply_files;
#[cfg(target_os = "linux")]
mod chown;
#[cfg(target_os = "linux")]
mod init;
#[cfg(target_os = "linux")]
mod mcp;
#[cfg(target_os = "linux")]
mod pty_exec;
#[cfg(target_os = "linux")]
mod stdio_bridge;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the subcommand that the first argument names.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().skip(1);
    let subcommand = arguments.next();
    match subcommand.as_deref().map(|name| name.to_str()) {
        #[cfg(target_os = "linux")]
        None | Some(Some(mcp::SUBCOMMAND)) => mcp::run(),
        #[cfg(target_os = "linux")]
        Some(Some("init")) => init::run(),
        #[cfg(target_os = "linux")]
        Some(Some(oubliette_wire::AGENT_SUBCOMMAND)) => agent::run(arguments),
        #[cfg(target_os = "linux")]
        Some(Some(stdio_bridge::SUBCOMMAND)) => stdio_bridge::run(),
        #[cfg(target_os = "linux")]
        Some(Some(oubliette_gate::tunnel::SUBCOMMAND)) => oubliette_gate::tunnel::run(arguments),
        #[cfg(target_os = "linux")]
        Some(Some(oubliette_wire::APPLY_FILES)) => apply_files::run(arguments),
        #[cfg(target_os = "linux")]
        Some(Some(chown::SUBCOMMAND)) => chown::run(arguments),
        #[cfg(target_os = "linux")]
        Some(Some(pty_exec::SUBCOMMAND)) => pty_exec::run(arguments),
        _ => {
            eprintln!(
                "usage: oubliette-client [mcp|init]\n\nRuns inside Oubliette's containers: as the \
                 MCP server of an agent, as the first process, or for a step of that process."
            );
            ExitCode::from(2)
        }
    }
}
