//! A scripted agent that speaks the Agent Client Protocol on stdio and needs no key and no network.
//!
//! It does what its prompt says line by line, with a real shell and real MCP servers, so that a
//! session can be seen to work, and be tested, without a model. The language is in `script.rs`.
//! It is written with the protocol's own SDK and shares no code with the client that drives it.

mod agent;
mod journal;
mod output;
mod script;
mod servers;
mod session;
mod shell;
mod turn;
mod workspace;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use output::Output;

/// The name and first argument by which `oubliette` becomes this agent.
pub const ROLE: &str = "demo-agent";

/// Serves one client on stdin and stdout until it closes them.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    if arguments.next().is_some() {
        eprintln!("the demo agent takes no arguments: it speaks ACP on its standard input");
        return ExitCode::from(2);
    }
    if std::io::stdin().is_terminal() {
        eprintln!("the demo agent expects an ACP client on its standard input; Ctrl-D ends it");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
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
    // A read of stdin cannot be called off, and nothing that it would bring matters any more.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the demo agent ended: {error}");
            ExitCode::FAILURE
        }
    }
}
