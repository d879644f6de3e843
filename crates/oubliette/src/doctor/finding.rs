//! What `doctor` found: one line each, with what to do about it.

use serde_json::{Value, json};

use crate::terminal::wrap::wrapped;

/// Before the further lines of a finding: as wide as its mark.
const INDENT: &str = "      ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Good,
    Hint,
    /// Something does not hold that a user relies on.
    Warning,
    /// It prevents Oubliette from working.
    Bad,
}

#[derive(Debug)]
pub(crate) struct Finding {
    pub(super) level: Level,
    text: String,
}

impl Finding {
    pub(crate) fn good(text: impl Into<String>) -> Self {
        Self::new(Level::Good, text)
    }

    pub(crate) fn hint(text: impl Into<String>) -> Self {
        Self::new(Level::Hint, text)
    }

    pub(crate) fn warning(text: impl Into<String>) -> Self {
        Self::new(Level::Warning, text)
    }

    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self::new(Level::Bad, text)
    }

    fn new(level: Level, text: impl Into<String>) -> Self {
        Self {
            level,
            text: text.into(),
        }
    }

    /// As text that is broken between words where the terminal ends.
    pub(super) fn line(&self, columns: Option<usize>) -> String {
        let mark = match self.level {
            Level::Good => "ok  ",
            Level::Hint => "hint",
            Level::Warning => "warn",
            Level::Bad => "FAIL",
        };
        let columns = columns.map(|columns| columns.saturating_sub(INDENT.len()));
        let text = wrapped(&self.text, columns);
        format!("{mark}  {}", text.replace('\n', &format!("\n{INDENT}")))
    }

    pub(super) fn to_json(&self, check: &str) -> Value {
        let level = match self.level {
            Level::Good => "ok",
            Level::Hint => "hint",
            Level::Warning => "warning",
            Level::Bad => "problem",
        };
        json!({ "check": check, "level": level, "text": self.text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_broken_between_words_below_its_own_text() {
        let finding = Finding::hint("no server is running; a command that needs one starts it");
        assert_eq!(
            finding.line(Some(40)),
            "hint  no server is running; a command\n      that needs one starts it"
        );
        assert_eq!(finding.line(None).lines().count(), 1);
    }
}
