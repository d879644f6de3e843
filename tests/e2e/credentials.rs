//! Credentials: who may add them, which agents get them, and where their values are not.

mod commands;
mod gateways;
mod login_command;
mod logins;
mod operations;

use std::path::Path;

use serde_json::{Value, json};
use support::{Modern, Server, ServerOptions};

/// An agent in the shell whose turn is a script in its workspace.
const SCRIPTED: &str = r#"
reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/^{"jsonrpc":"2.0","id":\([0-9]*\).*/\1/')
    case $line in
    *'"method":"initialize"'*) reply '{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}' ;;
    *'"method":"session/new"'*) reply '{"sessionId":"s"}' ;;
    *'"method":"session/prompt"'*)
        text=$(sh /workspace/do.sh 2>&1 | tr -d '\n"\\' | tr '\t' ' ')
        printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%s"}}}}\n' "$text"
        reply '{"stopReason":"end_turn"}' ;;
    *'"method"'*) reply '{}' ;;
    esac
done
"#;

/// A server on which these agents of the catalogue are scripted ones.
pub(super) fn scripted_server(agents: &[&str], more: &str) -> Server {
    let config = format!("runtime = \"sandbox\"\n{}{more}", scripted_agents(agents));
    Server::start_with(ServerOptions {
        config,
        ..ServerOptions::default()
    })
}

/// The sections of the configuration that make these agents of the catalogue scripted ones.
pub(super) fn scripted_agents(agents: &[&str]) -> String {
    let mut config = String::new();
    for name in agents {
        let args = json!(["-c", SCRIPTED]);
        config += &format!("[agents.{name}]\ncommand = \"/bin/sh\"\nargs = {args}\n");
    }
    config
}

pub(super) async fn project(
    admin: &Modern,
    name: &str,
    agent: &str,
    credentials: &[&str],
) -> String {
    let made = json!({ "name": name, "agent": agent, "credential_refs": credentials });
    let made = admin.call("project_create", made).await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

/// Has the agent of a new session run a script; its session and what it answers.
pub(super) async fn run(server: &Server, project: &str, script: &str) -> (String, Value) {
    std::fs::write(server.workspace(project).join("do.sh"), script).unwrap();
    let admin = server.admin();
    let new = json!({ "new_session": true });
    let session = admin.spawn_with(project, "go", new).await;
    let completion = admin.turn(&session, 1).await;
    (session, completion)
}

/// The files below a directory that contain a text.
pub(super) fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() {
                let content = std::fs::read(&path).unwrap_or_default();
                if content
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
                {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    found
}
