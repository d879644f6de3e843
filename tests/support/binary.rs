//! The product's binary, built if it is not.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use oubliette_test_harness::scaled;
use rustix::process::{Pid, Signal, kill_process};

/// Names the `oubliette` binary to test. Without it, one is built.
pub(crate) const VARIABLE: &str = "OUBLIETTE_TEST_BINARY";

static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let named = std::env::var_os(VARIABLE);
    named.map_or_else(|| built("oubliette"), PathBuf::from)
});

/// Builds a package's binary of the same name as this one is built.
pub fn built(package: &str) -> PathBuf {
    let profile = if cfg!(debug_assertions) {
        "dev"
    } else {
        "release"
    };
    built_as(package, profile)
}

/// Builds a package's binary with a profile.
pub fn built_as(package: &str, profile: &str) -> PathBuf {
    // Cargo builds no binaries of other packages for a test, so this does.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "build",
        "--quiet",
        "--package",
        package,
        "--bin",
        package,
        "--profile",
        profile,
    ]);
    // Cargo's variables about this package must not reach the build of another: some build scripts
    // look at it and would run again each time.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            build.env_remove(&name);
        }
    }
    assert!(
        build.status().unwrap().success(),
        "the product does not build"
    );
    let this = std::env::current_exe().unwrap();
    let own_profile = this
        .ancestors()
        .find(|path| path.ends_with("debug") || path.ends_with("release"));
    let directory = match profile {
        "dev" => "debug",
        other => other,
    };
    own_profile.unwrap().with_file_name(directory).join(package)
}

/// The path of the `oubliette` binary of this build.
pub fn binary() -> &'static Path {
    &BINARY
}

/// The variable that keeps commands from starting a server: most tests have one, and none must be left.
pub const NO_AUTOSTART: (&str, &str) = ("OUBLIETTE_AUTOSTART__ENABLED", "false");

/// Longer than a turn that an agent's model fails takes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the command line on a data directory, in an environment of its own. It starts no server.
///
/// # Panics
/// If the command does not end.
pub fn cli<S: AsRef<OsStr>>(home: &Path, arguments: impl IntoIterator<Item = S>) -> Output {
    let mut command = Command::new(binary());
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("OUBLIETTE_HOME", home)
        .env(NO_AUTOSTART.0, NO_AUTOSTART.1)
        // Not in a repository: there `run` works on a copy of it.
        .current_dir(home)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid::from_child(&child);
    let (sender, output) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match output.recv_timeout(scaled(COMMAND_TIMEOUT)) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            // Not waited for yet, so the pid is still its own.
            let _ = kill_process(pid, Signal::KILL);
            panic!("this command does not end: {command:?}");
        }
    }
}

/// Runs the command line on a data directory without blocking the test's other tasks.
pub async fn run_cli(home: &Path, arguments: &[&str]) -> Output {
    let (home, arguments) = (home.to_owned(), arguments.iter().map(ToString::to_string));
    let arguments: Vec<String> = arguments.collect();
    tokio::task::spawn_blocking(move || cli(&home, arguments))
        .await
        .unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
