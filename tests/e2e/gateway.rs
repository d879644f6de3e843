//! The gateway: agents in containers with the network `policy` reach their models with placeholders, and no real key
//! is in a container.

mod agents;
mod budget;
mod faults;
mod git;
mod keys;
mod kills;
mod metering;

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{Llm, Modern, Server};

use crate::credentials::scripted_server;

/// The real key; no other test has it.
const KEY: &str = "sk-canary-0123456789abcdef";
/// Trees without a budget: their calls do not need the server.
const NO_BUDGET: &str = "[limits]\nmax_cost_usd = 1000000.0\n";
/// Sends a message to the model with what the agent was given.
const ASK: &str = r#"curl -sS -m 60 "$ANTHROPIC_BASE_URL/v1/messages" -H "x-api-key: $ANTHROPIC_API_KEY" \
    -H 'content-type: application/json' -w ' status %{http_code}' \
    -d '{"model":"claude-x","max_tokens":50,"stream":true,"tools":[{"name":"any","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":"say hello"}]}'"#;

/// A server whose `claude` is a shell script, a model, and a project with the network `policy`.
async fn start() -> (Server, Llm, Modern, String) {
    start_with("").await
}

/// The same with more settings.
async fn start_with(settings: &str) -> (Server, Llm, Modern, String) {
    let (server, llm) = (
        scripted_server(&["claude", "codex"], settings),
        Llm::start(),
    );
    let admin = server.admin();
    add_credential(&admin, "work", "anthropic", KEY, &llm.base()).await;
    let project = policy_project(&admin, "one", "claude", "work").await;
    (server, llm, admin, project)
}

async fn add_credential(admin: &Modern, name: &str, kind: &str, value: &str, base_url: &str) {
    let add = json!({ "name": name, "kind": kind, "value": value, "base_url": base_url });
    admin.call("credential_add", add).await.ok();
}

async fn policy_project(admin: &Modern, name: &str, agent: &str, credential: &str) -> String {
    let made = json!({
        "name": name, "agent": agent, "network": "policy", "credential_refs": [credential],
    });
    let made = admin.call("project_create", made).await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

/// Has the agent of a new session run a script; the session, and what the script printed.
async fn run(server: &Server, project: &str, script: &str) -> (String, String) {
    let (session, completion) = crate::credentials::run(server, project, script).await;
    let text = completion["text"].as_str().unwrap_or_default().to_owned();
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    (session, text)
}

/// Has the agent of a session run another script.
async fn run_again(
    server: &Server,
    project: &str,
    session: &str,
    turn: usize,
    script: &str,
) -> String {
    std::fs::write(server.workspace(project).join("do.sh"), script).unwrap();
    let admin = server.admin();
    admin.message(session, "go").await;
    let completion = admin.turn(session, turn).await;
    completion["text"].as_str().unwrap_or_default().to_owned()
}

/// The processes in containers: those with another list of processes than this one.
fn container_processes() -> Vec<u32> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace("self").unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| namespace(&pid.to_string()).is_some_and(|other| other != own))
        .collect()
}

/// The processes of this server's containers whose environment or memory has a text.
fn processes_with(server: &Server, text: &str) -> Vec<String> {
    let home = server.home().to_str().unwrap().to_owned();
    let is_ours = |pid: &u32| {
        let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let name = Path::new(&home)
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        mounts.contains(&name)
    };
    let pids: Vec<u32> = container_processes().into_iter().filter(is_ours).collect();
    assert!(!pids.is_empty(), "no container of this server was found");
    let mut found = Vec::new();
    for pid in pids {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment
            .windows(text.len())
            .any(|part| part == text.as_bytes())
        {
            found.push(format!("environment of {pid} {name}"));
        }
        if memory_has(pid, text) {
            found.push(format!("memory of {pid} {name}"));
        }
    }
    found
}

/// Whether the writable memory of a process has a text; `grep` is faster than this program.
fn memory_has(pid: u32, text: &str) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(mut memory) = std::fs::File::open(format!("/proc/{pid}/mem")) else {
        return false;
    };
    let mut grep = Command::new("grep")
        // Zeros end lines: memory that was never used would be one long line.
        .args(["-a", "-z", "-c", "-F", text])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = grep.stdin.take().unwrap();
    let mut buffer = vec![0; 4 << 20];
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        if !rest.starts_with("rw") || rest.ends_with("[vvar]") {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (mut at, end) = (number(start), number(end));
        while at < end && memory.seek(SeekFrom::Start(at)).is_ok() {
            let length = usize::try_from(end - at).unwrap().min(buffer.len());
            let Ok(read) = memory.read(&mut buffer[..length]) else {
                break;
            };
            if read == 0 || input.write_all(&buffer[..read]).is_err() {
                break;
            }
            at += read as u64;
        }
    }
    drop(input);
    let counted = grep.wait_with_output().unwrap();
    assert!(matches!(counted.status.code(), Some(0 | 1)), "{counted:?}");
    String::from_utf8_lossy(&counted.stdout).trim() != "0"
}

/// What the model got: the keys of all requests.
fn keys_of(llm: &Llm) -> Vec<String> {
    llm.requests()
        .into_iter()
        .map(|request| request.key)
        .collect()
}

fn event_texts(log: &[Value]) -> String {
    log.iter().map(Value::to_string).collect()
}
