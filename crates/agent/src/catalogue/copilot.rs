//! GitHub Copilot CLI, with GitHub's models or those of another provider.

use std::collections::BTreeMap;

use oubliette_model::Level;
use oubliette_wire::{FileFormat, HomeFile};
use serde_json::{Map, Value, json};

use super::{argv, levels, pairs};
use crate::agent::{Agent, McpFile, ModelSetting, OwnTexts, Package, ToolRefresh};
use crate::handshake::McpServerConfig;
use crate::home::HomeLayout;
use crate::restrictions::{RestrictionSettings, Restrictions, denied_names};
use crate::sign_in::{Gateway, GatewayPath, GatewaySetting, LoginCommand, SignInMethods};
use crate::tool_filter::{ToolEnforcement, ToolFilter};

const HOOKS_PATH: &str = ".copilot/hooks/oubliette.json";
const MCP_PATH: &str = ".copilot/mcp-config.json";
/// In the other modes it plans, or decides on everything itself.
const MODE: &str = "https://agentclientprotocol.com/protocol/session-modes#agent";

const SIGN_IN: SignInMethods = SignInMethods {
    needs_credential: true,
    gateway_models: None,
    login_files: &[],
    own_models: None,
    kind_env: &[
        (
            "openai",
            &[("COPILOT_PROVIDER_BASE_URL", "https://api.openai.com/v1")],
        ),
        (
            "anthropic",
            &[
                ("COPILOT_PROVIDER_BASE_URL", "https://api.anthropic.com"),
                ("COPILOT_PROVIDER_TYPE", "anthropic"),
            ],
        ),
    ],
    gateways: &[
        gateway("openai", GatewayPath::AsGiven),
        gateway("anthropic", GatewayPath::EndsWithout("/v1")),
    ],
    login: LoginCommand::Missing(
        "its login belongs to one machine and cannot be kept for containers. Create a fine-grained token \
         with the permission \"Copilot Requests\" at https://github.com/settings/personal-access-tokens, and \
         add it as a credential of kind `github`",
    ),
};

const RESTRICTIONS: RestrictionSettings = RestrictionSettings {
    paths: &[HOOKS_PATH],
    build: restrict,
};

const fn gateway(kind: &'static str, path: GatewayPath) -> Gateway {
    Gateway {
        kind,
        setting: GatewaySetting::Variable("COPILOT_PROVIDER_BASE_URL"),
        path,
    }
}

pub(super) fn row() -> Agent {
    Agent {
        about: "GitHub Copilot CLI".to_owned(),
        env: pairs(&[("COPILOT_AUTO_UPDATE", "false")]),
        // Not `true`, with which it also runs hooks of the workspace.
        env_by_autonomy: BTreeMap::from([(
            "COPILOT_ALLOW_ALL".to_owned(),
            levels(["0", "0", "0", "1"]),
        )]),
        package: Some(Package {
            npm: "@github/copilot",
            version: "1.0.102",
            program: "copilot",
            binary: Some("../copilot-linux-{arch}/copilot"),
            unpack_variable: Some("COPILOT_CACHE_HOME"),
        }),
        credentials: pairs(&[
            ("github", "COPILOT_GITHUB_TOKEN"),
            ("openai", "COPILOT_PROVIDER_API_KEY"),
            ("anthropic", "COPILOT_PROVIDER_API_KEY"),
        ]),
        sign_in: SIGN_IN,
        model_setting: ModelSetting::Variable("COPILOT_MODEL"),
        modes: Some(levels([MODE, MODE, MODE, MODE])),
        tool_enforcement: ToolEnforcement::Hooks,
        restrictions: RESTRICTIONS,
        own_tools: &["oubliette-*"],
        home: HomeLayout {
            private: &[".copilot"],
            copied: &[
                ".copilot/settings.json",
                ".copilot/copilot-instructions.md",
                MCP_PATH,
                ".copilot/agents",
                ".copilot/skills",
            ],
            ..HomeLayout::default()
        },
        // It takes servers on the network only over ACP.
        mcp_file: Some(McpFile {
            path: MCP_PATH,
            content: mcp_servers,
        }),
        own_texts: Some(OwnTexts {
            notice: "Info: ",
            failure: "Error: ",
        }),
        reports_totals: true,
        writes_failure_reason: true,
        tool_refresh: ToolRefresh::Notified,
        ..Agent::from_command(
            "copilot",
            argv(&["copilot", "--acp", "--allow-all-mcp-server-instructions"]),
        )
    }
}

fn mcp_servers(servers: &[McpServerConfig]) -> Value {
    let server = |server: &McpServerConfig| {
        let env = server.env.iter();
        let env = env.map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        let entry = json!({
            "type": "local",
            "command": server.command,
            "args": server.args,
            "env": env.collect::<Map<_, _>>(),
            "tools": ["*"],
        });
        (server.name.clone(), entry)
    };
    let servers: Map<String, Value> = servers.iter().map(server).collect();
    json!({ "mcpServers": servers })
}

fn restrict(_: Level, tools: &ToolFilter) -> Restrictions {
    let Some(matcher) = denied_names(tools) else {
        return Restrictions::default();
    };
    let decision = json!({
        "permissionDecision": "deny",
        "permissionDecisionReason": "The session may not use this tool.",
    });
    let hook =
        json!({ "type": "command", "matcher": matcher, "bash": format!("echo '{decision}'") });
    let hooks = json!({ "version": 1, "hooks": { "preToolUse": [hook] } });
    Restrictions {
        files: vec![HomeFile::new(
            HOOKS_PATH,
            FileFormat::Whole,
            hooks.to_string(),
        )],
        ..Restrictions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_in_a_file_with_their_keys() {
        let server = McpServerConfig {
            name: "oubliette".to_owned(),
            command: "/mcp/client".to_owned(),
            args: vec!["mcp".to_owned()],
            env: vec![("KEY".to_owned(), "k".to_owned())],
        };
        let expected = json!({ "mcpServers": { "oubliette": {
            "type": "local", "command": "/mcp/client", "args": ["mcp"], "env": { "KEY": "k" },
            "tools": ["*"],
        } } });
        assert_eq!(mcp_servers(&[server]), expected);
    }
}
