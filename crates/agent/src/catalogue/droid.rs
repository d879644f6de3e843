//! Factory Droid. It does not report tokens and some output of tools over ACP, and keeps both in files of
//! its home directory.

use oubliette_model::{Level, Usage};
use oubliette_wire::{AGENT_INSTRUCTIONS, FileFormat, HomeFile};
use serde_json::{Value, json};

use super::{argv, levels, pairs};
use crate::agent::{
    Agent, Package, SessionFile, ToolRefresh, TranscriptFile, UsageFile, is_plain_word,
};
use crate::home::HomeLayout;
use crate::restrictions::{RestrictionSettings, Restrictions, denying_hook};
use crate::sign_in::{self, GatewayModel, GatewayModels, LoginCommand, OwnModels, SignInMethods};
use crate::tool_filter::{ToolEnforcement, ToolFilter};
use crate::usage::token_counts;

const HOOKS_PATH: &str = ".factory/hooks.json";
/// Of a model whose own limit is not known here.
const MAX_OUTPUT_TOKENS: u32 = 32_000;

const SIGN_IN: SignInMethods = SignInMethods {
    needs_credential: true,
    own_models: Some(OwnModels {
        is_own: |model| model.starts_with("custom:"),
        settings_path: ".factory/settings.json",
    }),
    gateway_models: Some(GatewayModels {
        kinds: &["anthropic", "openai"],
        path: ".factory/settings.json",
        settings: gateway_settings,
        id: gateway_model_id,
        // Otherwise it asks for a login of its own.
        env: &[("FACTORY_AIRGAP_ENABLED", "true")],
    }),
    login: LoginCommand::Missing(
        "its login belongs to one machine and cannot be kept for containers. Create a key at \
         https://app.factory.ai/settings/api-keys",
    ),
    ..sign_in::UNKNOWN
};

const RESTRICTIONS: RestrictionSettings = RestrictionSettings {
    paths: &[HOOKS_PATH],
    build: restrict,
};

const USAGE_FILE: UsageFile = UsageFile {
    file: SessionFile("{home}/.factory/sessions/*/{session}.settings.json"),
    parse_totals,
};

const TRANSCRIPT_FILE: TranscriptFile = TranscriptFile {
    file: SessionFile("{home}/.factory/sessions/*/{session}.jsonl"),
    output_marker,
    parse_output,
};

pub(super) fn row() -> Agent {
    Agent {
        about: "Factory Droid".to_owned(),
        env: pairs(&[("FACTORY_DROID_AUTO_UPDATE_ENABLED", "false")]),
        package: Some(Package {
            npm: "droid",
            version: "0.215.0",
            program: "droid",
            binary: Some("bin/droid"),
            unpack_variable: None,
        }),
        credentials: pairs(&[("factory", "FACTORY_API_KEY")]),
        sign_in: SIGN_IN,
        modes: Some(levels(["normal", "normal", "normal", "auto-high"])),
        tool_enforcement: ToolEnforcement::Hooks,
        restrictions: RESTRICTIONS,
        own_tools: &["oubliette___*"],
        home: HomeLayout {
            private: &[".factory"],
            copied: &[
                ".factory/settings.json",
                ".factory/AGENTS.md",
                ".factory/mcp.json",
                ".factory/commands",
                ".factory/droids",
                ".factory/skills",
            ],
            leftovers: &[],
            // It does not tell its model the instructions of MCP servers.
            files: vec![HomeFile::new(
                ".factory/AGENTS.md",
                FileFormat::Text,
                format!("## MCP server `oubliette`\n\n{AGENT_INSTRUCTIONS}"),
            )],
        },
        usage_file: Some(USAGE_FILE),
        transcript_file: Some(TRANSCRIPT_FILE),
        writes_failure_reason: true,
        tool_refresh: ToolRefresh::Late,
        ..Agent::from_command("droid", argv(&["droid", "exec", "--output-format", "acp"]))
    }
}

fn gateway_settings(model: &GatewayModel<'_>) -> Value {
    let api = match model.kind {
        "anthropic" => "anthropic",
        _ if model.is_provider => "openai",
        // Most gateways have no other.
        _ => "generic-chat-completion-api",
    };
    json!({
        "sessionDefaultSettings": { "model": gateway_model_id(model.model) },
        "customModels": [{
            "model": model.model,
            "displayName": model.model,
            "baseUrl": model.url,
            "apiKey": model.key,
            "provider": api,
            "maxOutputTokens": MAX_OUTPUT_TOKENS,
        }],
    })
}

fn gateway_model_id(model: &str) -> String {
    format!("custom:{model}-0")
}

fn restrict(_: Level, tools: &ToolFilter) -> Restrictions {
    let hooks = denying_hook(tools).map(|hook| json!({ "PreToolUse": [hook] }).to_string());
    let file = |content| HomeFile::new(HOOKS_PATH, FileFormat::Json, content);
    Restrictions {
        files: hooks.map(file).into_iter().collect(),
        ..Restrictions::default()
    }
}

fn parse_totals(settings: &str) -> Option<Usage> {
    let settings: Value = serde_json::from_str(settings).ok()?;
    token_counts(&settings["tokenUsage"])
}

fn output_marker(tool_call: &str) -> Option<String> {
    is_plain_word(tool_call).then(|| format!("\"tool_use_id\":\"{tool_call}\""))
}

fn parse_output(line: &str, tool_call: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    let blocks = line["message"]["content"].as_array()?;
    let result = blocks
        .iter()
        .find(|block| block["type"] == "tool_result" && block["tool_use_id"] == tool_call)?;
    match &result["content"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            Some(texts.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_totals_of_a_session_are_read() {
        let settings = r#"{"tokenUsage":{"inputTokens":7,"outputTokens":1,"thinkingTokens":2}}"#;
        assert_eq!(parse_totals(settings).unwrap().thought_tokens, 2);
        assert_eq!(parse_totals("{}"), None);
    }

    #[test]
    fn the_output_of_a_tool_call_is_found() {
        let result = |id: &str, content: Value| json!({ "type": "tool_result", "tool_use_id": id, "content": content });
        let line = json!({ "type": "message", "message": { "role": "user", "content": [
            result("a", json!("one")),
            result("b", json!([{ "type": "text", "text": "two" }, { "type": "text", "text": "three" }])),
        ] } })
        .to_string();
        assert!(line.contains(&output_marker("a").unwrap()));
        assert_eq!(parse_output(&line, "a").as_deref(), Some("one"));
        assert_eq!(parse_output(&line, "b").as_deref(), Some("two\nthree"));
        for line in [line.as_str(), "", "{}", "[1]", "{\"message\":1}"] {
            assert_eq!(parse_output(line, "c"), None);
        }
        assert_eq!(output_marker("a\"b"), None);
    }
}
