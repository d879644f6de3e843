//! The agents that Oubliette knows without configuration, one file each.

mod claude;
mod codex;
mod copilot;
mod demo;
mod droid;
mod gemini;
mod opencode;
mod qwen;

use std::collections::BTreeMap;

use crate::agent::Agent;

/// The agents, sorted by name.
pub fn catalogue() -> Vec<Agent> {
    vec![
        claude::row(),
        codex::row(),
        copilot::row(),
        demo::row(),
        droid::row(),
        gemini::row(),
        opencode::row(),
        qwen::row(),
    ]
}

fn argv(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn levels(levels: [&str; 4]) -> [String; 4] {
    levels.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use oubliette_model::Level;
    use serde_json::{Value, json};

    use super::*;
    use crate::restrictions::Restrictions;
    use crate::tool_filter::tests::tools;
    use crate::tool_filter::{ToolEnforcement, ToolFilter};

    #[test]
    fn names_are_unique_and_sorted() {
        let names: Vec<String> = catalogue().into_iter().map(|agent| agent.name).collect();
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(names, sorted);
    }

    #[test]
    fn settings_in_json_are_merged_into_what_the_user_sets() {
        let agents = catalogue();
        let codex = agents.iter().find(|agent| agent.name == "codex").unwrap();
        let merged = |given: Option<&str>| {
            let given = given.map(|text| ("CODEX_CONFIG".to_owned(), text.to_owned()));
            let mut env = given.into_iter().collect();
            codex.merge_json_env(&mut env);
            env["CODEX_CONFIG"].clone()
        };
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let namespaces = "/features/code_mode/direct_only_tool_namespaces";
        let alone = json(&merged(None));
        assert_eq!(alone.pointer(namespaces), Some(&json!(["mcp__oubliette"])));
        let both = json(&merged(Some(
            r#"{"model":"m","features":{"shell_snapshot":true,"code_mode":{"direct_only_tool_namespaces":["mcp__own"]}}}"#,
        )));
        assert_eq!(both["model"], "m");
        assert_eq!(both["features"]["shell_snapshot"], true);
        assert_eq!(
            both.pointer(namespaces),
            Some(&json!(["mcp__oubliette", "mcp__own"]))
        );
        assert_eq!(merged(Some("not json")), "not json");

        let mut env = BTreeMap::from([("CODEX_CONFIG".to_owned(), r#"{"a":1}"#.to_owned())]);
        codex.set_model("gpt-9", &mut env).unwrap();
        assert_eq!(env["CODEX_CONFIG"], r#"{"a":1,"model":"gpt-9"}"#);
        let claude = agents.iter().find(|agent| agent.name == "claude").unwrap();
        claude.set_model("claude-next", &mut env).unwrap();
        assert_eq!(env["ANTHROPIC_MODEL"], "claude-next");
        // The session must not say that it uses a model that the agent was not told of.
        for given in ["not json", "[]"] {
            let mut env = BTreeMap::from([("CODEX_CONFIG".to_owned(), given.to_owned())]);
            let error = codex.set_model("gpt-9", &mut env).unwrap_err();
            assert_eq!(error, "the variable `CODEX_CONFIG` is not a JSON object");
            assert_eq!(env["CODEX_CONFIG"], given);
        }
    }

    #[test]
    fn autonomy_chooses_mode_and_environment() {
        let agents = catalogue();
        let agent = |name: &str| agents.iter().find(|agent| agent.name == name).unwrap();
        let all = ToolFilter::default();
        let some = ToolFilter {
            allowed: vec!["read".to_owned()],
            ..ToolFilter::default()
        };
        let high = (Some("auto-high".to_owned()), false);
        assert_eq!(agent("droid").mode(Level::High, &all), high);
        let normal = (Some("normal".to_owned()), true);
        assert_eq!(agent("droid").mode(Level::Medium, &all), normal);
        assert_eq!(agent("opencode").mode(Level::High, &some), (None, false));
        let each = (Some("each".to_owned()), true);
        assert_eq!(agent("demo").mode(Level::High, &some), each);
        let limited = agent("opencode").environment(Level::Low, &some);
        let rules = &limited["OPENCODE_PERMISSION"];
        assert!(rules.starts_with(r#"{"*":"deny""#), "{rules}");
        assert!(rules.contains(r#""read":"ask""#), "{rules}");
        let asking = agent("opencode").environment(Level::Off, &all);
        assert_eq!(asking["OPENCODE_PERMISSION"], r#"{"*":"ask"}"#);
    }

    #[test]
    fn nothing_is_set_without_a_restriction() {
        let all = ToolFilter::default();
        for agent in catalogue() {
            let settings = agent.restrictions;
            let high = (settings.build)(Level::High, &all);
            assert_eq!(high, Restrictions::default(), "{}", agent.name);
            for (level, filter) in [
                (Level::Off, &all),
                (Level::Medium, &all),
                (Level::High, &tools(&["a"], &["b"])),
            ] {
                let built = (settings.build)(level, filter);
                let mut paths = built.files.iter().map(|file| file.path.as_str());
                // Otherwise a file would stay when it is not needed any more.
                assert!(
                    paths.all(|path| settings.paths.contains(&path)),
                    "{}",
                    agent.name
                );
                let is_hooked = agent.tool_enforcement == ToolEnforcement::Hooks;
                if is_hooked && !filter.is_empty() {
                    assert_ne!(built, Restrictions::default(), "{}", agent.name);
                }
            }
        }
    }
}
