//! The files that an agent reads its settings from, in a home directory of its session.

use serde_json::Value;

use crate::merge::{merge_json, merge_toml};

/// What of the project's home an agent gets in the home of its session.
#[derive(Debug, Clone, Default)]
pub struct HomeLayout {
    /// Where it keeps its state and its logins. No session shares them with another one.
    pub private: &'static [&'static str],
    /// Settings of the user among them, files and directories, which each session gets a copy of.
    pub copied: &'static [&'static str],
    /// What older versions left in the project's home and must not stay, each with a text that it has;
    /// an empty one for any content.
    pub leftovers: &'static [(&'static str, &'static str)],
    /// Files of ours, written at each start.
    pub files: Vec<HomeFile>,
}

/// A file of ours in an agent's home, merged with what the user has written there.
#[derive(Debug, Clone, PartialEq)]
pub struct HomeFile {
    pub path: &'static str,
    pub content: String,
    pub format: FileFormat,
}

/// How a file of ours is merged with the user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// An object, by name; ours wins.
    Json,
    /// Tables, by name; ours wins.
    Toml,
    /// Ours follows the user's text.
    Text,
    /// Only ours, which can be executed.
    Program,
}

impl HomeFile {
    pub fn new(path: &'static str, format: FileFormat, content: impl Into<String>) -> Self {
        Self {
            path,
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
            FileFormat::Program => ours.to_owned(),
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
