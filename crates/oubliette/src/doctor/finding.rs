//! What `doctor` found: one line each, with what to do about it.

use serde_json::{Value, json};

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

    pub(super) fn line(&self) -> String {
        let mark = match self.level {
            Level::Good => "ok  ",
            Level::Hint => "hint",
            Level::Warning => "warn",
            Level::Bad => "FAIL",
        };
        format!("{mark}  {}", self.text)
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
