//! The modes in which tests run sandboxes, and which of them this machine can run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use oubliette_sandbox::probe;
use oubliette_test_harness::{Suite, helper, is_named, not_named};
use tempfile::TempDir;

use crate::support::{Host, init_binary};

const VARIABLE: &str = "OUBLIETTE_TEST_SANDBOX";
const KNOWN: [&str; 3] = ["root", "user", "bwrap"];
/// An id that owns nothing on a test machine.
const ORDINARY_USER: u32 = 54_321;

pub(crate) const SUITE: Suite = Suite {
    missing,
    prepare: Vec::new,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Root,
    User,
    Bwrap,
}

/// One test per mode, as `name::root`, `name::user` and `name::bwrap`.
macro_rules! in_modes {
    ($name:ident: $($mode:ident),+) => {
        mod $name {
            $(
                oubliette_test_harness::inventory::submit! {
                    oubliette_test_harness::Test {
                        module: module_path!(),
                        name: stringify!($mode),
                        needs: &[stringify!($mode)],
                        limit_seconds: 120,
                        mostly_waits: false,
                        is_helper: false,
                        run: || {
                            let path = concat!(module_path!(), "::", stringify!($mode));
                            crate::modes::run(stringify!($mode), path, super::$name);
                        },
                    }
                }
            )+
        }
    };
}
pub(crate) use in_modes;

/// Why a mode is not tested here; `None` if it is.
fn missing(mode: &str) -> Option<String> {
    if let Some(is_named) = is_named(VARIABLE, &KNOWN, mode) {
        let remedy = format!("add `{mode}` to it");
        return (!is_named).then(|| not_named(VARIABLE, mode, &remedy));
    }
    let is_root = rustix::process::geteuid().is_root();
    match mode {
        "root" if !is_root => Some("this is not root".to_owned()),
        "user" if is_root => {
            let probe = AsUser::new().run("modes::probe_as_this_user");
            let why = String::from_utf8_lossy(&probe.stderr).trim().to_owned();
            (!probe.status.success()).then(|| format!("sandboxes of ordinary users: {why}"))
        }
        "root" | "user" => why_no_sandbox(),
        _ => {
            let remedy = format!("install bubblewrap, then set {VARIABLE}=root,user,bwrap");
            Some(not_named(VARIABLE, mode, &remedy))
        }
    }
}

fn why_no_sandbox() -> Option<String> {
    let scratch = tempfile::tempdir().unwrap();
    let probe = probe(&init_binary(), scratch.path());
    let native = probe.items.iter().find(|item| item.name == "native");
    let native = native.filter(|native| !native.works)?;
    Some(format!(
        "sandboxes do not work on this machine: {}",
        native.detail
    ))
}

#[helper]
fn probe_as_this_user() {
    if let Some(why) = why_no_sandbox() {
        eprintln!("{why}");
        std::process::exit(1);
    }
}

/// Runs a test in a mode, in this process or as another user.
pub(crate) fn run(mode: &str, path: &str, test: fn(&Host)) {
    let is_root = rustix::process::geteuid().is_root();
    let mode = match mode {
        "root" => Mode::Root,
        "user" => Mode::User,
        _ => Mode::Bwrap,
    };
    match (mode, is_root) {
        (Mode::Root, false) => panic!("{VARIABLE} names root, but this is not root"),
        (Mode::Root, true) | (_, false) => test(&Host::new(mode)),
        (_, true) => {
            let (_, name) = path.split_once("::").unwrap();
            let output = AsUser::new().run(name);
            let stdout = String::from_utf8_lossy(&output.stdout);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(
                oubliette_test_harness::has_returned(output.status),
                "as an ordinary user:\n{stdout}\n{stderr}"
            );
        }
    }
}

/// These tests as a user without privileges, who owns the directory that they work in.
struct AsUser {
    home: TempDir,
}

impl AsUser {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { home }
    }

    /// Copies a program to where the user can run it: the build directory may be closed to other users.
    fn copy_program(&self, program: &Path, name: &str) -> std::path::PathBuf {
        let to = self.home.path().join(name);
        if fs::hard_link(program, &to).is_err() {
            fs::copy(program, &to).unwrap();
        }
        to
    }

    fn run(&self, test: &str) -> std::process::Output {
        let tmp = self.home.path().join("t");
        fs::create_dir(&tmp).unwrap();
        chown(&tmp, Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
        Command::new(self.copy_program(&std::env::current_exe().unwrap(), "tests"))
            .args(["--in-process", test])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("TMPDIR", &tmp)
            .env(
                "OUBLIETTE_TEST_INIT",
                self.copy_program(&init_binary(), "init"),
            )
            .current_dir(&tmp)
            .uid(ORDINARY_USER)
            .gid(ORDINARY_USER)
            .output()
            .unwrap()
    }
}
