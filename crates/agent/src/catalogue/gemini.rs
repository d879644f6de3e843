//! Gemini CLI.

use oubliette_model::Level;
use oubliette_wire::{FileFormat, HomeFile};
use serde_json::json;

use super::{argv, levels, pairs};
use crate::agent::{Agent, Package, ToolRefresh};
use crate::home::HomeLayout;
use crate::restrictions::{RestrictionSettings, Restrictions};
use crate::sign_in::{Gateway, GatewayPath, GatewaySetting, LoginCommand, SignInMethods};
use crate::tool_filter::{ToolEnforcement, ToolFilter};

const POLICIES_PATH: &str = ".gemini/policies/oubliette.toml";

const SIGN_IN: SignInMethods = SignInMethods {
    needs_credential: true,
    gateway_models: None,
    own_models: None,
    kind_env: &[],
    login_files: &[],
    gateways: &[gateway("gemini"), gateway("google")],
    login: LoginCommand::Missing(
        "it signs in with a key. Create one at https://aistudio.google.com/apikey",
    ),
};

const RESTRICTIONS: RestrictionSettings = RestrictionSettings {
    paths: &[POLICIES_PATH],
    build: restrict,
};

const fn gateway(kind: &'static str) -> Gateway {
    Gateway {
        kind,
        setting: GatewaySetting::Variable("GOOGLE_GEMINI_BASE_URL"),
        path: GatewayPath::EndsWithout("/v1beta"),
    }
}

pub(super) fn row() -> Agent {
    let settings = r#"{"security":{"auth":{"selectedType":"gemini-api-key"}},"general":{"enableAutoUpdate":false},"privacy":{"usageStatisticsEnabled":false}}"#;
    Agent {
        about: "Gemini CLI".to_owned(),
        // Without it the agent starts no MCP servers and reports no error.
        env: pairs(&[("GEMINI_CLI_TRUST_WORKSPACE", "true")]),
        home: HomeLayout {
            private: &[".gemini"],
            copied: &[
                ".gemini/settings.json",
                ".gemini/GEMINI.md",
                ".gemini/commands",
                ".gemini/extensions",
            ],
            leftovers: &[],
            files: vec![HomeFile::new(
                ".gemini/settings.json",
                FileFormat::Json,
                settings,
            )],
        },
        package: Some(Package {
            npm: "@google/gemini-cli",
            version: "0.61.0",
            program: "gemini",
            binary: None,
            unpack_variable: None,
        }),
        credentials: pairs(&[("gemini", "GEMINI_API_KEY"), ("google", "GEMINI_API_KEY")]),
        sign_in: SIGN_IN,
        modes: Some(levels(["default", "default", "default", "yolo"])),
        tool_enforcement: ToolEnforcement::Policies {
            server_prefix: "mcp_",
        },
        restrictions: RESTRICTIONS,
        own_tools: &["* (oubliette MCP Server)"],
        needs_tokens: true,
        plans_by_tool: true,
        tool_refresh: ToolRefresh::Slow,
        ..Agent::from_command("gemini", argv(&["gemini", "--acp"]))
    }
}

/// Its own policies come after these, also those of its mode.
fn restrict(level: Level, tools: &ToolFilter) -> Restrictions {
    let permitted = match level {
        // The server decides on each request.
        Level::Off | Level::Low | Level::Medium => "ask_user",
        Level::High => "allow",
    };
    let all = ["*".to_owned()];
    let mut rules = Vec::new();
    if !tools.allowed.is_empty() {
        rules.push((&all[..], "deny", 900));
        rules.push((&tools.allowed[..], permitted, 901));
    } else if level == Level::Off {
        rules.push((&all[..], "ask_user", 900));
    }
    if !tools.disallowed.is_empty() {
        rules.push((&tools.disallowed[..], "deny", 902));
    }
    if rules.is_empty() {
        return Restrictions::default();
    }
    let rules = rules.iter().map(|(names, decision, priority)| {
        let names = json!(names);
        format!("[[rule]]\ntoolName = {names}\ndecision = \"{decision}\"\npriority = {priority}\n")
    });
    let content: String = rules.collect();
    Restrictions {
        files: vec![HomeFile::new(POLICIES_PATH, FileFormat::Text, content)],
        ..Restrictions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_filter::tests::tools;

    #[test]
    fn policies_deny_what_is_not_allowed() {
        let built = restrict(Level::Low, &tools(&["read_file"], &["glob"]));
        let text = &built.files[0].content;
        for (names, decision) in [
            (r#"["*"]"#, "deny"),
            (r#"["read_file"]"#, "ask_user"),
            (r#"["glob"]"#, "deny"),
        ] {
            let rule = format!("toolName = {names}\ndecision = \"{decision}\"");
            assert!(text.contains(&rule), "{text}");
        }
    }
}
