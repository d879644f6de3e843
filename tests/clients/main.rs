//! The real server, driven by the clients that people use.
//!
//! Each client is a small program that does the same things with its SDK and prints what it saw;
//! `check` asserts it for all of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[macro_use]
extern crate oubliette_test_harness;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use support::{Server, ServerOptions, built, clients, process};
use tokio::process::Command;

/// Far longer than any of them takes.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

#[test(needs(python))]
async fn python_sdk_speaks_the_newest_protocol_by_default() {
    python("auto", "2026-07-28").await;
}

#[test(needs(python))]
async fn python_sdk_speaks_the_older_protocol_when_asked() {
    python("legacy", "2025-11-25").await;
}

#[test(needs(typescript))]
async fn typescript_sdk_speaks_the_older_protocol() {
    node("typescript", "sdk.mjs", "2025-11-25").await;
}

#[test(needs(typescript))]
async fn typescript_client_negotiates_the_newest_protocol() {
    node("typescript", "client.mjs", "2026-07-28").await;
}

#[test(needs(python))]
async fn older_python_sdks_speak_their_own_protocols() {
    old_python("python-1.9", "2025-03-26").await;
    old_python("python-1.12", "2025-06-18").await;
}

#[test(needs(typescript))]
async fn older_typescript_sdks_speak_their_own_protocols() {
    old_typescript("sdk-1.12", "2025-03-26").await;
    old_typescript("sdk-1.17", "2025-06-18").await;
}

#[test(needs(go))]
async fn an_older_go_sdk_speaks_its_own_protocol() {
    go("1.1", "2025-06-18").await;
}

#[test(needs(go))]
async fn the_newest_go_sdk_speaks_the_newest_protocol() {
    go("newest", "2026-07-28").await;
}

#[test(needs(inspector))]
async fn inspector_speaks_the_older_protocol() {
    node("inspector", "inspector.mjs", "2025-11-25").await;
}

#[test(needs(sandbox), limit = 300)]
async fn the_example_in_rust_gives_an_agent_a_tool() {
    let mut command = Command::new(built("oubliette-example"));
    command.env_clear();
    runs_twice_with_one_project(command).await;
}

#[test(needs(python, sandbox))]
async fn the_example_in_python_gives_an_agent_a_tool() {
    let directory = clients::client("python");
    let mut command = clean(&directory.join("bin/python"), &directory.join("bin"));
    command.arg(clients::example("python/caller.py"));
    runs_twice_with_one_project(command).await;
}

#[test(needs(typescript, sandbox))]
async fn the_example_in_typescript_gives_an_agent_a_tool() {
    let directory = clients::client("typescript");
    // Packages are found from where the code is.
    let code = directory.join("caller.mts");
    std::fs::copy(clients::example("typescript/caller.mts"), &code).unwrap();
    let binaries = directory.join("node_modules/.bin");
    let mut command = clean(&binaries.join("node"), &binaries);
    command.arg(code);
    runs_twice_with_one_project(command).await;
}

/// Runs an example twice: the second run uses the project of the first.
async fn runs_twice_with_one_project(mut command: Command) {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    command
        .env("HOME", server.home())
        .env("OUBLIETTE_URL", server.url())
        .env("OUBLIETTE_TOKEN", server.admin_key());
    for _ in 0..2 {
        let ended = process::run(&mut command, CLIENT_TIMEOUT).await;
        assert!(ended.status.success(), "{}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.stderr, "");
        assert_eq!(ended.stdout, "notification: hello\n{\"status\":\"sent\"}\n");
    }
    command.arg("/tool myapp_send_notification {}");
    let ended = process::run(&mut command, CLIENT_TIMEOUT).await;
    assert_eq!(ended.stdout, "`message` is missing\n", "{}", ended.stderr);
    let projects = server
        .admin()
        .call("project_list", serde_json::json!({}))
        .await;
    assert_eq!(projects.ok()["projects"].as_array().unwrap().len(), 1);
}

async fn python(mode: &str, protocol: &str) {
    let directory = clients::client("python");
    let mut command = clean(&directory.join("bin/python"), &directory.join("bin"));
    command.arg(clients::source("python/sdk.py")).arg(mode);
    check(command, protocol).await;
}

async fn old_python(client: &str, protocol: &str) {
    let directory = clients::client(client);
    let mut command = clean(&directory.join("bin/python"), &directory.join("bin"));
    command.arg(clients::source("python/old_sdk.py"));
    check(command, protocol).await;
}

async fn go(version: &str, protocol: &str) {
    let directory = clients::client("go");
    let command = clean(&directory.join(version), &directory);
    check(command, protocol).await;
}

async fn node(client: &str, program: &str, protocol: &str) {
    let source = clients::source(&format!("typescript/{program}"));
    let code = std::fs::read_to_string(source).unwrap();
    node_code(client, code, protocol).await;
}

/// The program of the newest version 1, with an older one.
async fn old_typescript(package: &str, protocol: &str) {
    let source = clients::source("typescript/sdk.mjs");
    let code = std::fs::read_to_string(source).unwrap();
    let code = code
        .replace("@modelcontextprotocol/sdk/", &format!("{package}/"))
        // Not all of these versions know structured results or tell the protocol.
        .replace("made.structuredContent", "JSON.parse(made.content[0].text)")
        .replace("transport.protocolVersion", "initialized.protocolVersion")
        .replace(
            "await client.connect(transport);",
            "let initialized;\n\
             const request = client.request.bind(client);\n\
             client.request = async (...all) => {\n\
                 const result = await request(...all);\n\
                 initialized ??= result;\n\
                 return result;\n\
             };\n\
             await client.connect(transport);",
        );
    node_code("typescript", code, protocol).await;
}

async fn node_code(client: &str, code: String, protocol: &str) {
    let directory = clients::client(client);
    let binaries = directory.join("node_modules/.bin");
    let mut command = clean(&binaries.join("node"), &binaries);
    // Code that is given, not named, finds its packages from the current directory.
    command
        .current_dir(&directory)
        .args(["--input-type=module", "--eval", &code]);
    check(command, protocol).await;
}

/// A command that finds its own binaries first and nothing else in its environment.
fn clean(program: &Path, binaries: &Path) -> Command {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(binaries.to_owned()).chain(std::env::split_paths(&rest));
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", std::env::join_paths(all).unwrap());
    command
}

/// Runs a client against a server of its own. Its structured results fit their schemas: it fails
/// by itself if they do not.
async fn check(mut command: Command, protocol: &str) {
    let server = Server::start();
    command
        .env("HOME", server.home())
        .env("OUBLIETTE_URL", server.url())
        .env("OUBLIETTE_TOKEN", server.admin_key());
    let ended = process::run(&mut command, CLIENT_TIMEOUT).await;
    assert!(ended.status.success(), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(
        ended.stderr, "",
        "the client has something to complain about"
    );
    let seen: Value = serde_json::from_str(&ended.stdout).unwrap();

    assert_eq!(seen["protocol"], protocol);
    let tools = seen["tools"].as_array().unwrap();
    let project = tools.iter().find(|tool| tool["name"] == "project");
    let actions = &project.unwrap()["inputSchema"]["properties"]["action"]["enum"];
    assert!(actions.as_array().unwrap().contains(&"create".into()));
    for tool in tools {
        assert_eq!(tool["outputSchema"]["type"], "object", "{}", tool["name"]);
    }

    let made = &seen["made"]["structuredContent"];
    assert_eq!(made["name"], "client");
    let read = &seen["read"]["structuredContent"];
    for (name, value) in made.as_object().unwrap() {
        assert_eq!(&read[name], value, "{name}");
    }
    let id = made["project_id"].as_str().unwrap();
    assert!(server.workspace(id).join(".git/HEAD").exists());

    let refused = &seen["refused"];
    assert_eq!(refused["isError"], true);
    assert_eq!(
        refused["content"][0]["text"],
        "unknown parameter `projct_id`; did you mean `project_id`?"
    );
}

fn main() -> std::process::ExitCode {
    oubliette_test_harness::main(&support::needs::SUITE)
}
