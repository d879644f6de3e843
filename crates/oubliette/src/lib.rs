//! The `oubliette` binary: the server and the command line.
//!
//! Commands are MCP clients of a server, which they start in the background if none is running, except those that
//! work on the data directory or this machine: `serve`, `up`, `status`, `down`, `agent` without `agent login`,
//! `backup`, `restore`, `doctor`, `completions`, `man` and `token reset-admin`.

mod agents;
mod archive;
mod background;
mod cli;
mod client_binary;
mod config;
mod containers;
mod doctor;
mod down;
mod executor;
mod failure;
mod home;
mod logs;
mod reset;
mod serve;
mod setup;
mod status;
mod terminal;
mod tty;
mod up;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Calls make many short-lived allocations of some kilobytes, which are slow with glibc's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the command line and returns its exit code: 1 for a failure, 2 for wrong usage.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    // Before any thread is started: the sandbox launcher must be single-threaded.
    if let Some(code) = oubliette_sandbox::launcher_main() {
        return code;
    }
    // Containers run this same file under other names.
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    let role = arguments.get(1).and_then(|role| role.to_str());
    if name == Some("oubliette-demo-agent".as_ref()) {
        return oubliette_demo_agent::run(arguments.into_iter().skip(1));
    }
    if role == Some(oubliette_demo_agent::SUBCOMMAND) {
        return oubliette_demo_agent::run(arguments.into_iter().skip(2));
    }
    if role == Some(oubliette_gate::process::SUBCOMMAND) {
        return oubliette_gate::process::run(arguments.into_iter().skip(2));
    }
    if name == Some("oubliette-client".as_ref()) {
        return oubliette_client::run(arguments);
    }
    // rustls needs a process-wide provider before the first connection.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let code = match cli::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    };
    match terminal::write_failure() {
        Some(failure) => {
            failure.print();
            failure.code()
        }
        None => code,
    }
}
