//! `oubliette status`: whether a server is running, and how it was started. It starts none.

use clap::Command;
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::{Home, ServerInfo, ServerMode};
use crate::terminal::width::stdout_columns;
use crate::terminal::wrap::wrapped;
use crate::terminal::{self, output, print_json, print_line};

pub(crate) fn command() -> Command {
    Command::new("status")
        .about("Show whether the server is running")
        .long_about("Show whether the server is running. The exit code is 1 if it is not.")
        .after_help("Examples:\n  oubliette status\n  oubliette status --json")
}

pub(crate) fn run(home: &Home) -> Result<(), Failure> {
    home.owner()?;
    let running = block_on(home.running_server())?;
    let status = describe(home, running.as_ref());
    if output::is_json() {
        print_json(&status);
    } else if running.is_some() {
        print_line(&terminal::render(&status));
    } else {
        let (path, command) = (home.path().display(), home.command());
        let text = format!(
            "No server is running on {path}. The next command that needs one starts it; `{command} up` starts one \
             that stays."
        );
        print_line(&wrapped(&text, stdout_columns()));
    }
    match running {
        Some(_) => Ok(()),
        None => Err(Failure::Exit(1)),
    }
}

fn describe(home: &Home, running: Option<&ServerInfo>) -> Map<String, Value> {
    let mut status = Map::new();
    let mut add = |name: &str, value: Value| drop(status.insert(name.to_owned(), value));
    add("running", json!(running.is_some()));
    add("data_dir", json!(home.path()));
    let Some(server) = running else {
        return status;
    };
    add("url", json!(server.url));
    if let Some(reason) = &server.no_url_reason {
        add("no_url_reason", json!(reason));
    }
    add("pid", json!(server.pid));
    add("version", json!(server.version));
    add("started_at", json!(server.started_at));
    add("mode", json!(server.mode));
    match server.mode {
        ServerMode::Foreground => {}
        ServerMode::Background => add("log", json!(home.log_file())),
        ServerMode::UntilIdle => {
            add("log", json!(home.log_file()));
            let config = Config::load(&home.config_file(), std::env::vars());
            if let Ok(config) = config {
                add("idle_seconds", json!(config.autostart.idle_seconds));
            }
        }
    }
    status
}
