//! `oubliette up` and `oubliette serve --detach`: a server in the background that stays until it is stopped.

use std::ffi::OsString;
use std::net::SocketAddr;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::json;

use crate::background;
use crate::down;
use crate::failure::Failure;
use crate::home::{Home, ServerInfo, ServerMode};
use crate::terminal::{output, print_line};

pub(crate) fn command() -> Command {
    Command::new("up")
        .about("Start the server in the background, unless it is running")
        .long_about(
            "Start the server in the background, unless it is running. It runs until `oubliette down`, also when the \
             terminal is closed; a server that a command has started stays then, too. Its log is `server.log` in \
             the data directory.",
        )
        .arg(
            Arg::new("restart")
                .long("restart")
                .action(ArgAction::SetTrue)
                .help("Restart a running server, for example with a changed configuration; containers and agents keep running"),
        )
        .arg(
            Arg::new("listen")
                .long("listen")
                .value_name("ADDR")
                .value_parser(value_parser!(SocketAddr))
                .help("Address to listen on [default: `server.listen` of the configuration, 127.0.0.1:7433]"),
        )
        .after_help("Examples:\n  oubliette up\n  oubliette up --restart\n  oubliette up --listen 127.0.0.1:7434")
}

pub(crate) fn run(home: &Home, matches: &ArgMatches) -> Result<(), Failure> {
    if matches.get_flag("restart") {
        drop(down::stop_server(home, down::Agents::KeepWorking)?);
    }
    let Some(address) = matches.get_one::<SocketAddr>("listen") else {
        print(home, &keep(home)?);
        return Ok(());
    };
    let options = ["--listen".to_owned(), address.to_string()];
    let report = background::start(home, ServerMode::Background, &options.map(OsString::from))?;
    let running = running_server(home)?;
    let url = running.url.as_deref().unwrap_or("no address");
    if report.was_running && !url.contains(&format!("//{address}/")) {
        return Err(Failure::new(format!(
            "the server is running at {}; `{} up --restart --listen {address}` starts it again at the other address",
            url,
            home.command()
        )));
    }
    print(home, &keep_running(home, running)?);
    Ok(())
}

/// `oubliette serve --detach`.
pub(crate) fn detach(home: &Home, options: &[OsString]) -> Result<(), Failure> {
    let report = background::start(home, ServerMode::Background, options)?;
    if report.was_running {
        // Its options may be others.
        home.lock()?;
    }
    print(home, &running_server(home)?);
    Ok(())
}

/// Starts a server that stays, or has the running one stay.
pub(crate) fn keep(home: &Home) -> Result<ServerInfo, Failure> {
    background::start(home, ServerMode::Background, &[])?;
    keep_running(home, running_server(home)?)
}

/// Has a running server stay that would end itself.
pub(crate) fn keep_running(home: &Home, running: ServerInfo) -> Result<ServerInfo, Failure> {
    if running.mode != ServerMode::UntilIdle {
        return Ok(running);
    }
    // The server reads it before it ends itself.
    let kept = ServerInfo {
        mode: ServerMode::Background,
        ..running
    };
    home.write_server_info(&kept)?;
    Ok(kept)
}

fn running_server(home: &Home) -> Result<ServerInfo, Failure> {
    let ended = || Failure::new("the server ended as soon as it was ready");
    home.server_info().ok_or_else(ended)
}

fn print(home: &Home, server: &ServerInfo) {
    let log = home.log_file();
    if output::is_json() {
        let value = json!({ "running": true, "pid": server.pid, "url": server.url, "log": log });
        print_line(&value.to_string());
        return;
    }
    let command = home.command();
    let Some(url) = &server.url else {
        print_line(&format!(
            "The server is running (process {}), but only commands of this machine reach it: {}\n\
             When the port is free, `{command} up --restart` takes it. The log is {}.",
            server.pid,
            server.no_url_reason.as_deref().unwrap_or_default(),
            log.display()
        ));
        return;
    };
    print_line(&format!(
        "The server is running (process {}): {url}\n\
         Connect an MCP client with `{command} mcp setup claude`; `{command} down` stops the server and all \
         containers. The log is {}.",
        server.pid,
        log.display()
    ));
}
