//! The MCP server of an agent, on its standard input and output.
//!
//! It answers at once whatever the server does: tools come from the relay when it is there, calls
//! wait for it. What it holds in memory are keys; it never says them, and nothing else in the
//! container can read them out of it.

mod base;
mod handler;
mod link;
mod settings;
mod stdio;
mod tools;

use std::process::ExitCode;
use std::sync::Arc;

use rmcp::ServiceExt;
use tokio_util::sync::CancellationToken;

use handler::Handler;
use link::Link;
use settings::Settings;
use stdio::Stdio;
use tools::Tools;

pub(crate) const ROLE: &str = "mcp";

pub(crate) fn run() -> ExitCode {
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let settings = Settings::read();
    if rustix::termios::isatty(rustix::stdio::stdin()) {
        say("this is an MCP server for agents, on its standard input and output");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(serve(settings));
    // Whatever still waits has nobody to tell.
    runtime.shutdown_background();
    code
}

async fn serve(settings: Settings) -> ExitCode {
    let over = CancellationToken::new();
    let stdio = match Stdio::open(over.clone()) {
        Ok(stdio) => stdio,
        Err(error) => {
            say(&format!("cannot read the standard input: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let tools = Arc::new(Tools::new(&settings));
    let (link, linked) = Link::new(settings.clone(), tools.clone());
    let handler = Handler::new(settings, tools.clone(), link);
    let serving = async {
        match handler.serve(stdio).await {
            Ok(service) => drop(service.waiting().await),
            // The agent left before it said anything of use.
            Err(error) => say(&format!("the agent does not speak MCP: {error}")),
        }
    };
    tokio::select! {
        () = over.cancelled() => {}
        () = serving => {}
        () = linked => {}
        () = tools.announce() => {}
    }
    ExitCode::SUCCESS
}

/// A line for whoever reads the agent's logs.
fn say(what: &str) {
    eprintln!("oubliette-client: {what}");
}
