//! The contract of a runtime on the product's own sandbox, as root and as an ordinary user.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[macro_use]
extern crate oubliette_test_harness;

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use oubliette_runtime::contract::{self, Ground};
use oubliette_runtime::{ImageSource, Sandbox};
use support::binary;

const USER: u32 = 65_432;

async fn check(home: &Path) {
    // The product's binary is the launcher, and inside it is the client.
    let sandbox = Sandbox::open(home, binary()).unwrap();
    let client = home.join("oubliette-client");
    std::fs::copy(binary(), &client).unwrap();
    let image = ImageSource {
        name: "base".to_owned(),
        image: None,
        dockerfile: None,
    };
    contract::check(&sandbox, &Ground { image, client }).await;
    let left = std::fs::read_dir(home.join("run/s")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "states of sandboxes are left");
}

#[test(needs(sandbox), multi_thread)]
async fn the_sandbox_keeps_every_promise_of_a_runtime() {
    let home = tempfile::tempdir().unwrap();
    check(home.path()).await;
}

/// Run by the test below in a process of its own, as another user.
#[helper(multi_thread)]
async fn as_an_ordinary_user() {
    let home = std::env::var_os("OUBLIETTE_TEST_USER_HOME").unwrap();
    assert!(!rustix::process::geteuid().is_root());
    check(Path::new(&home)).await;
}

/// Without root, the first test is this one.
#[test(needs(sandbox, root), multi_thread)]
async fn the_sandbox_keeps_every_promise_without_root() {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = place.path().join(name);
        std::fs::copy(from, &to).unwrap();
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    let product = copy(binary(), "oubliette");
    let test = copy(&std::env::current_exe().unwrap(), "test");
    let home = place.path().join("home");
    std::fs::create_dir(&home).unwrap();
    chown(&home, Some(USER), Some(USER)).unwrap();
    let output = Command::new(test)
        .args(["--in-process", "as_an_ordinary_user"])
        .env("OUBLIETTE_TEST_USER_HOME", &home)
        .env("OUBLIETTE_TEST_BINARY", product)
        .env("HOME", &home)
        .env("TMPDIR", &home)
        .uid(USER)
        .gid(USER)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("a_server_that_comes_back_finds_the_same_processes"),
        "{said}"
    );
}

fn main() -> std::process::ExitCode {
    oubliette_test_harness::main(&support::needs::SUITE)
}
