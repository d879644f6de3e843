//! The home directory of an agent, which the client makes in the agent's own process before it executes the
//! agent.

mod merge;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use merge::merge_json;
use merge::merge_toml;

/// The client's subcommand: `agent BYTES PROGRAM ARGUMENTS…`. The first bytes of its input, as many as it
/// says, are a [`HomePlan`]; the program gets the rest.
pub const AGENT_SUBCOMMAND: &str = "agent";

/// What the home of an agent has. Paths are below it, or below the container's home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomePlan {
    /// The home of the container's other processes.
    pub shared: String,
    /// The name of the agent's own below it. `HOME` and `PATH` of the environment may start with its path.
    pub own: String,
    /// Whether the agent has a conversation already. If it has no home of its own, the conversation is
    /// in the shared one, where it stays.
    pub resumed: bool,
    /// What is not linked from the shared home.
    pub private: Vec<String>,
    /// What is copied from the shared home, files and directories.
    pub copied: Vec<String>,
    /// What an earlier start left in the agent's own home and is removed.
    pub removed: Vec<String>,
    /// What is removed from the shared home, each with a text that it has; empty for any content.
    pub leftovers: Vec<(String, String)>,
    /// Written in this order.
    pub files: Vec<HomeFile>,
    /// Whether the agent may not run in the shared home.
    pub requires_own: bool,
    /// The hook `prepare-commit-msg` for a repository in the agent's directory that has none; empty for no hook.
    #[serde(default)]
    pub commit_hook: String,
}

/// A file that is written to an agent's home. Its content can be a secret and is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeFile {
    pub path: String,
    pub content: String,
    pub format: FileFormat,
}

/// How a file of ours is merged with the user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileFormat {
    /// An object, by name; ours wins.
    Json,
    /// Tables, by name; ours wins.
    Toml,
    /// Ours follows the user's text.
    Text,
    /// Only ours.
    Whole,
    /// Only ours, which can be executed.
    Program,
}

/// The first line of the output of [`AGENT_SUBCOMMAND`], before the program is executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HomeReport {
    /// The agent's home.
    Ready(String),
    /// Why the home could not be made.
    Failed(String),
    /// The agent has to stay in the shared home, and may not run there.
    Shared,
    /// The program does not exist.
    NotFound(String),
    /// The program exists and cannot be executed.
    Denied(String),
}

impl HomePlan {
    /// The path of the agent's own home.
    pub fn own_path(&self) -> String {
        format!("{}/{}", self.shared, self.own)
    }
}

impl fmt::Debug for HomeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("HomeFile");
        debug
            .field("path", &self.path)
            .field("format", &self.format);
        debug.finish_non_exhaustive()
    }
}

impl HomeFile {
    pub fn new(path: impl Into<String>, format: FileFormat, content: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            content: content.into(),
            format,
        }
    }

    /// The content of the file, where the user has written `given`.
    pub fn merge(&self, given: &str) -> String {
        let ours = self.content.as_str();
        match self.format {
            FileFormat::Json => {
                let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
                match (parse(given).filter(Value::is_object), parse(ours)) {
                    (Some(given), Some(ours)) => merge_json(given, ours).to_string(),
                    _ => ours.to_owned(),
                }
            }
            FileFormat::Toml => merge_toml(given, ours).unwrap_or_else(|| ours.to_owned()),
            FileFormat::Whole | FileFormat::Program => ours.to_owned(),
            FileFormat::Text if given.contains(ours) => given.to_owned(),
            FileFormat::Text if given.trim().is_empty() => format!("{ours}\n"),
            FileFormat::Text => format!("{}\n\n{ours}\n", given.trim_end()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_wins_and_the_rest_of_the_users_file_stays() {
        let json = HomeFile::new("x", FileFormat::Json, r#"{"a":{"b":1}}"#);
        let merged = json.merge(r#"{"a":{"b":2,"c":3},"d":4}"#);
        let merged: Value = serde_json::from_str(&merged).unwrap();
        let expected = serde_json::json!({ "a": { "b": 1, "c": 3 }, "d": 4 });
        assert_eq!(merged, expected);
        assert_eq!(json.merge("not json"), r#"{"a":{"b":1}}"#);

        let ours = "store = \"memory\"\nfeatures.b = false\n";
        let toml = HomeFile::new("x", FileFormat::Toml, ours);
        let theirs = "model = \"m\" # mine\nstore=\"file\"\n[features]\na = true\nb = true\n";
        let merged = toml.merge(theirs);
        assert!(merged.contains("model = \"m\" # mine\n"), "{merged}");
        let merged: toml_edit::DocumentMut = merged.parse().unwrap();
        assert_eq!(merged["store"].as_str(), Some("memory"));
        assert_eq!(merged["features"]["a"].as_bool(), Some(true));
        assert_eq!(merged["features"]["b"].as_bool(), Some(false));
        let again = toml.merge(&merged.to_string());
        assert_eq!(again, merged.to_string());
        for given in ["", "not = = toml"] {
            assert_eq!(toml.merge(given), ours);
        }

        let text = HomeFile::new("x", FileFormat::Text, "Ours.");
        assert_eq!(text.merge(""), "Ours.\n");
        assert_eq!(text.merge("Theirs.\n"), "Theirs.\n\nOurs.\n");
        assert_eq!(text.merge("Theirs.\n\nOurs.\n"), "Theirs.\n\nOurs.\n");
    }
}
