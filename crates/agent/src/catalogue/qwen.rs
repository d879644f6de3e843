//! Qwen Code.

use oubliette_model::Level;
use oubliette_wire::{AGENT_INSTRUCTIONS, FileFormat, HomeFile};
use serde_json::{Map, Value, json};

use super::{argv, levels, pairs};
use crate::agent::{Agent, ModelSetting, Package, ToolRefresh};
use crate::home::HomeLayout;
use crate::restrictions::{RestrictionSettings, Restrictions, denying_hook};
use crate::sign_in::{Gateway, GatewayPath, GatewaySetting, LoginCommand, SignInMethods};
use crate::tool_filter::{ToolEnforcement, ToolFilter};

/// Settings that neither those of the user nor those of the workspace override.
const SETTINGS_PATH: &str = ".qwen/oubliette.json";

const SIGN_IN: SignInMethods = SignInMethods {
    needs_credential: true,
    gateway_models: None,
    login_files: &[],
    own_models: None,
    kind_env: &[(
        "openai",
        &[("OPENAI_BASE_URL", "https://api.openai.com/v1")],
    )],
    gateways: &[Gateway {
        kind: "openai",
        setting: GatewaySetting::Variable("OPENAI_BASE_URL"),
        path: GatewayPath::AsGiven,
    }],
    login: LoginCommand::Missing(
        "it signs in with a key of a provider that speaks OpenAI's protocol: add a credential of kind \
         `openai`, with `--base-url` for another provider than OpenAI",
    ),
};

const RESTRICTIONS: RestrictionSettings = RestrictionSettings {
    paths: &[SETTINGS_PATH],
    build: restrict,
};

pub(super) fn row() -> Agent {
    let settings = json!({
        "general": { "enableAutoUpdate": false },
        "privacy": { "usageStatisticsEnabled": false },
        // Further calls of the model, whose results are not shown.
        "ui": { "enableFollowupSuggestions": false },
        "memory": {
            "enableManagedAutoMemory": false,
            "enableManagedAutoDream": false,
            "enableAutoSkill": false,
        },
        // Otherwise its model has to search for the tools of MCP servers, and is not told of them.
        "tools": { "toolSearch": { "enabled": false } },
    });
    Agent {
        about: "Qwen Code".to_owned(),
        env: pairs(&[("QWEN_CODE_SUPPRESS_YOLO_WARNING", "1")]),
        home_env: &[("QWEN_CODE_SYSTEM_SETTINGS_PATH", SETTINGS_PATH)],
        package: Some(Package {
            npm: "@qwen-code/qwen-code",
            version: "0.24.4",
            program: "qwen",
            binary: None,
            unpack_variable: None,
        }),
        credentials: pairs(&[("openai", "OPENAI_API_KEY")]),
        sign_in: SIGN_IN,
        model_setting: ModelSetting::Variable("OPENAI_MODEL"),
        modes: Some(levels(["default", "default", "default", "yolo"])),
        tool_enforcement: ToolEnforcement::Hooks,
        restrictions: RESTRICTIONS,
        own_tools: &["mcp__oubliette__*"],
        home: HomeLayout {
            private: &[".qwen"],
            copied: &[
                ".qwen/settings.json",
                ".qwen/QWEN.md",
                ".qwen/agents",
                ".qwen/commands",
                ".qwen/skills",
            ],
            leftovers: &[],
            files: vec![
                HomeFile::new(SETTINGS_PATH, FileFormat::Json, settings.to_string()),
                // It does not tell its model the instructions of MCP servers.
                HomeFile::new(
                    ".qwen/QWEN.md",
                    FileFormat::Text,
                    format!("## MCP server `oubliette`\n\n{AGENT_INSTRUCTIONS}"),
                ),
            ],
        },
        tool_refresh: ToolRefresh::Restart,
        plans_by_tool: true,
        ..Agent::from_command("qwen", argv(&["qwen", "--acp"]))
    }
}

/// Its mode asks before edits, commands and tools of MCP servers; rules make it ask before it reads.
fn restrict(level: Level, tools: &ToolFilter) -> Restrictions {
    let mut settings = Map::new();
    if level == Level::Off {
        let asked = ["Read", "Edit", "Bash", "WebFetch", "Agent", "Skill"];
        settings.insert("permissions".to_owned(), json!({ "ask": asked }));
    }
    if let Some(hook) = denying_hook(tools) {
        settings.insert("disableAllHooks".to_owned(), Value::Bool(false));
        settings.insert("hooks".to_owned(), json!({ "PreToolUse": [hook] }));
    }
    if settings.is_empty() {
        return Restrictions::default();
    }
    let settings = Value::Object(settings).to_string();
    Restrictions {
        files: vec![HomeFile::new(SETTINGS_PATH, FileFormat::Json, settings)],
        ..Restrictions::default()
    }
}
