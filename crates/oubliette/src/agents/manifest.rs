//! The npm manifest of an installed agent. It stays in the agent's directory, and so records what is
//! installed.

use std::path::Path;

use oubliette_agent::Package;
use serde_json::{Map, Value, json};

pub(super) const FILE_NAME: &str = "package.json";

/// The Node.js for agents that are scripts; the system's own is often too old.
const NODE: (&str, &str) = ("node", "24.21.0");

/// The packages that are installed, with their versions.
fn dependencies(package: Package) -> Vec<(&'static str, &'static str)> {
    let mut dependencies = vec![(package.npm, package.version)];
    if package.binary.is_none() {
        dependencies.push(NODE);
    }
    dependencies
}

/// The one package whose installation script puts the program in its place. From version 12 on, npm
/// runs no scripts but those that the manifest allows.
pub(super) fn scripted(package: Package) -> (&'static str, &'static str) {
    if package.binary.is_some() {
        (package.npm, package.version)
    } else {
        NODE
    }
}

/// The text of the manifest.
pub(super) fn text(package: Package) -> String {
    let versions = dependencies(package)
        .into_iter()
        .map(|(name, version)| (name.to_owned(), version.into()));
    let (name, version) = scripted(package);
    let allowed = Map::from_iter([(format!("{name}@{version}"), Value::Bool(true))]);
    let manifest = json!({
        "private": true,
        "dependencies": Map::from_iter(versions),
        "allowScripts": allowed,
    });
    format!("{manifest:#}\n")
}

/// Whether a directory has the versions that are pinned now.
pub(super) fn is_current(directory: &Path, package: Package) -> bool {
    let Ok(text) = std::fs::read_to_string(directory.join(FILE_NAME)) else {
        return false;
    };
    let manifest: Value = serde_json::from_str(&text).unwrap_or_default();
    dependencies(package).into_iter().all(|(name, version)| {
        let installed = manifest["dependencies"][name].as_str();
        // npm itself writes versions with a caret.
        installed.is_some_and(|installed| installed.trim_start_matches('^') == version)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(version: &'static str, binary: Option<&'static str>) -> Package {
        Package {
            npm: "@some/agent",
            version,
            program: "agent",
            binary,
            unpack_variable: None,
        }
    }

    #[test]
    fn only_the_script_that_puts_the_program_in_its_place_may_run() {
        let manifest: Value = serde_json::from_str(&text(package("1.0.0", Some("x")))).unwrap();
        assert_eq!(manifest["dependencies"], json!({ "@some/agent": "1.0.0" }));
        assert_eq!(
            manifest["allowScripts"],
            json!({ "@some/agent@1.0.0": true })
        );
        let manifest: Value = serde_json::from_str(&text(package("1.0.0", None))).unwrap();
        let (node, version) = NODE;
        assert_eq!(manifest["dependencies"][node], version);
        assert_eq!(
            manifest["allowScripts"],
            json!({ format!("{node}@{version}"): true })
        );
    }

    #[test]
    fn a_directory_is_current_only_with_the_pinned_versions() {
        let directory = tempfile::tempdir().unwrap();
        let is_current = |version| is_current(directory.path(), package(version, None));
        assert!(!is_current("1.0.0"));
        let write = |text: String| std::fs::write(directory.path().join(FILE_NAME), text).unwrap();
        write(text(package("1.0.0", None)));
        assert!(is_current("1.0.0") && !is_current("1.0.1"));
        // As npm wrote it for older versions of Oubliette.
        write(text(package("^1.0.0", None)));
        assert!(is_current("1.0.0"));
        write("{".to_owned());
        assert!(!is_current("1.0.0"));
    }
}
