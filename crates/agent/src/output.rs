//! What a tool said, from the file in which an agent keeps its conversation.

use serde_json::Value;

use crate::catalogue::is_plain;

/// What every line with the result of a call contains; none if the id is no plain word.
pub fn output_mark(call: &str) -> Option<String> {
    is_plain(call).then(|| format!("\"tool_use_id\":\"{call}\""))
}

/// What the tool of a call said, from a line that has its result.
pub fn output_line(line: &str, call: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    let blocks = line["message"]["content"].as_array()?;
    let block = blocks
        .iter()
        .find(|block| block["type"] == "tool_result" && block["tool_use_id"] == call)?;
    match &block["content"] {
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
    fn the_result_of_a_call_is_found() {
        let result = |id: &str, content: Value| json!({ "type": "tool_result", "tool_use_id": id, "content": content });
        let line = json!({ "type": "message", "message": { "role": "user", "content": [
            result("a", json!("one")),
            result("b", json!([{ "type": "text", "text": "two" }, { "type": "text", "text": "three" }])),
        ] } })
        .to_string();
        assert!(line.contains(&output_mark("a").unwrap()));
        assert_eq!(output_line(&line, "a").as_deref(), Some("one"));
        assert_eq!(output_line(&line, "b").as_deref(), Some("two\nthree"));
        for line in [line.as_str(), "", "{}", "[1]", "{\"message\":1}"] {
            assert_eq!(output_line(line, "c"), None);
        }
        assert_eq!(output_mark("a\"b"), None);
    }
}
