//! The files of Factory Droid: it does not report tokens and some output of tools over ACP, and
//! keeps both in files of its home directory.

use oubliette_model::Usage;
use serde_json::Value;

use crate::catalogue::{SessionFile, TranscriptFile, UsageFile, is_plain_word};
use crate::usage::token_counts;

pub(crate) const USAGE_FILE: UsageFile = UsageFile {
    file: SessionFile("{home}/.factory/sessions/*/{session}.settings.json"),
    parse_totals,
};

pub(crate) const TRANSCRIPT_FILE: TranscriptFile = TranscriptFile {
    file: SessionFile("{home}/.factory/sessions/*/{session}.jsonl"),
    output_marker,
    parse_output,
};

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
