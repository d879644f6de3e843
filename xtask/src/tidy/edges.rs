//! Who may depend on whom. A crate uses only crates listed above it, and some crates from outside
//! may be named in few places, so that one concern stays behind one door. Both lists live here.

use super::Problem;
use super::manifest;
use super::packages::{Dependency, Kind, Package, Workspace};
use super::tree::Tree;

/// The folders under `crates/`, lowest first.
const LAYERS: &[&str] = &[
    "model",
    "wire",
    "store",
    "sandbox",
    "client",
    "demo-agent",
    "runtime",
    "agent",
    "engine",
    "server",
    "oubliette",
];

/// Packages beside `crates/` that may use every crate and that no crate may use.
const OUTSIDE: &[&str] = &[
    "xtask",
    "tests",
    TEST_HARNESS,
    "tests/harness/macros",
    "benches",
    "fuzz",
    "examples/rust",
];

/// The one of them that tests of crates use.
const TEST_HARNESS: &str = "tests/harness";

/// A crate from outside that only some of our crates may name.
struct Door {
    /// The package; a `*` at the end stands for any continuation.
    external: &'static str,
    allowed: &'static [&'static str],
    reason: &'static str,
}

const DOORS: &[Door] = &[
    Door {
        external: "rmcp",
        allowed: &[
            "server",
            "client",
            "demo-agent",
            "oubliette",
            "examples/rust",
        ],
        reason: "MCP is spoken only by the faces, the client and the demo agent in the container, the command line, and whoever shows how",
    },
    Door {
        external: "axum",
        allowed: &["server"],
        reason: "only the faces know HTTP",
    },
    Door {
        external: "rusqlite",
        allowed: &["store"],
        reason: "everything else sees the store through its traits",
    },
    Door {
        external: "bollard",
        allowed: &["runtime"],
        reason: "only a driver knows which container engine it drives",
    },
    Door {
        external: "agent-client-protocol-schema",
        allowed: &["agent", "demo-agent"],
        reason: "only one crate of the server speaks ACP, and the demo agent is its peer",
    },
    Door {
        external: "agent-client-protocol*",
        allowed: &["demo-agent"],
        reason: "the SDK's connection does not survive a restart; only the peer that we test against uses it",
    },
    Door {
        external: "clap",
        allowed: &["oubliette", "xtask"],
        reason: "arguments are parsed at the edge and become settings",
    },
    Door {
        external: "jsonschema",
        allowed: &["engine"],
        reason: "schemas from outside are bounded in one place",
    },
    Door {
        external: "reqwest",
        allowed: &["oubliette"],
        reason: "only the command line is an HTTP client",
    },
];

impl Door {
    fn leads_to(&self, package: &str) -> bool {
        match self.external.strip_suffix('*') {
            Some(start) => package.starts_with(start),
            None => package == self.external,
        }
    }
}

/// Where a package stands in the order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place<'a> {
    Layer(usize),
    Outside(&'a str),
    Unknown,
}

impl<'a> Place<'a> {
    fn of(package: &'a Package) -> Self {
        let folder = package.folder.as_str();
        if OUTSIDE.contains(&folder) {
            return Self::Outside(folder);
        }
        folder
            .strip_prefix("crates/")
            .and_then(|name| LAYERS.iter().position(|layer| *layer == name))
            .map_or(Self::Unknown, Self::Layer)
    }

    /// The word that the list of doors uses.
    fn word(self) -> Option<&'a str> {
        match self {
            Self::Layer(layer) => Some(LAYERS[layer]),
            Self::Outside(folder) => Some(folder),
            Self::Unknown => None,
        }
    }
}

pub(super) fn check(workspace: &Workspace, tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in &workspace.packages {
        problems.extend(check_place(package));
        let path = package.manifest_path();
        let entries = manifest::read(tree.text(&path).unwrap_or_default());
        for dependency in &package.dependencies {
            let message = wrong_direction(workspace, package, dependency)
                .or_else(|| wrong_door(package, dependency));
            if let Some(message) = message {
                let table = dependency.kind.table();
                let line = manifest::declarations(&entries, table, &dependency.key)
                    .first()
                    .map_or(1, |declaration| declaration.line);
                problems.push(Problem::new(path.as_str(), line, message));
            }
        }
    }
    problems
}

/// A package in an unknown folder, or not named after its folder.
fn check_place(package: &Package) -> Option<Problem> {
    let folder = &package.folder;
    let message = match Place::of(package) {
        Place::Unknown => format!(
            "{folder} is not in the order of crates, so nothing says what it may use: put it in its place in LAYERS in xtask/src/tidy/edges.rs, or in OUTSIDE there if it is no part of the product."
        ),
        Place::Outside(_) => return None,
        Place::Layer(layer) => {
            let expected = match LAYERS[layer] {
                "oubliette" => "oubliette".to_owned(),
                name => format!("oubliette-{name}"),
            };
            if package.name == expected {
                return None;
            }
            format!(
                "The package in {folder} is named {}: name it {expected}, after its folder.",
                package.name
            )
        }
    };
    Some(Problem::new(package.manifest_path(), 1, message))
}

fn wrong_direction(
    workspace: &Workspace,
    package: &Package,
    dependency: &Dependency,
) -> Option<String> {
    let Place::Layer(user) = Place::of(package) else {
        return None;
    };
    let used = workspace
        .packages
        .iter()
        .find(|other| dependency.from_path && other.name == dependency.package)?;
    let user_name = LAYERS[user];
    match Place::of(used) {
        Place::Outside(TEST_HARNESS) if dependency.kind == Kind::Dev => None,
        Place::Outside(folder) => Some(format!(
            "{user_name} depends on {folder}, which is no part of the product: move what it needs into a crate."
        )),
        Place::Layer(used) if used >= user && dependency.kind != Kind::Dev => {
            let used_name = LAYERS[used];
            Some(format!(
                "{user_name} depends on {used_name}, which is not listed above it: move what it needs down, or turn the call around (the order is LAYERS in xtask/src/tidy/edges.rs)."
            ))
        }
        Place::Layer(_) | Place::Unknown => None,
    }
}

fn wrong_door(package: &Package, dependency: &Dependency) -> Option<String> {
    let user = Place::of(package).word()?;
    let is_free = dependency.kind == Kind::Dev || matches!(user, "tests" | "benches");
    if is_free {
        return None;
    }
    let door = DOORS
        .iter()
        .find(|door| door.leads_to(&dependency.package))?;
    if door.allowed.contains(&user) {
        return None;
    }
    Some(format!(
        "{user} depends on {}, but {}: only {} may name it (DOORS in xtask/src/tidy/edges.rs).",
        dependency.package,
        door.reason,
        door.allowed.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn package(name: &str, folder: &str, dependencies: &[(&str, Kind)]) -> Package {
        let dependencies = dependencies.iter().map(|(package, kind)| Dependency {
            package: (*package).to_owned(),
            key: (*package).to_owned(),
            kind: *kind,
            from_path: package.starts_with("oubliette"),
        });
        Package {
            name: name.to_owned(),
            folder: folder.to_owned(),
            dependencies: dependencies.collect(),
        }
    }

    /// The messages for one package in a workspace with a store, an engine and tests.
    fn messages(checked: Package) -> Vec<String> {
        let workspace = Workspace {
            root: PathBuf::new(),
            packages: vec![
                package("oubliette-store", "crates/store", &[]),
                package("oubliette-engine", "crates/engine", &[]),
                package("oubliette-tests", "tests", &[]),
                checked,
            ],
        };
        let problems = check(&workspace, &Tree::example(&[]));
        problems
            .into_iter()
            .map(|problem| problem.message)
            .collect()
    }

    #[test]
    fn a_crate_may_use_what_is_above_it() {
        let dependencies = [
            ("oubliette-store", Kind::Normal),
            ("oubliette-engine", Kind::Build),
            ("axum", Kind::Normal),
        ];
        let server = package("oubliette-server", "crates/server", &dependencies);
        assert_eq!(messages(server), [""; 0]);
    }

    #[test]
    fn a_crate_may_not_use_what_is_below_it_except_in_its_tests() {
        let dependencies = [("oubliette-engine", Kind::Normal)];
        let found = messages(package("oubliette-model", "crates/model", &dependencies));
        assert!(found[0].starts_with("model depends on engine"), "{found:?}");
        let dependencies = [("oubliette-engine", Kind::Dev)];
        let found = messages(package("oubliette-model", "crates/model", &dependencies));
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn nothing_depends_on_the_tests() {
        let dependencies = [("oubliette-tests", Kind::Dev)];
        let found = messages(package("oubliette-model", "crates/model", &dependencies));
        assert!(found[0].starts_with("model depends on tests"), "{found:?}");
    }

    #[test]
    fn doors_are_closed_to_the_other_crates() {
        let dependencies = [
            ("rusqlite", Kind::Normal),
            ("agent-client-protocol-schema", Kind::Normal),
            ("axum", Kind::Dev),
        ];
        let found = messages(package("oubliette-agent", "crates/agent", &dependencies));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("agent depends on rusqlite, but everything else"));
        let benches = package("oubliette-benches", "benches", &[("axum", Kind::Normal)]);
        assert_eq!(messages(benches), [""; 0]);
    }

    #[test]
    fn unknown_folders_and_odd_names_are_reported() {
        let found = messages(package("oubliette-attic", "crates/attic", &[]));
        assert!(found[0].contains("LAYERS"), "{found:?}");
        let found = messages(package("oubliette-models", "crates/model", &[]));
        assert!(found[0].contains("name it oubliette-model,"), "{found:?}");
    }
}
