//! Codex, through its adapter.

use std::collections::BTreeMap;

use oubliette_model::{Level, Secret};
use oubliette_wire::{FileFormat, HomeFile};
use serde_json::{Value, json};

use super::{argv, levels, pairs};
use crate::agent::{Agent, ModelSetting, Package, ToolRefresh};
use crate::home::HomeLayout;
use crate::restrictions::{RestrictionSettings, Restrictions};
use crate::sign_in::{
    Gateway, GatewayPath, GatewaySetting, Login, LoginCommand, LoginFile, SignInMethods,
};
use crate::tool_filter::{ToolEnforcement, ToolFilter};

const LOGIN_PATH: &str = ".codex/auth.json";
const PROGRAMS_PATH: &str = ".codex/programs";
const BWRAP_PATH: &str = ".codex/programs/bwrap";
/// It prefers this to its own if it has the options that it needs. It takes the exit code, that of a process which a
/// system call filter has killed, for a denial, but of a program that has ended within 150 ms only. A message would
/// have to arrive within 20 ms.
const DENYING_BWRAP: &str = "#!/bin/sh
case \"$1\" in --help) echo '--argv0 --as-pid-1 --perms --ro-bind-fd'; exit 0 ;; esac
exit 159
";

const CONFIG: &str = r#"cli_auth_credentials_store = "ephemeral"
features.shell_snapshot = false
default_permissions = "oubliette"
approvals_reviewer = "user"
approval_policy.granular.sandbox_approval = true
approval_policy.granular.rules = true
approval_policy.granular.mcp_elicitations = true
approval_policy.granular.request_permissions = true
approval_policy.granular.skill_approval = true
permissions.oubliette.filesystem.":root" = "read"
"#;

const SIGN_IN: SignInMethods = SignInMethods {
    needs_credential: true,
    gateway_models: None,
    own_models: None,
    kind_env: &[],
    login_files: &[LoginFile {
        kind: "codex_auth",
        path: LOGIN_PATH,
        settings: &[(
            ".codex/config.toml",
            FileFormat::Toml,
            "cli_auth_credentials_store = \"file\"\n",
        )],
        parse: parse_login,
    }],
    // It ignores `OPENAI_BASE_URL`.
    gateways: &[Gateway {
        kind: "openai",
        setting: GatewaySetting::JsonVariable("CODEX_CONFIG", &["openai_base_url"]),
        path: GatewayPath::AsGiven,
    }],
    login: LoginCommand::WritesFile {
        arguments: &["cli", "login", "--device-auth"],
        kind: "codex_auth",
        path: LOGIN_PATH,
    },
};

const RESTRICTIONS: RestrictionSettings = RestrictionSettings {
    paths: &[BWRAP_PATH],
    build: restrict,
};

pub(super) fn row() -> Agent {
    // A profile of ours: it asks before edits, and before it repeats a command without its own sandbox.
    let asking = "permission-profile:oubliette";
    let modes = levels([asking, asking, asking, "agent-full-access"]);
    Agent {
        about: "Codex".to_owned(),
        // Otherwise most of its models are told of no tool of an MCP server, nor of its instructions.
        json_env: BTreeMap::from([(
            "CODEX_CONFIG".to_owned(),
            json!({ "features": {
                "code_mode": { "direct_only_tool_namespaces": ["mcp__oubliette"] },
                // Files with the whole environment of the agent, its key included.
                "shell_snapshot": false,
            } }),
        )]),
        // Also holds for loaded and resumed sessions, which do not keep the mode set over ACP.
        env_by_autonomy: BTreeMap::from([("INITIAL_AGENT_MODE".to_owned(), modes.clone())]),
        package: Some(Package {
            npm: "@agentclientprotocol/codex-acp",
            version: "2.6.0",
            program: "codex-acp",
            binary: None,
            unpack_variable: None,
        }),
        credentials: pairs(&[("openai", "OPENAI_API_KEY")]),
        sign_in: SIGN_IN,
        auth_method: Some("api-key".to_owned()),
        modes: Some(modes),
        tool_enforcement: ToolEnforcement::Unsupported(
            "its models call tools from programs that it runs without asking",
        ),
        restrictions: RESTRICTIONS,
        own_tools: &["mcp.oubliette.*"],
        reads_by_commands: true,
        home: HomeLayout {
            private: &[".codex"],
            copied: &[
                ".codex/config.toml",
                ".codex/AGENTS.md",
                ".codex/prompts",
                ".codex/skills",
            ],
            // Its key, in plain text.
            leftovers: &[
                (".codex/auth.json", "\"OPENAI_API_KEY\": \""),
                (".codex/shell_snapshots", ""),
            ],
            // Otherwise it writes the key that it signs in with to a file, or its whole environment.
            files: vec![HomeFile::new(
                ".codex/config.toml",
                FileFormat::Toml,
                CONFIG,
            )],
        },
        writes_failure_reason: true,
        leaves_commands: true,
        tool_refresh: ToolRefresh::Restart,
        model_setting: ModelSetting::JsonVariable("CODEX_CONFIG"),
        ..Agent::from_command("codex", argv(&["codex-acp"]))
    }
}

/// It asks before it repeats a command that its own sandbox did not permit, and only then. So that sandbox
/// permits none, also where a container could create it.
fn restrict(level: Level, _: &ToolFilter) -> Restrictions {
    if level == Level::High {
        return Restrictions::default();
    }
    Restrictions {
        files: vec![HomeFile::new(
            BWRAP_PATH,
            FileFormat::Program,
            DENYING_BWRAP,
        )],
        programs: Some(PROGRAMS_PATH),
        ..Restrictions::default()
    }
}

/// `auth.json` of Codex, after `codex login` with a ChatGPT plan.
fn parse_login(text: &str) -> Result<Login, &'static str> {
    const EXPECTED: &str =
        "it must be the file `auth.json` that `codex login` writes, with `tokens`";
    let file: Value = serde_json::from_str(text).map_err(|_| EXPECTED)?;
    let field = |value: &Value, name: &str| {
        let text = value.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let tokens = file.get("tokens").ok_or(EXPECTED)?;
    let access = field(tokens, "access_token").ok_or(EXPECTED)?;
    let refresh = field(tokens, "refresh_token").ok_or(EXPECTED)?;
    let others = [field(tokens, "id_token"), field(&file, "OPENAI_API_KEY")];
    let secrets = [access, refresh]
        .into_iter()
        .chain(others.into_iter().flatten());
    // Times of one zone; without its letter, a time with a fraction follows the one without.
    let refreshed = field(&file, "last_refresh").unwrap_or_default();
    Ok(Login {
        account: field(tokens, "account_id").unwrap_or_default(),
        version: refreshed.trim_end_matches('Z').to_owned(),
        secrets: secrets.map(Secret::new).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codex asks after this exit code, whenever the message of the program arrives.
    #[test]
    fn a_command_is_denied_by_an_exit_code_alone() {
        let run = |argument: &str| {
            let mut shell = std::process::Command::new("sh");
            let script = shell.args(["-c", DENYING_BWRAP, "bwrap", argument]);
            script.output().unwrap()
        };
        let denied = run("--ro-bind");
        assert_eq!(denied.status.code(), Some(128 + 31), "as after SIGSYS");
        assert!(denied.stdout.is_empty() && denied.stderr.is_empty());
        assert!(run("--help").status.success());
    }

    #[test]
    fn a_login_file_is_recognised_and_its_tokens_known() {
        let text = r#"{"OPENAI_API_KEY":null,"tokens":{"id_token":"i","access_token":"a","refresh_token":"r","account_id":"me"},"last_refresh":"2026-01-01T00:00:00.5Z"}"#;
        let login = parse_login(text).unwrap();
        assert_eq!(login.account, "me");
        assert_eq!(login.secrets.len(), 3);
        let later = parse_login(&text.replace("00.5Z", "01Z")).unwrap();
        let earlier = parse_login(&text.replace("00.5Z", "00Z")).unwrap();
        assert!(earlier.version < login.version && login.version < later.version);
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"tokens":{}}"#,
            r#"{"OPENAI_API_KEY":"sk"}"#,
        ] {
            assert!(parse_login(bad).is_err(), "{bad}");
        }
    }
}
