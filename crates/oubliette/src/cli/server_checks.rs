//! What `oubliette doctor` asks the running server: its credentials, agents and containers, as it sees them.

use serde_json::{Map, Value};

use super::access::Access;
use super::client::Client;
use crate::doctor::Finding;
use crate::executor::block_on;
use crate::failure::Failure;

/// Of those whose containers have the network `host`.
const MAX_NAMED_PROJECTS: usize = 10;

/// The findings about the running server, by what was checked.
pub(super) fn run(access: &Access) -> Vec<(&'static str, Vec<Finding>)> {
    match block_on(ask(access)).flatten() {
        Ok(found) => found,
        Err(Failure::Failed(sentence)) => vec![("server", vec![Finding::bad(sentence)])],
        Err(_) => Vec::new(),
    }
}

async fn ask(access: &Access) -> Result<Vec<(&'static str, Vec<Finding>)>, Failure> {
    let client = Client::reconnect(&access.running_only()).await?;
    let options = client.call("project_options", Map::new()).await?;
    let credentials = client.call("credential_list", Map::new()).await?;
    let projects = client.call("project_list", Map::new()).await?;
    client.close().await;
    let rows = |result: &Map<String, Value>, name: &str| {
        let rows = result.get(name).and_then(Value::as_array).cloned();
        rows.unwrap_or_default()
    };
    let configured = options.get("runtime").and_then(Value::as_str);
    let configured = configured.unwrap_or_default();
    Ok(vec![
        (
            "containers",
            containers(configured, &rows(&options, "runtimes")),
        ),
        (
            "project_networks",
            host_networks(&rows(&options, "runtimes"), &rows(&projects, "projects")),
        ),
        ("agents", agents(&rows(&options, "agents"))),
        (
            "credentials",
            credentials_of(&rows(&credentials, "credentials")),
        ),
    ])
}

fn text<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

fn containers(configured: &str, runtimes: &[Value]) -> Vec<Finding> {
    if configured == "none" {
        return vec![Finding::hint(
            "containers are disabled by `runtime = \"none\"`",
        )];
    }
    let Some(runtime) = runtimes.first() else {
        return vec![Finding::warning(
            "the server cannot create containers; the lines about runtimes above say what is missing, and the server \
             tries again by itself",
        )];
    };
    let name = text(runtime, "name");
    vec![Finding::good(format!(
        "the server creates containers with the runtime `{name}`"
    ))]
}

/// Names the projects whose containers share the network of this machine.
fn host_networks(runtimes: &[Value], projects: &[Value]) -> Vec<Finding> {
    let networks = runtimes.first().map(|runtime| &runtime["networks"]);
    let Some(networks) = networks.filter(|networks| networks["host"] == true) else {
        return Vec::new();
    };
    let is_default = networks["bridge"] == false;
    let names: Vec<&str> = projects
        .iter()
        .filter(|project| {
            project["network"] == "host" || (project["network"].is_null() && is_default)
        })
        .map(|project| text(project, "name"))
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let shown = names.iter().take(MAX_NAMED_PROJECTS).copied();
    let shown: Vec<&str> = shown.collect();
    let others = match names.len() - shown.len() {
        0 => String::new(),
        count => format!(" and {count} others"),
    };
    vec![Finding::hint(format!(
        "containers of {}{others} have the network `host` and reach every service on this machine's loopback address; \
         `oubliette project update NAME --network policy` confines a project to what its policy allows",
        shown.join(", ")
    ))]
}

fn agents(agents: &[Value]) -> Vec<Finding> {
    let installed: Vec<&str> = agents
        .iter()
        .filter(|agent| agent["installed"] == true)
        .map(|agent| text(agent, "name"))
        .collect();
    let has_model = installed.iter().any(|name| *name != "demo");
    let mut findings = vec![Finding::good(format!(
        "agents ready to use: {}",
        installed.join(", ")
    ))];
    if !has_model {
        findings.push(Finding::hint(
            "no agent with a model is installed; for example `oubliette agent install claude`, and `oubliette agent \
             list` shows the others",
        ));
    }
    findings
}

fn credentials_of(credentials: &[Value]) -> Vec<Finding> {
    let describe = |credential: &Value| {
        let (name, kind) = (text(credential, "name"), text(credential, "kind"));
        match credential["problem"].as_str() {
            None => Finding::good(format!(
                "credential `{name}` ({kind}) can be read by the server"
            )),
            Some(problem) => Finding::bad(format!(
                "credential `{name}` ({kind}) cannot be read by the server: {problem}"
            )),
        }
    };
    credentials.iter().map(describe).collect()
}
