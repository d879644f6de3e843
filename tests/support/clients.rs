//! Real clients, as `tests/install` installs them.

use std::path::{Path, PathBuf};

pub(crate) const VARIABLE: &str = "OUBLIETTE_TEST_CLIENTS";
pub(crate) const KNOWN: [&str; 6] = [
    "go",
    "python",
    "typescript",
    "inspector",
    "conformance",
    "openspec",
];

/// The directory of a client's interpreter, or of its binary.
///
/// # Panics
/// If the client is not installed, or not at the versions that are pinned now.
pub fn client(name: &str) -> PathBuf {
    let (directory, manifests) = match name {
        "python" => ("python", &["python/requirements.txt"][..]),
        "python-1.9" => ("python-1.9", &["python/requirements-1.9.txt"][..]),
        "python-1.12" => ("python-1.12", &["python/requirements-1.12.txt"][..]),
        "go" => (
            "go",
            &[
                "go/main.go",
                "go/1.1/go.mod",
                "go/1.1/go.sum",
                "go/newest/go.mod",
                "go/newest/go.sum",
            ][..],
        ),
        _ => (
            "node",
            &["typescript/package.json", "typescript/package-lock.json"][..],
        ),
    };
    let pinned: Vec<u8> = manifests
        .iter()
        .flat_map(|file| std::fs::read(source(file)).unwrap())
        .collect();
    let root = installed();
    let record = std::fs::read(root.join(format!("{directory}.installed")));
    assert!(
        record.is_ok_and(|record| record == pinned),
        "{VARIABLE} names {name}, which is missing or not as it is pinned; run tests/install"
    );
    root.join(directory)
}

/// A file of the clients in the source tree.
pub fn source(file: &str) -> PathBuf {
    tests().join("clients").join(file)
}

/// A file of the examples.
pub fn example(file: &str) -> PathBuf {
    tests().join("../examples").join(file)
}

fn tests() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The same rule as in `tests/install`.
fn installed() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target
        .unwrap_or_else(|| tests().join("../target"))
        .join("test-clients")
}
