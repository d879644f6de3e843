//! Real agents, as `tests/install` installs them: how each is configured to use the model of these
//! tests, and servers that have them.

use std::fs;
use std::path::{Path, PathBuf};

use oubliette_agent::{Agent, catalogue};
use serde_json::{Value, json};

use crate::{Llm, Server, ServerOptions, docker};

pub(crate) const VARIABLE: &str = "OUBLIETTE_TEST_AGENTS";
/// The agents with which everything is tested.
pub const KNOWN: [&str; 5] = ["claude", "codex", "droid", "gemini", "opencode"];
/// Those whose capabilities and levels are tested.
pub const OTHERS: [&str; 2] = ["copilot", "qwen"];
/// All that the environment can name.
pub(crate) const ALL: [&str; 7] = [
    "claude", "codex", "copilot", "droid", "gemini", "opencode", "qwen",
];

/// The value of every credential.
pub const KEY: &str = "sk-mock-0123456789abcdef";

/// The row of the product's catalogue.
pub fn row(name: &str) -> Agent {
    let row = catalogue().into_iter().find(|row| row.name == name);
    row.unwrap_or_else(|| panic!("{name} is not in the catalogue"))
}

/// The directory of an agent, as the product installs it.
///
/// # Panics
/// If the agent is not installed, or not at the version that is pinned now.
pub fn directory(name: &str) -> PathBuf {
    let directory = installed().join(name);
    let manifest = fs::read_to_string(directory.join("package.json")).unwrap_or_default();
    let manifest: Value = serde_json::from_str(&manifest).unwrap_or_default();
    let package = row(name).package.unwrap();
    assert!(
        manifest["dependencies"][package.npm] == package.version,
        "{VARIABLE} names {name}, which is missing or not as it is pinned; run tests/install"
    );
    directory
}

/// What an agent needs besides its row of the catalogue to use a model on loopback: no account, no
/// update, no question.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// The model that it is told to use; its default if absent.
    pub model: Option<&'static str>,
    /// Another model that it can be told to use, and what the provider calls that.
    pub other_model: (&'static str, &'static str),
    /// The kind of its credential, and the address of the model.
    pub credential: Option<(&'static str, String)>,
    /// Files below its home.
    pub files: Vec<(&'static str, String)>,
    pub env: Vec<(&'static str, String)>,
}

impl Setup {
    /// The settings of a known agent.
    pub fn for_agent(name: &str, llm: &Llm) -> Self {
        match name {
            "claude" => claude(llm),
            "codex" => codex(llm),
            "copilot" => copilot(llm),
            "droid" => droid(llm),
            "gemini" => gemini(llm),
            "opencode" => opencode(llm),
            "qwen" => qwen(llm),
            _ => panic!("no setup for {name}; known are {}", ALL.join(", ")),
        }
    }

    /// The same as sections of a server's configuration.
    fn section(&self, name: &str) -> String {
        let closed_proxy = "http://127.0.0.1:9";
        // opencode connects to a server of its own on loopback.
        let direct = "localhost,127.0.0.1";
        let own = self.env.iter().map(|(name, value)| (*name, value.as_str()));
        let mut text = format!("[agents.{name}.env]\n");
        // The agent can connect only to the model, also where the container has a network.
        for (name, value) in own.chain([
            ("HTTP_PROXY", closed_proxy),
            ("HTTPS_PROXY", closed_proxy),
            ("NO_PROXY", direct),
        ]) {
            text += &format!("{name} = {}\n", json!(value));
        }
        text += &format!("[agents.{name}.files]\n");
        for (path, content) in &self.files {
            text += &format!("{} = {}\n", json!(path), json!(content));
        }
        if let Some((kind, base_url)) = &self.credential {
            text += &format!(
                "[credentials.{name}]\nkind = \"{kind}\"\nvalue = \"{KEY}\"\nbase_url = \"{base_url}\"\n"
            );
        }
        text
    }

    /// Writes the files below a home, with those of the catalogue.
    pub fn write(&self, name: &str, home: &Path) {
        let row = row(name);
        let write = |path: &str, content: &str| {
            let path = home.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        for (path, content) in &self.files {
            write(path, content);
        }
        for file in &row.home.files {
            let given = fs::read_to_string(home.join(&file.path)).unwrap_or_default();
            write(&file.path, &file.merge(&given));
        }
    }

    /// What `project_create` takes for a project of the agent.
    pub fn project(&self, agent: &str) -> Value {
        let mut project = json!({ "name": agent, "agent": agent });
        if let Some(model) = self.model {
            project["model"] = json!(model);
        }
        if self.credential.is_some() {
            project["credential_refs"] = json!([agent]);
        }
        project
    }
}

/// A server whose containers have an agent as `oubliette agent install` puts it there, and the
/// model that the agent uses.
pub fn server_with_agent(name: &str, runtime: &str) -> (Server, Llm) {
    server_with_agents(&[name], runtime)
}

/// The same with several agents.
pub fn server_with_agents(names: &[&str], runtime: &str) -> (Server, Llm) {
    server_with(names, runtime, "")
}

/// The same with more settings.
pub fn server_with(names: &[&str], runtime: &str, settings: &str) -> (Server, Llm) {
    let (llm, image) = match runtime {
        "docker" => (Llm::start(), docker::userland()),
        _ => (Llm::start(), ""),
    };
    let mut config = format!("runtime = \"{runtime}\"\n{settings}");
    for name in names {
        directory(name);
        config += &Setup::for_agent(name, &llm).section(name);
    }
    config += &allow_model(&llm);
    // For agents that count their tokens and nothing else.
    config += "[models.\"custom:Mock-0\"]\ninput_usd = 1.0\noutput_usd = 2.0\n";
    if !image.is_empty() {
        config += &format!("[container_types.base]\nimage = \"{image}\"\n");
    }
    let server = Server::start_with(ServerOptions {
        config,
        ..ServerOptions::default()
    });
    // Hundreds of megabytes, so rather a second name for the directory.
    std::os::unix::fs::symlink(installed(), server.home().join("agents")).unwrap();
    (server, llm)
}

/// The section of a configuration by which containers have the model at its address of this machine.
fn allow_model(llm: &Llm) -> String {
    format!("[network]\nallow = [\"{}\"]\n", llm.address())
}

/// A server whose containers have an agent that knows nothing of the model of these tests.
pub fn server_without_setup(name: &str) -> (Server, Llm) {
    directory(name);
    let llm = Llm::start();
    let config = format!(
        "runtime = \"sandbox\"\n{}{}",
        Setup::default().section(name),
        allow_model(&llm)
    );
    let server = Server::start_with(ServerOptions {
        config,
        ..ServerOptions::default()
    });
    std::os::unix::fs::symlink(installed(), server.home().join("agents")).unwrap();
    (server, llm)
}

/// Creates a project of an agent; its id.
pub async fn project(server: &Server, agent: &str, llm: &Llm, more: Value) -> String {
    let mut project = Setup::for_agent(agent, llm).project(agent);
    for (name, value) in more.as_object().into_iter().flatten() {
        project[name] = value.clone();
    }
    let made = server.admin().call("project_create", project).await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

fn claude(llm: &Llm) -> Setup {
    Setup {
        other_model: ("claude-sonnet-4-6", "claude-sonnet-4-6"),
        credential: Some(("anthropic", llm.base())),
        env: vec![("ANTHROPIC_BASE_URL", llm.base())],
        ..Setup::default()
    }
}

fn codex(llm: &Llm) -> Setup {
    let config = format!("openai_base_url = {}\n", json!(llm.v1()));
    Setup {
        other_model: ("gpt-5.5", "gpt-5.5"),
        credential: Some(("openai", llm.v1())),
        files: vec![(".codex/config.toml", config)],
        ..Setup::default()
    }
}

fn copilot(llm: &Llm) -> Setup {
    Setup {
        model: Some("mock-model"),
        other_model: ("other-model", "other-model"),
        credential: Some(("openai", llm.v1())),
        env: vec![
            ("COPILOT_OFFLINE", "true".to_owned()),
            ("COPILOT_PROVIDER_BASE_URL", llm.v1()),
        ],
        ..Setup::default()
    }
}

fn qwen(llm: &Llm) -> Setup {
    Setup {
        // It sends pictures only to models that it knows to take them.
        model: Some("qwen3-vl-plus"),
        other_model: ("qwen3-vl-flash", "qwen3-vl-flash"),
        credential: Some(("openai", llm.v1())),
        env: vec![("OPENAI_BASE_URL", llm.v1())],
        ..Setup::default()
    }
}

fn gemini(llm: &Llm) -> Setup {
    Setup {
        other_model: ("gemini-2.5-flash", "gemini-2.5-flash"),
        credential: Some(("gemini", llm.base())),
        env: vec![("GOOGLE_GEMINI_BASE_URL", llm.base())],
        ..Setup::default()
    }
}

fn opencode(llm: &Llm) -> Setup {
    let model = json!({
        "name": "Mock",
        "tool_call": true,
        "reasoning": true,
        "attachment": true,
        "modalities": { "input": ["text", "image"], "output": ["text"] },
        "limit": { "context": 128_000, "output": 8192 },
        "cost": { "input": 1, "output": 2 },
    });
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": "Mock",
        "options": { "baseURL": llm.v1(), "apiKey": "sk-mock" },
        "models": { "mock-model": model, "other-model": model },
    });
    let config = json!({
        "autoupdate": false,
        "share": "disabled",
        "model": "mock/mock-model",
        "small_model": "mock/mock-model",
        "enabled_providers": ["mock"],
        "provider": { "mock": provider },
        "permission": { "*": "allow", "external_directory": "allow", "doom_loop": "allow" },
    });
    Setup {
        other_model: ("mock/other-model", "other-model"),
        model: Some("mock/mock-model"),
        files: vec![(".config/opencode/opencode.json", config.to_string())],
        ..Setup::default()
    }
}

fn droid(llm: &Llm) -> Setup {
    let model = |name: &str, shown: &str| {
        json!({
            "model": name,
            "displayName": shown,
            "baseUrl": llm.v1(),
            "apiKey": "sk-mock",
            "provider": "generic-chat-completion-api",
            "maxOutputTokens": 8192,
        "noImageSupport": false,
        "reasoningEffort": "low",
        })
    };
    let settings = json!({
        "sessionDefaultSettings": { "model": "custom:Mock-0", "autonomyMode": "auto-high" },
        "customModels": [model("mock-model", "Mock"), model("other-model", "Other")],
    });
    Setup {
        other_model: ("custom:Other-0", "other-model"),
        model: Some("custom:Mock-0"),
        files: vec![(".factory/settings.json", settings.to_string())],
        env: vec![("FACTORY_AIRGAP_ENABLED", "true".to_owned())],
        ..Setup::default()
    }
}

/// The same rule as in `tests/install`.
fn installed() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
    let installed = target.join("test-agents/agents");
    installed.canonicalize().unwrap_or(installed)
}
