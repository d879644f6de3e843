//! Real agents, as `tests/install` installs them: how each is configured to use the model of these
//! tests, and servers that have one.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::{Llm, Server, ServerOptions, docker};

pub(crate) const VARIABLE: &str = "OUBLIETTE_TEST_AGENTS";
pub(crate) const KNOWN: [&str; 2] = ["opencode", "droid"];

/// The directory of an agent, with its program at `bin/NAME`.
///
/// # Panics
/// If the agent is not installed, or not at the version that is pinned now.
pub fn directory(name: &str) -> PathBuf {
    let pinned: Vec<u8> = ["package.json", "package-lock.json"]
        .iter()
        .flat_map(|file| fs::read(tests().join("agents").join(file)).unwrap())
        .collect();
    let root = installed();
    let record = fs::read(root.join("agents.installed"));
    assert!(
        record.is_ok_and(|record| record == pinned),
        "{VARIABLE} names {name}, which is missing or not as it is pinned; run tests/install"
    );
    root.join(name)
}

/// How an agent is started so that it needs nothing but a model on loopback: no account, no
/// update, no question.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The program's name and its arguments.
    pub command: Vec<&'static str>,
    /// Files below its home.
    pub files: Vec<(&'static str, String)>,
    pub env: Vec<(&'static str, String)>,
}

impl Setup {
    /// The settings of a known agent.
    pub fn for_agent(name: &str, llm: &Llm) -> Self {
        match name {
            "opencode" => opencode(llm),
            "droid" => droid(llm),
            _ => panic!("no setup for {name}; known are {}", KNOWN.join(", ")),
        }
    }

    /// The same as `[agents.NAME]` of a server's configuration.
    fn section(&self, name: &str, llm: &Llm) -> String {
        let closed_proxy = "http://127.0.0.1:9";
        // opencode connects to a server of its own on loopback.
        let direct = format!("localhost,127.0.0.1,{}", llm.ip());
        let own = self.env.iter().map(|(name, value)| (*name, value.as_str()));
        let mut text = format!("[agents.{name}.env]\n");
        // The agent can connect only to the model, also where the container has a network.
        for (name, value) in own.chain([
            ("HTTP_PROXY", closed_proxy),
            ("HTTPS_PROXY", closed_proxy),
            ("NO_PROXY", &direct),
        ]) {
            text += &format!("{name} = {}\n", json!(value));
        }
        text += &format!("[agents.{name}.files]\n");
        for (path, content) in &self.files {
            text += &format!("{} = {}\n", json!(path), json!(content));
        }
        text
    }

    /// Writes the files below a home.
    pub fn write(&self, home: &Path) {
        for (path, content) in &self.files {
            let path = home.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }
}

/// A server whose containers have an agent as `oubliette agent install` puts it there, and the
/// model that the agent uses.
pub fn server_with_agent(name: &str, runtime: &str) -> (Server, Llm) {
    let program = directory(name).join("bin").join(name);
    let (llm, image) = match runtime {
        "docker" => (Llm::start_on(docker::gateway()), docker::userland()),
        _ => (Llm::start(), ""),
    };
    let mut config = format!("runtime = \"{runtime}\"\n");
    config += &Setup::for_agent(name, &llm).section(name, &llm);
    // For agents that count their tokens and nothing else.
    config += "[models.\"custom:Mock-0\"]\ninput_usd = 1.0\noutput_usd = 2.0\n";
    if !image.is_empty() {
        config += &format!("[container_types.base]\nimage = \"{image}\"\n");
    }
    let server = Server::start_with(ServerOptions {
        config,
        ..ServerOptions::default()
    });
    let directory = server.home().join("agents").join(name).join("bin");
    fs::create_dir_all(&directory).unwrap();
    // Hundreds of megabytes, so rather a second name for the file.
    if fs::hard_link(&program, directory.join(name)).is_err() {
        fs::copy(&program, directory.join(name)).unwrap();
    }
    (server, llm)
}

fn opencode(llm: &Llm) -> Setup {
    let model = json!({
        "name": "Mock",
        "tool_call": true,
        "limit": { "context": 128_000, "output": 8192 },
        "cost": { "input": 1, "output": 2 },
    });
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": "Mock",
        "options": { "baseURL": llm.v1(), "apiKey": "sk-mock" },
        "models": { "mock-model": model },
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
        command: vec!["opencode", "acp"],
        files: vec![(".config/opencode/opencode.json", config.to_string())],
        env: vec![
            ("OPENCODE_DISABLE_AUTOUPDATE", "1".to_owned()),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()),
        ],
    }
}

fn droid(llm: &Llm) -> Setup {
    let model = json!({
        "model": "mock-model",
        "displayName": "Mock",
        "baseUrl": llm.v1(),
        "apiKey": "sk-mock",
        "provider": "generic-chat-completion-api",
        "maxOutputTokens": 8192,
    });
    let settings = json!({
        "sessionDefaultSettings": { "model": "custom:Mock-0", "autonomyMode": "auto-high" },
        "customModels": [model],
    });
    Setup {
        command: vec!["droid", "exec", "--output-format", "acp"],
        files: vec![(".factory/settings.json", settings.to_string())],
        env: vec![
            ("FACTORY_AIRGAP_ENABLED", "true".to_owned()),
            ("FACTORY_DROID_AUTO_UPDATE_ENABLED", "false".to_owned()),
        ],
    }
}

fn tests() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The same rule as in `tests/install`.
fn installed() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target
        .unwrap_or_else(|| tests().join("../target"))
        .join("test-agents")
}
