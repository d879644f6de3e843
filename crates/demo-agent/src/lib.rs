//! A scripted agent that speaks the Agent Client Protocol on stdio and needs no key and no network.
//!
//! It executes its prompt line by line, with a real shell and real MCP servers, so that sessions can be
//! shown and tested without a model. `script.rs` parses the language of prompts. The agent uses the
//! protocol's own SDK and shares no code with the server that drives it.

mod agent;
mod journal;
mod mcp_servers;
mod output;
mod script;
mod session;
mod shell;
mod turn;
mod workspace;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use output::Output;

/// The program name or first argument with which `oubliette` runs this agent.
pub const SUBCOMMAND: &str = "demo-agent";

/// Serves one client on stdin and stdout until it closes them.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    if arguments.next().is_some() {
        eprintln!("the demo agent takes no arguments: it speaks ACP on its standard input");
        return ExitCode::from(2);
    }
    if std::io::stdin().is_terminal() {
        eprintln!("the demo agent expects an ACP client on its standard input; Ctrl-D ends it");
    }
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("the demo agent cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(async {
        let (output, sink, writer) = Output::open();
        tokio::pin!(writer);
        let served = tokio::select! {
            served = agent::serve(output.clone(), sink) => served.map_err(|error| error.to_string()),
            written = &mut writer => return written.map_err(|error| error.to_string()),
        };
        output.finish();
        writer.await.map_err(|error| error.to_string()).and(served)
    });
    // A blocking read of stdin cannot be cancelled, so it is not waited for.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the demo agent ended: {error}");
            ExitCode::FAILURE
        }
    }
}
