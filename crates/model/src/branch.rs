//! Names of branches, and patterns of those that may be pushed.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::string_type::string_type;
use crate::{InvalidValue, quoted};

const MAX_BRANCH_BYTES: usize = 200;

/// A name that git accepts for a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BranchName(String);

/// The name of a branch, or one that ends with `*`, which stands for any rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BranchPattern(String);

string_type!(BranchName, { "type": "string" });
string_type!(BranchPattern, { "type": "string" });

impl BranchName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BranchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for BranchPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for BranchName {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if is_branch_name(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidValue(format!(
            "{} is not a name that git accepts for a branch",
            quoted(text)
        )))
    }
}

impl FromStr for BranchPattern {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let is_valid = match text.strip_suffix('*') {
            // What the asterisk stands for completes the name.
            Some(prefix) => is_branch_name(&format!("{prefix}x")),
            None => is_branch_name(text),
        };
        if is_valid {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidValue(format!(
            "{} is not the name of a branch, nor one that ends with `*`",
            quoted(text)
        )))
    }
}

impl BranchPattern {
    pub fn matches(&self, branch: &BranchName) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => branch.0.starts_with(prefix),
            None => branch.0 == self.0,
        }
    }

    /// Whether this pattern matches every branch that another one matches.
    pub fn covers(&self, other: &Self) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => other.0.trim_end_matches('*').starts_with(prefix),
            None => other.0 == self.0,
        }
    }
}

/// The rules of `git check-ref-format --branch`.
fn is_branch_name(text: &str) -> bool {
    let is_forbidden = |c: char| {
        c.is_ascii_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\')
    };
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.ends_with('.')
            && part.strip_suffix(".lock").is_none()
    };
    text.len() <= MAX_BRANCH_BYTES
        && !text.starts_with('-')
        && !matches!(text, "HEAD" | "@")
        && !text.contains("..")
        && !text.contains("@{")
        && !text.contains(is_forbidden)
        && text.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_have_names_that_git_accepts() {
        for text in ["main", "oubliette/x", "fix-1.2/a_b", "größe"] {
            assert!(text.parse::<BranchName>().is_ok(), "{text}");
        }
        for text in [
            "", "-f", "a b", "a..b", "/a", "a/", "a//b", ".a", "a/.b", "a.lock", "a.lock/b", "a~1",
            "a^", "a:b", "a?", "a*", "a[", "a\\b", "HEAD", "@", "a@{1}", "a\nb", "a.",
        ] {
            assert!(text.parse::<BranchName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_pattern_matches_a_name_or_every_name_with_its_prefix() {
        let matches = |pattern: &str, name: &str| {
            let pattern: BranchPattern = pattern.parse().unwrap();
            pattern.matches(&name.parse().unwrap())
        };
        assert!(matches("oubliette/*", "oubliette/a/b"));
        assert!(!matches("oubliette/*", "oubliette"));
        assert!(matches("main", "main") && !matches("main", "main2"));
        assert!(matches("*", "anything"));
        let covers = |pattern: &str, other: &str| {
            let pattern: BranchPattern = pattern.parse().unwrap();
            pattern.covers(&other.parse().unwrap())
        };
        assert!(covers("a/*", "a/b*") && covers("a/*", "a/b") && covers("a/*", "a/*"));
        assert!(covers("main", "main") && covers("*", "main"));
        assert!(!covers("a/b*", "a/*") && !covers("a", "a*") && !covers("a/*", "a"));
        for text in ["a*b", "**", "a/*/b", "-*", ""] {
            assert!(text.parse::<BranchPattern>().is_err(), "{text:?}");
        }
    }
}
