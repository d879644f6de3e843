//! The binary: settings in, a server or a client out.
//!
//! Everything on the command line except `serve`, `agent`, `backup`, `restore`, `doctor` and `token
//! reset-admin` is an MCP client of a server, like any other.

mod agents;
mod archive;
mod cli;
mod config;
mod containers;
mod doctor;
mod down;
mod failure;
mod home;
mod inside;
mod logs;
mod reset;
mod serve;
mod setup;
mod terminal;
mod tty;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// A call makes many short-lived blocks of some kilobytes, which glibc's allocator is slow with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the command line and returns its exit code: 1 for a failure, 2 for wrong usage.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    // Before anything else starts a thread: the launcher of sandboxes must have only one.
    if let Some(code) = oubliette_sandbox::launcher_main() {
        return code;
    }
    // Containers get this same file under another name.
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    let role = arguments.get(1).and_then(|role| role.to_str());
    if name == Some("oubliette-demo-agent".as_ref()) {
        return oubliette_demo_agent::run(arguments.into_iter().skip(1));
    }
    if role == Some(oubliette_demo_agent::SUBCOMMAND) {
        return oubliette_demo_agent::run(arguments.into_iter().skip(2));
    }
    if name == Some("oubliette-client".as_ref()) {
        return oubliette_client::run(arguments);
    }
    // Both sides of TLS need to agree on one implementation before the first connection.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    }
}
