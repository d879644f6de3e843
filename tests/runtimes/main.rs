//! The contract of a runtime with the real binary and the embedded sandbox, as root and as an
//! unprivileged user.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[macro_use]
extern crate oubliette_test_harness;

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use oubliette_runtime::contract::{self, Fixture};
use oubliette_runtime::{ImageSource, Sandbox};
use support::binary;

const UNPRIVILEGED_UID: u32 = 65_432;

async fn check(data_dir: &Path) {
    // The real binary is the launcher, and the client in the container.
    let sandbox = Sandbox::open(data_dir, binary()).unwrap();
    let client = data_dir.join("oubliette-client");
    std::fs::copy(binary(), &client).unwrap();
    let image = ImageSource {
        name: "base".to_owned(),
        image: None,
        dockerfile: None,
        build_args: Default::default(),
    };
    contract::check(&sandbox, &Fixture { image, client }).await;
    let left = std::fs::read_dir(data_dir.join("run/s")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "state directories of sandboxes are left");
}

#[test(needs(sandbox), multi_thread)]
async fn the_sandbox_passes_the_contract() {
    let data_dir = tempfile::tempdir().unwrap();
    check(data_dir.path()).await;
}

/// Run by the test below in its own process, as another user.
#[helper(multi_thread)]
async fn as_an_unprivileged_user() {
    let data_dir = std::env::var_os("OUBLIETTE_TEST_USER_HOME").unwrap();
    assert!(!rustix::process::geteuid().is_root());
    check(Path::new(&data_dir)).await;
}

/// Without root, the first test checks the same.
#[test(needs(sandbox, root), multi_thread)]
async fn the_sandbox_passes_the_contract_without_root() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = directory.path().join(name);
        std::fs::copy(from, &to).unwrap();
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    let copied_binary = copy(binary(), "oubliette");
    let test = copy(&std::env::current_exe().unwrap(), "test");
    let home = directory.path().join("home");
    std::fs::create_dir(&home).unwrap();
    chown(&home, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
    let output = Command::new(test)
        .args(["--in-process", "as_an_unprivileged_user"])
        .env("OUBLIETTE_TEST_USER_HOME", &home)
        .env("OUBLIETTE_TEST_BINARY", copied_binary)
        .env("HOME", &home)
        .env("TMPDIR", &home)
        .uid(UNPRIVILEGED_UID)
        .gid(UNPRIVILEGED_UID)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains("a_restarted_server_finds_the_same_processes"),
        "{stderr}"
    );
}

fn main() -> std::process::ExitCode {
    oubliette_test_harness::main(&support::needs::SUITE)
}
