//! Real agents: which of them the environment wants tested, where `tests/install` put them, and
//! how each is told to use the model of these tests.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::Llm;
use crate::wanted::wanted;

const VARIABLE: &str = "OUBLIETTE_TEST_AGENTS";
const KNOWN: [&str; 2] = ["opencode", "droid"];

/// The directory of an agent, with its program at `bin/NAME`. None, with a word about it, if the
/// environment does not name the agent; one that it names must be there, at the version that is
/// pinned now.
pub fn agent(name: &str) -> Option<PathBuf> {
    if !wanted(VARIABLE, &KNOWN, name) {
        return None;
    }
    let pinned: Vec<u8> = ["package.json", "package-lock.json"]
        .iter()
        .flat_map(|file| std::fs::read(tests().join("agents").join(file)).unwrap())
        .collect();
    let there = installed();
    let record = std::fs::read(there.join("agents.installed"));
    assert!(
        record.is_ok_and(|record| record == pinned),
        "{VARIABLE} names {name}, which is missing or not as it is pinned; run tests/install"
    );
    Some(there.join(name))
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
    pub fn of(name: &str, llm: &Llm) -> Self {
        match name {
            "opencode" => opencode(llm),
            "droid" => droid(llm),
            _ => panic!("no setup for {name}; known are {}", KNOWN.join(", ")),
        }
    }

    /// Writes the files below a home.
    pub fn write(&self, home: &Path) {
        for (path, content) in &self.files {
            let path = home.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }
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
