//! What `cargo metadata` says: the packages of this workspace with what they declare, and the
//! licences of everything that is built. Cargo's view is the authority; manifests are only read
//! for line numbers and for what cargo does not tell.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// This workspace: where it is and what it consists of.
pub(super) struct Workspace {
    pub(super) root: PathBuf,
    pub(super) packages: Vec<Package>,
}

/// A package of this workspace.
pub(super) struct Package {
    pub(super) name: String,
    /// Where it lives, from the root: `crates/model`, `xtask`.
    pub(super) folder: String,
    pub(super) dependencies: Vec<Dependency>,
}

impl Package {
    pub(super) fn manifest_path(&self) -> String {
        match self.folder.as_str() {
            "" => "Cargo.toml".to_owned(),
            folder => format!("{folder}/Cargo.toml"),
        }
    }
}

/// A dependency as a package declares it.
pub(super) struct Dependency {
    /// The package that is depended on.
    pub(super) package: String,
    /// What the manifest calls it, which differs from `package` when it is renamed.
    pub(super) key: String,
    pub(super) kind: Kind,
    /// Whether it comes from a folder instead of a registry or git.
    pub(super) from_path: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Build,
    Dev,
}

impl Kind {
    /// The table of a manifest that declares dependencies of this kind.
    pub(super) fn table(self) -> &'static str {
        match self {
            Self::Normal => "dependencies",
            Self::Build => "build-dependencies",
            Self::Dev => "dev-dependencies",
        }
    }
}

/// A package that is built, ours or not, with the licence it states.
pub(super) struct Licensed {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) licence: Option<String>,
}

impl Workspace {
    /// Reads the workspace around the current directory.
    pub(super) fn read() -> Result<Self, String> {
        Self::from_metadata(&metadata(&["--no-deps"])?)
    }

    fn from_metadata(metadata: &Value) -> Result<Self, String> {
        let root = PathBuf::from(text(metadata, "workspace_root")?);
        let packages = list(metadata, "packages")?
            .iter()
            .map(|package| package_from(package, &root))
            .collect::<Result<_, _>>()?;
        Ok(Self { root, packages })
    }
}

/// The licences of every package that any feature on any platform would build.
pub(super) fn licences() -> Result<Vec<Licensed>, String> {
    // Locked, because a check must not change the lock file.
    let metadata = metadata(&["--all-features", "--locked"])?;
    list(&metadata, "packages")?
        .iter()
        .map(|package| {
            Ok(Licensed {
                name: text(package, "name")?,
                version: text(package, "version")?,
                licence: text(package, "license").ok(),
            })
        })
        .collect()
}

fn package_from(package: &Value, root: &Path) -> Result<Package, String> {
    let name = text(package, "name")?;
    let manifest = PathBuf::from(text(package, "manifest_path")?);
    let folder = manifest
        .parent()
        .and_then(|folder| folder.strip_prefix(root).ok())
        .ok_or_else(|| {
            format!(
                "The package {name} at {} is outside the workspace {}.",
                manifest.display(),
                root.display()
            )
        })?
        .to_string_lossy()
        .replace('\\', "/");
    let dependencies = list(package, "dependencies")?
        .iter()
        .map(dependency_from)
        .collect::<Result<_, _>>()?;
    Ok(Package {
        name,
        folder,
        dependencies,
    })
}

fn dependency_from(dependency: &Value) -> Result<Dependency, String> {
    let package = text(dependency, "name")?;
    let key = text(dependency, "rename").unwrap_or_else(|_| package.clone());
    let kind = match dependency["kind"].as_str() {
        None => Kind::Normal,
        Some("build") => Kind::Build,
        Some("dev") => Kind::Dev,
        Some(other) => {
            return Err(format!(
                "`cargo metadata` names a kind of dependency that tidy does not know: {other}."
            ));
        }
    };
    Ok(Dependency {
        package,
        key,
        kind,
        from_path: dependency["path"].is_string(),
    })
}

/// Runs `cargo metadata`, without the network if that is enough.
fn metadata(arguments: &[&str]) -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut reason = String::new();
    for network in [&["--offline"][..], &[]] {
        let output = Command::new(&cargo)
            .args(["metadata", "--format-version", "1"])
            .args(arguments)
            .args(network)
            .output()
            .map_err(|error| format!("`cargo metadata` could not be started: {error}."))?;
        if output.status.success() {
            return serde_json::from_slice(&output.stdout)
                .map_err(|error| format!("`cargo metadata` printed invalid JSON: {error}."));
        }
        reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    }
    Err(format!(
        "`cargo metadata {}` failed. Run tidy inside the workspace, with every dependency fetched (`cargo fetch`) and the lock file up to date. Cargo said:\n{reason}",
        arguments.join(" ")
    ))
}

fn text(value: &Value, key: &str) -> Result<String, String> {
    value[key]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("`cargo metadata` left out the text `{key}`."))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value[key]
        .as_array()
        .ok_or_else(|| format!("`cargo metadata` left out the list `{key}`."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn metadata_becomes_folders_and_kinds() {
        let metadata = json!({
            "workspace_root": "/repository",
            "packages": [{
                "name": "oubliette-store",
                "manifest_path": "/repository/crates/store/Cargo.toml",
                "dependencies": [
                    { "name": "rusqlite", "kind": null, "rename": "sqlite" },
                    { "name": "oubliette-model", "kind": "dev", "path": "/repository/crates/model" },
                ],
            }],
        });
        let packages = Workspace::from_metadata(&metadata).map(|workspace| workspace.packages);
        let [store] = packages.as_deref().unwrap_or_default() else {
            panic!("one package expected");
        };
        assert_eq!(store.manifest_path(), "crates/store/Cargo.toml");
        let [sqlite, model] = &store.dependencies[..] else {
            panic!("two dependencies expected");
        };
        assert_eq!((sqlite.key.as_str(), sqlite.kind), ("sqlite", Kind::Normal));
        assert!(!sqlite.from_path);
        assert_eq!(model.kind, Kind::Dev);
        assert!(model.from_path);
    }
}
