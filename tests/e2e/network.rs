//! Containers with the network `policy`: what they reach through the gate, what they cannot reach, and what
//! happens when a part of it dies.

mod bounds;
mod clients;
mod defaults;
mod egress;
mod faults;
mod policies;
mod question_faults;
mod questions;
mod refusals;

use std::path::Path;

use serde_json::{Value, json};
use support::network::{NameServer, loopback_address};
use support::{Modern, Server, server_with};

/// Unsets what tells programs about the proxy.
const NO_PROXY: &str =
    "unset http_proxy https_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY;";

/// A server, its admin, and a project with the network `policy` and this policy.
async fn project_with(
    names: &NameServer,
    runtime: &str,
    policy: Value,
) -> (Server, Modern, String) {
    let server = server_with(runtime, &names.config()).await;
    let admin = server.admin();
    let project = policy_project(&admin, "one", policy).await;
    (server, admin, project)
}

async fn policy_project(admin: &Modern, name: &str, policy: Value) -> String {
    let made = json!({ "name": name, "network": "policy", "network_policy": policy });
    let made = admin.call("project_create", made).await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

/// Runs a line of shell that must succeed; its output.
async fn run(admin: &Modern, project: &str, line: &str) -> String {
    let ran = admin.exec(project, line).await;
    assert_eq!(ran["exit_code"], 0, "{line}: {ran}");
    ran["stdout"].as_str().unwrap().to_owned()
}

/// The status that the proxy replies to a request for an address with.
async fn proxy_status(admin: &Modern, project: &str, url: &str) -> String {
    let line = format!(
        "curl -g -s -m 40 -o /dev/null -w '%{{http_code}} %{{http_connect}}' -x http://127.0.0.1:3128 \
         --noproxy '' '{url}'"
    );
    let ran = admin.exec(project, line).await;
    ran["stdout"].as_str().unwrap().to_owned()
}

/// The entries of the network log that have this event, newest first.
async fn log_of(admin: &Modern, project: &str, event: &str) -> Vec<Value> {
    let log = admin
        .call("network_log", json!({ "project_id": project }))
        .await;
    let entries = log.ok()["entries"].as_array().unwrap().clone();
    entries
        .into_iter()
        .filter(|entry| entry["event"] == event)
        .collect()
}

/// The process of the gate of a data directory.
pub(super) fn gate_pid(home: &Path) -> Option<u32> {
    let home = home.to_str().unwrap();
    let is_gate = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        let words: Vec<&str> = command.split('\0').collect();
        words.get(1) == Some(&"gate") && words.get(2) == Some(&home)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_gate).min()
}
