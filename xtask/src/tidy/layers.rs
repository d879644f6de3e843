//! The order of crates: a crate depends only on crates listed above it. Each package also inherits
//! the workspace's lints, which forbid `unsafe` outside the sandbox. Which external crates
//! a crate may use is in deny.toml.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use toml_edit::DocumentMut;

use super::Problem;

/// The folders under `crates/`, lowest first.
const LAYERS: &[&str] = &[
    "tls-roots",
    "model",
    "wire",
    "store",
    "trees",
    "checkpoints",
    "sandbox",
    "gate",
    "client",
    "demo-agent",
    "runtime",
    "agent",
    "openspec",
    "engine",
    "server",
    "oubliette",
];

/// The only package with lints of its own, because it needs `unsafe`.
const UNSAFE_PACKAGE: &str = "crates/sandbox";

/// A package of the workspace and its dependencies on others of the workspace.
pub(super) struct Package {
    /// From the root: `crates/model`, `xtask`.
    folder: String,
    /// Folders of the packages it depends on, outside its tests.
    uses: Vec<String>,
}

/// Asks cargo for the packages of the workspace at `root`.
pub(super) fn read_packages(root: &Path) -> Result<Vec<Package>, String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start `cargo metadata`: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        format!("`cargo metadata` failed: {error}\n{stderr}")
    })?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let relative = |path: &str| {
        let path = Path::new(path);
        let folder = path.strip_prefix(root).unwrap_or(path);
        folder.to_string_lossy().replace('\\', "/")
    };
    Ok(packages
        .map(|package| {
            let manifest = relative(package["manifest_path"].as_str().unwrap_or_default());
            let folder = manifest.trim_end_matches("/Cargo.toml").to_owned();
            let dependencies = package["dependencies"].as_array().into_iter().flatten();
            let uses = dependencies
                .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
                .filter_map(|dependency| dependency["path"].as_str().map(relative))
                .collect();
            Package { folder, uses }
        })
        .collect())
}

pub(super) fn check(packages: &[Package], root: &Path) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let text = std::fs::read_to_string(root.join(&manifest)).unwrap_or_default();
        for message in wrong_dependencies(package).chain(missing_lints(package, &text)) {
            problems.push(Problem::new(manifest.as_str(), 1, message));
        }
    }
    problems
}

fn layer(folder: &str) -> Option<usize> {
    let name = folder.strip_prefix("crates/")?;
    LAYERS.iter().position(|layer| *layer == name)
}

fn wrong_dependencies(package: &Package) -> impl Iterator<Item = String> {
    let own = layer(&package.folder);
    let is_crate = package.folder.starts_with("crates/");
    let unlisted = (is_crate && own.is_none()).then(|| {
        format!(
            "{} is not in LAYERS in xtask/src/tidy/layers.rs: add it after the crates it uses.",
            package.folder
        )
    });
    let wrong = package.uses.iter().filter_map(move |used| {
        let is_above = layer(used).is_some_and(|used| own.is_none_or(|own| used < own));
        (is_crate && !is_above).then(|| {
            format!(
                "{} depends on {used}, which is not above it in LAYERS in xtask/src/tidy/layers.rs: \
                 move the shared code down, or invert the call.",
                package.folder
            )
        })
    });
    unlisted.into_iter().chain(wrong)
}

fn missing_lints(package: &Package, manifest: &str) -> Option<String> {
    let document: DocumentMut = manifest.parse().unwrap_or_default();
    let lints = document
        .get("lints")
        .and_then(|lints| lints.get("workspace"));
    let inherits = lints.and_then(toml_edit::Item::as_bool) == Some(true);
    (!inherits && package.folder != UNSAFE_PACKAGE).then(|| {
        "The package does not inherit the lints: add `[lints]` with `workspace = true`.".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(folder: &str, uses: &[&str]) -> Vec<String> {
        let package = Package {
            folder: folder.to_owned(),
            uses: uses.iter().map(|&folder| folder.to_owned()).collect(),
        };
        wrong_dependencies(&package).collect()
    }

    #[test]
    fn a_crate_uses_only_crates_above_it() {
        assert_eq!(messages("crates/server", &["crates/engine"]), [""; 0]);
        assert_eq!(messages("tests", &["crates/engine", "xtask"]), [""; 0]);
        assert_eq!(messages("crates/model", &["crates/engine"]).len(), 1);
        assert_eq!(messages("crates/engine", &["tests"]).len(), 1);
        assert_eq!(messages("crates/unlisted", &[]).len(), 1);
    }

    #[test]
    fn every_package_but_the_sandbox_inherits_the_lints() {
        let package = |folder: &str| Package {
            folder: folder.to_owned(),
            uses: Vec::new(),
        };
        let inherited = "[lints]\nworkspace = true\n";
        assert_eq!(missing_lints(&package("crates/model"), inherited), None);
        assert!(missing_lints(&package("crates/model"), "").is_some());
        assert_eq!(missing_lints(&package(UNSAFE_PACKAGE), ""), None);
    }
}
