//! OpenCode.

use std::collections::BTreeMap;

use oubliette_model::Secret;
use serde_json::{Map, Value};

use super::{argv, levels, pairs};
use crate::agent::{Agent, Package, ToolRefresh};
use crate::home::HomeLayout;
use crate::sign_in::{
    Gateway, GatewayPath, GatewaySetting, Login, LoginCommand, LoginFile, OwnModels, SignInMethods,
};
use crate::tool_filter::{PermissionRules, ToolEnforcement};

const LOGIN_PATH: &str = ".local/share/opencode/auth.json";
const V1: GatewayPath = GatewayPath::EndsWith("/v1");
const V1_BETA: GatewayPath = GatewayPath::EndsWith("/v1beta");

const SIGN_IN: SignInMethods = SignInMethods {
    needs_credential: false,
    gateway_models: None,
    own_models: Some(OwnModels {
        is_own: |model| {
            let known = ["anthropic", "google", "openai", "opencode", "openrouter"];
            let provider = model.split_once('/').map(|(provider, _)| provider);
            provider.is_some_and(|provider| !known.contains(&provider))
        },
        settings_path: ".config/opencode/opencode.json",
    }),
    kind_env: &[],
    login_files: &[LoginFile {
        kind: "opencode_auth",
        path: LOGIN_PATH,
        settings: &[],
        parse: parse_login,
    }],
    gateways: &[
        gateway(
            "anthropic",
            &["provider", "anthropic", "options", "baseURL"],
            V1,
        ),
        gateway(
            "gemini",
            &["provider", "google", "options", "baseURL"],
            V1_BETA,
        ),
        gateway(
            "google",
            &["provider", "google", "options", "baseURL"],
            V1_BETA,
        ),
        gateway(
            "openai",
            &["provider", "openai", "options", "baseURL"],
            GatewayPath::AsGiven,
        ),
        gateway(
            "openrouter",
            &["provider", "openrouter", "options", "baseURL"],
            GatewayPath::AsGiven,
        ),
        gateway(
            "opencode",
            &["provider", "opencode", "options", "baseURL"],
            GatewayPath::AsGiven,
        ),
    ],
    login: LoginCommand::WritesFile {
        arguments: &["auth", "login"],
        kind: "opencode_auth",
        path: LOGIN_PATH,
    },
};

const fn gateway(
    kind: &'static str,
    fields: &'static [&'static str],
    path: GatewayPath,
) -> Gateway {
    Gateway {
        kind,
        setting: GatewaySetting::JsonVariable("OPENCODE_CONFIG_CONTENT", fields),
        path,
    }
}

pub(super) fn row() -> Agent {
    let ask = r#"{"*":"ask"}"#;
    // It asks for the file itself, too, and the server decides on that.
    let ask_once = r#"{"*":"ask","external_directory":"allow"}"#;
    let allow = r#"{"*":"allow","external_directory":"allow","doom_loop":"allow"}"#;
    Agent {
        about: "OpenCode".to_owned(),
        env: pairs(&[
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
        ]),
        env_by_autonomy: BTreeMap::from([(
            "OPENCODE_PERMISSION".to_owned(),
            levels([ask, ask_once, ask_once, allow]),
        )]),
        // It serves an HTTP API on loopback, which containers with the host's network share.
        random_env: argv(&["OPENCODE_SERVER_PASSWORD"]),
        tool_enforcement: ToolEnforcement::Rules(PermissionRules {
            variable: "OPENCODE_PERMISSION",
            grouped_tools: &["edit", "write"],
            other_rules: &["external_directory", "doom_loop"],
            // Settings in the workspace could define agents with other rules.
            env: &[("OPENCODE_DISABLE_PROJECT_CONFIG", "1")],
        }),
        own_tools: &["oubliette_*"],
        package: Some(Package {
            npm: "opencode-ai",
            version: "1.18.33",
            program: "opencode",
            binary: Some("bin/opencode.exe"),
            unpack_variable: None,
        }),
        credentials: pairs(&[
            ("anthropic", "ANTHROPIC_API_KEY"),
            ("openai", "OPENAI_API_KEY"),
            ("gemini", "GEMINI_API_KEY"),
            ("google", "GEMINI_API_KEY"),
            ("openrouter", "OPENROUTER_API_KEY"),
            ("opencode", "OPENCODE_API_KEY"),
        ]),
        sign_in: SIGN_IN,
        home: HomeLayout {
            private: &[
                ".config/opencode",
                ".local/share/opencode",
                ".local/state/opencode",
            ],
            copied: &[".config/opencode"],
            ..HomeLayout::default()
        },
        tool_refresh: ToolRefresh::Notified,
        plans_by_tool: true,
        ..Agent::from_command("opencode", argv(&["opencode", "acp"]))
    }
}

/// `auth.json` of OpenCode, after `opencode auth login`: a key or tokens for each provider.
fn parse_login(text: &str) -> Result<Login, &'static str> {
    const EXPECTED: &str =
        "it must be the file `auth.json` that `opencode auth login` writes, with a provider";
    let file: Map<String, Value> = serde_json::from_str(text).map_err(|_| EXPECTED)?;
    if file.is_empty() || !file.values().all(|entry| entry["type"].is_string()) {
        return Err(EXPECTED);
    }
    let secrets = file.values().flat_map(|entry| {
        let fields = ["key", "access", "refresh", "token"];
        fields.into_iter().filter_map(|name| entry[name].as_str())
    });
    let expires = file.values().filter_map(|entry| entry["expires"].as_u64());
    let providers: Vec<&str> = file.keys().map(String::as_str).collect();
    Ok(Login {
        account: providers.join(" "),
        version: format!("{:020}", expires.max().unwrap_or_default()),
        secrets: secrets.map(Secret::new).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_file_is_recognised_and_its_tokens_known() {
        let text = r#"{"anthropic":{"type":"oauth","access":"a","refresh":"r","expires":12},"openai":{"type":"api","key":"k"}}"#;
        let login = parse_login(text).unwrap();
        assert_eq!(login.account, "anthropic openai");
        assert_eq!(login.secrets.len(), 3);
        for bad in ["", "[]", "{}", r#"{"tokens":{}}"#] {
            assert!(parse_login(bad).is_err(), "{bad}");
        }
    }
}
