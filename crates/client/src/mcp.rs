//! The MCP server of an agent, on its standard input and output.
//!
//! It answers the agent at once even without a connection to the server: the tool list grows when
//! the server sends tools, and calls wait for the server. It holds keys in memory and never writes
//! them out. Processes outside its agent's tree can read neither its memory nor its environment;
//! processes that the agent starts could read the keys from the agent itself.

mod base_tools;
mod handler;
mod relay_connection;
mod settings;
mod stdio;
mod tool_registry;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use oubliette_wire::{ToolsListed, relay_methods};
use rmcp::ServiceExt;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use handler::Handler;
use relay_connection::RelayConnection;
use settings::Settings;
use stdio::StdioTransport;
use tool_registry::ToolRegistry;

const LISTING_REPORT_DELAY: Duration = Duration::from_millis(5);

pub(crate) const SUBCOMMAND: &str = "mcp";

pub(crate) fn run() -> ExitCode {
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let settings = Settings::from_env();
    if rustix::termios::isatty(rustix::stdio::stdin()) {
        log("this is an MCP server for agents, on its standard input and output");
    }
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            log(&format!("cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(serve(settings));
    // The agent has gone: no task is waited for.
    runtime.shutdown_background();
    code
}

async fn serve(settings: Settings) -> ExitCode {
    let input_ended = CancellationToken::new();
    let transport = match StdioTransport::open(input_ended.clone()) {
        Ok(transport) => transport,
        Err(error) => {
            log(&format!("cannot read the standard input: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let tools = Arc::new(ToolRegistry::new(&settings));
    let (relay, relay_task) = RelayConnection::new(settings.clone(), tools.clone());
    let reporter = relay.clone();
    let handler = Handler::new(settings, tools.clone(), relay);
    let serving = async {
        match handler.serve(transport).await {
            Ok(service) => drop(service.waiting().await),
            Err(error) => log(&format!("the agent does not speak MCP: {error}")),
        }
    };
    tokio::select! {
        () = input_ended.cancelled() => {}
        () = serving => {}
        () = relay_task => {}
        () = tools.notify_changes() => {}
        () = report_listing(&tools, &reporter) => {}
    }
    ExitCode::SUCCESS
}

/// Tells the server what the agent has listed, so that a prompt does not come before its tools.
async fn report_listing(tools: &ToolRegistry, relay: &RelayConnection) {
    loop {
        let caller_tools = tools.next_unreported().await;
        // The agent gets the list first.
        tokio::time::sleep(LISTING_REPORT_DELAY).await;
        let listed = serde_json::to_value(ToolsListed { caller_tools });
        if let Ok(Value::Object(params)) = listed {
            // A server of an older version refuses it.
            let _ = relay.call(relay_methods::TOOLS_LISTED, params).await;
        }
    }
}

/// Writes a line to standard error, which agents usually log.
fn log(message: &str) {
    eprintln!("oubliette-client: {message}");
}
