//! Claude Code, through its adapter.

use oubliette_model::Level;
use serde_json::{Value, json};

use super::{argv, levels, pairs};
use crate::agent::{Agent, ModelSetting, Package, ToolRefresh};
use crate::home::HomeLayout;
use crate::restrictions::{RestrictionSettings, Restrictions, denying_hook, hook};
use crate::sign_in::{Gateway, GatewayPath, GatewaySetting, LoginCommand, SignInMethods};
use crate::signals::claude_session_meta;
use crate::tool_filter::{ToolEnforcement, ToolFilter};

const SIGN_IN: SignInMethods = SignInMethods {
    needs_credential: true,
    gateway_models: None,
    own_models: None,
    kind_env: &[],
    login_files: &[],
    gateways: &[gateway("anthropic"), gateway("claude_oauth")],
    login: LoginCommand::ShowsToken {
        arguments: &["--cli", "setup-token"],
        kind: "claude_oauth",
        prefix: "sk-ant-oat",
    },
};

const RESTRICTIONS: RestrictionSettings = RestrictionSettings {
    paths: &[],
    build: restrict,
};

const fn gateway(kind: &'static str) -> Gateway {
    Gateway {
        kind,
        setting: GatewaySetting::Variable("ANTHROPIC_BASE_URL"),
        path: GatewayPath::EndsWithout("/v1"),
    }
}

pub(super) fn row() -> Agent {
    Agent {
        about: "Claude Code".to_owned(),
        env: pairs(&[
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            // A call of the main model after each turn, for a suggestion that is not shown.
            ("CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION", "false"),
            // About 20 seconds; its default takes three minutes to report a wrong key.
            ("CLAUDE_CODE_MAX_RETRIES", "5"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("ENABLE_TOOL_SEARCH", "false"),
            // As root it offers `bypassPermissions` only with this variable.
            ("IS_SANDBOX", "1"),
        ]),
        package: Some(Package {
            npm: "@agentclientprotocol/claude-agent-acp",
            version: "0.99.1",
            program: "claude-agent-acp",
            binary: None,
            unpack_variable: None,
        }),
        credentials: pairs(&[
            ("anthropic", "ANTHROPIC_API_KEY"),
            ("claude_oauth", "CLAUDE_CODE_OAUTH_TOKEN"),
        ]),
        sign_in: SIGN_IN,
        model_setting: ModelSetting::Variable("ANTHROPIC_MODEL"),
        modes: Some(levels([
            "default",
            "default",
            // `acceptEdits` also allows commands.
            "default",
            "bypassPermissions",
        ])),
        tool_enforcement: ToolEnforcement::Hooks,
        restrictions: RESTRICTIONS,
        own_tools: &["mcp__oubliette__*"],
        home: HomeLayout {
            private: &[".claude", ".claude.json"],
            copied: &[
                ".claude/settings.json",
                ".claude/CLAUDE.md",
                ".claude/agents",
                ".claude/commands",
                ".claude/skills",
            ],
            ..HomeLayout::default()
        },
        session_meta: claude_session_meta(),
        writes_failure_reason: true,
        tool_refresh: ToolRefresh::Notified,
        ..Agent::from_command("claude", argv(&["claude-agent-acp"]))
    }
}

/// Its default mode does not ask before it reads; a hook makes it ask before everything.
fn restrict(level: Level, tools: &ToolFilter) -> Restrictions {
    let mut hooks: Vec<Value> = denying_hook(tools).into_iter().collect();
    if level == Level::Off {
        let decision = json!({ "hookSpecificOutput": {
            "hookEventName": "PreToolUse", "permissionDecision": "ask",
        } });
        hooks.push(hook(".*", &format!("echo '{decision}'")));
    }
    if hooks.is_empty() {
        return Restrictions::default();
    }
    // These settings override those of the workspace.
    let settings = json!({ "disableAllHooks": false, "hooks": { "PreToolUse": hooks } });
    Restrictions {
        session_meta: json!({ "claudeCode": { "options": { "settings": settings } } }),
        ..Restrictions::default()
    }
}
