//! The question for a permission request at a terminal: what a yes allows, and what an answer means.

use std::io::Write;

use serde_json::Value;

/// A request that the next input line answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Question {
    pub(super) request_id: String,
    text: String,
}

impl Question {
    /// The question for a `permission_request` event.
    pub(super) fn new(event: &Value) -> Self {
        let limit = event["input"]["raised_max_cost_usd"].as_f64();
        let text = match limit.filter(|_| event["kind"] == "budget") {
            Some(limit) => format!("Allow up to {} in all? [y]es, [N]o: ", dollars(limit)),
            None => "Allow it? [y]es, [a]lways, [N]o: ".to_owned(),
        };
        Self {
            request_id: event["request_id"].as_str().unwrap_or_default().to_owned(),
            text,
        }
    }

    pub(super) fn ask(&self) {
        eprint!("  {}", self.text);
        let _ = std::io::stderr().flush();
    }
}

/// The decision that a line means; none if it is neither a yes nor a no.
pub(super) fn decision(line: &str) -> Option<&'static str> {
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Some("allow"),
        "a" | "always" => Some("allow_always"),
        "" | "n" | "no" => Some("deny"),
        _ => None,
    }
}

/// An amount of US dollars, with more digits if it is small.
pub(super) fn dollars(amount: f64) -> String {
    if amount.abs() < 0.1 {
        format!("${amount:.4}")
    } else {
        format!("${amount:.2}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_question_says_what_a_yes_allows_and_only_yes_and_no_are_answers() {
        let budget = json!({
            "kind": "budget", "request_id": "r", "input": { "raised_max_cost_usd": 1.2 }
        });
        assert_eq!(
            Question::new(&budget).text,
            "Allow up to $1.20 in all? [y]es, [N]o: "
        );
        let tool = json!({ "kind": "permission", "request_id": "r", "input": {} });
        assert!(Question::new(&tool).text.starts_with("Allow it?"));
        assert_eq!(decision(" Yes\n"), Some("allow"));
        assert_eq!(decision("a"), Some("allow_always"));
        assert_eq!(decision(""), Some("deny"));
        assert_eq!(decision("you should list the files"), None);
        assert_eq!(
            (dollars(0.7), dollars(0.0123)),
            ("$0.70".into(), "$0.0123".into())
        );
    }
}
