//! What `oubliette doctor` asks the running server: its credentials, agents and containers, as it sees them.

use serde_json::{Map, Value};

use super::access::Access;
use super::client::Client;
use crate::doctor::Finding;
use crate::executor::block_on;
use crate::failure::Failure;

/// Of those whose containers have a network past the policy.
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
            project_networks(&rows(&options, "runtimes"), &rows(&projects, "projects")),
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

/// Says where no network `policy` is to be had, and names the projects whose containers go past it.
fn project_networks(runtimes: &[Value], projects: &[Value]) -> Vec<Finding> {
    let has_policy = |runtime: &Value| runtime["networks"]["policy"] == true;
    let mut findings = Vec::new();
    if let Some(runtime) = runtimes.first().filter(|runtime| !has_policy(runtime)) {
        findings.push(Finding::warning(format!(
            "the runtime `{}` has no network `policy` here: containers reach other hosts, and no `network_policy` applies to \
             them; `oubliette project update NAME --network none` takes a project's network away",
            text(runtime, "name")
        )));
    }
    let names_with = |network: &str| {
        let with = projects.iter().filter(|it| it["network"] == network);
        let names: Vec<&str> = with.map(|project| text(project, "name")).collect();
        (!names.is_empty()).then(|| shorten(&names))
    };
    if let Some(names) = names_with("host") {
        findings.push(Finding::warning(format!(
            "containers of {names} have the network `host` and reach every service on this machine's loopback address; \
             `oubliette project update NAME --network policy` confines a project to what its policy allows"
        )));
    }
    if runtimes.first().is_some_and(has_policy)
        && let Some(names) = names_with("bridge")
    {
        findings.push(Finding::hint(format!(
            "containers of {names} have the network `bridge`, which no `network_policy` applies to; `oubliette project \
             update NAME --network policy` confines a project to what its policy allows"
        )));
    }
    findings
}

fn shorten(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMED_PROJECTS).copied().collect();
    let others = match names.len() - shown.len() {
        0 => String::new(),
        count => format!(" and {count} others"),
    };
    format!("{}{others}", shown.join(", "))
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
