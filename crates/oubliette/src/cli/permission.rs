//! Questions for permission requests at a terminal: what a yes allows, and which answer means what.

use std::collections::VecDeque;
use std::io::Write;

use serde_json::Value;

use crate::terminal::style::Style;
use crate::tty::{self, TypedLine};

/// A request that a line answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Question {
    request_id: String,
    text: String,
    kind: QuestionKind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum QuestionKind {
    Tool,
    Budget,
    Host,
}

impl Question {
    /// The question for a `permission_request` event.
    pub(super) fn new(event: &Value) -> Self {
        let limit = event["input"]["raised_max_cost_usd"].as_f64();
        let limit = limit.filter(|_| event["kind"] == "budget");
        let (kind, text) = match limit {
            Some(limit) => {
                let text = format!("Allow up to {} in all? [y]es, [n]o: ", dollars(limit));
                (QuestionKind::Budget, text)
            }
            None if event["kind"] == "network" => {
                let text = "Allow it? [y]es, once, for the [s]ession, for the [p]roject, [n]o: ";
                (QuestionKind::Host, text.to_owned())
            }
            None => {
                let text = "Allow it? [y]es, [a]lways, [n]o: ";
                (QuestionKind::Tool, text.to_owned())
            }
        };
        Self {
            request_id: event["request_id"].as_str().unwrap_or_default().to_owned(),
            text,
            kind,
        }
    }

    /// The decision that a word means; none if it is neither a yes nor a no.
    pub(super) fn decision(&self, word: &str) -> Option<&'static str> {
        match (word.trim().to_lowercase().as_str(), self.kind) {
            ("y" | "yes", _) | ("once", QuestionKind::Host) => Some("allow"),
            ("a" | "always", QuestionKind::Tool) => Some("allow_always"),
            ("s" | "session", QuestionKind::Host) => Some("allow_always"),
            ("p" | "project", QuestionKind::Host) => Some("allow_project"),
            ("n" | "no", _) => Some("deny"),
            _ => None,
        }
    }

    /// The other decisions than `allow` that a command can name.
    pub(super) fn alternatives(&self) -> &'static str {
        match self.kind {
            QuestionKind::Host => "allow_always, allow_project, deny",
            QuestionKind::Tool | QuestionKind::Budget => "deny",
        }
    }

    pub(super) fn request_id(&self) -> &str {
        &self.request_id
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

/// What the user did at a question.
#[derive(Debug)]
pub(super) enum Answer {
    Decision {
        request_id: String,
        decision: &'static str,
    },
    /// Ctrl-D, or the terminal is gone: the question stays open.
    End,
}

/// The questions that are open, of which the first one is asked.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: VecDeque<Question>,
    /// The line that answers the first one.
    line: Option<TypedLine>,
}

impl Questions {
    /// Asks, or will when the ones before are answered.
    pub(super) fn add(&mut self, question: Question) {
        self.open.push_back(question);
        if self.open.len() == 1 {
            self.ask();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Withdraws a question that was answered elsewhere, or whose turn has ended.
    pub(super) fn withdraw(&mut self, request_id: &str) {
        let is_asked = self
            .open
            .front()
            .is_some_and(|first| first.request_id == request_id);
        self.open
            .retain(|question| question.request_id != request_id);
        if is_asked {
            // The cursor is behind the question.
            eprintln!();
            self.ask();
        }
    }

    /// Withdraws all of them.
    pub(super) fn clear(&mut self) {
        if !self.open.is_empty() {
            eprintln!();
        }
        self.open.clear();
        self.ask();
    }

    /// Waits for the answer to the first question, and asks the next one. Cancel-safe.
    pub(super) async fn next_answer(&mut self) -> Answer {
        loop {
            let Some(line) = &mut self.line else {
                return std::future::pending().await;
            };
            let typed = line.wait().await;
            let Some(question) = self.open.front() else {
                self.line = None;
                continue;
            };
            let Some(typed) = typed else {
                self.line = None;
                return Answer::End;
            };
            if let Some(decision) = question.decision(&typed) {
                let request_id = question.request_id.clone();
                self.open.pop_front();
                self.ask();
                return Answer::Decision {
                    request_id,
                    decision,
                };
            }
            self.ask();
        }
    }

    /// Asks the first question. What was typed before cannot be meant for it.
    fn ask(&mut self) {
        self.line = None;
        if let Some(question) = self.open.front() {
            tty::forget_typed();
            eprint!("  {}", Style::of_stderr().bold(&question.text));
            let _ = std::io::stderr().flush();
            self.line = Some(TypedLine::read());
        }
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
        let budget = Question::new(&budget);
        assert_eq!(budget.text, "Allow up to $1.20 in all? [y]es, [n]o: ");
        assert_eq!(budget.decision("a"), None);
        let tool = json!({ "kind": "permission", "request_id": "r", "input": {} });
        let tool = Question::new(&tool);
        assert!(tool.text.starts_with("Allow it?"));
        assert_eq!(tool.decision(" Yes\n"), Some("allow"));
        assert_eq!(tool.decision("a"), Some("allow_always"));
        assert_eq!(tool.decision("n"), Some("deny"));
        let host = json!({ "kind": "network", "request_id": "r", "input": { "host": "a.org", "port": 443 } });
        let host = Question::new(&host);
        for (word, decision) in [
            ("y", Some("allow")),
            ("once", Some("allow")),
            ("S\n", Some("allow_always")),
            ("project", Some("allow_project")),
            ("n", Some("deny")),
            // Ambiguous: for the session or for the project.
            ("a", None),
            ("", None),
        ] {
            assert_eq!(host.decision(word), decision, "{word}");
        }
        assert_eq!(tool.decision("p"), None);
        // A key that is typed without a thought answers nothing.
        assert_eq!(tool.decision("\r"), None);
        assert_eq!(tool.decision("you should list the files"), None);
        assert_eq!(
            (dollars(0.7), dollars(0.0123)),
            ("$0.70".into(), "$0.0123".into())
        );
    }
}
