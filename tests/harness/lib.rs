//! The test runner of binaries whose tests need something of the machine, for example a runtime or
//! a client. A test whose needs are not met is reported as ignored, with the reason.
//!
//! Such a binary has `harness = false` in its manifest, `#[macro_use] extern crate
//! oubliette_test_harness` so that `#[test]` means the one below, and a `main` that calls [`main`].
//!
//! ```ignore
//! #[test(needs(docker, opencode), limit = 300)]
//! async fn an_agent_works_in_docker() {}
//!
//! // One test per runtime, for example `commands_run::docker_channel`.
//! #[test(runtimes)]
//! async fn commands_run(runtime: &str) {}
//! ```
//!
//! Arguments of `#[test]`:
//! - `needs(a, b)`: what the machine must have. The binary's [`Suite`] defines the names.
//! - `each(a, b)`: one test per value, which the function receives and the test needs.
//! - `runtimes`, `mounted_runtimes`: `each` with all runtimes, or those that mount a socket.
//! - `limit = SECONDS`: how long it may take, 120 s by default.
//! - `multi_thread`: an `async` test gets worker threads.
//! - `mostly_waits`: the test runs beside those that fill the processors.
//!
//! Every test runs in a process of its own, so one that hangs or aborts ends alone, and its output is
//! shown only if it fails. The command line is that of the standard test runner.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is a command line"
)]

mod arguments;
mod process;
mod report;
mod runner;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

pub use oubliette_test_harness_macros::{helper, test};
pub use process::has_returned;

#[doc(hidden)]
pub use inventory;

/// Multiplies the limit of every test, for slow machines.
const TIME_FACTOR: &str = "OUBLIETTE_TEST_TIME_FACTOR";
const SEED: &str = "OUBLIETTE_TEST_SEED";

/// A registered test. The attribute macros make it.
#[derive(Debug)]
pub struct Test {
    pub module: &'static str,
    pub name: &'static str,
    pub needs: &'static [&'static str],
    pub limit_seconds: u32,
    pub mostly_waits: bool,
    pub is_helper: bool,
    pub run: fn(),
}

inventory::collect!(Test);

impl Test {
    /// The name on the command line: the path without the crate.
    fn path(&self) -> String {
        let modules = self.module.split_once("::").map(|(_, modules)| modules);
        modules.map_or_else(
            || self.name.to_owned(),
            |modules| format!("{modules}::{}", self.name),
        )
    }

    fn limit(&self) -> Duration {
        scaled(Duration::from_secs(self.limit_seconds.into()))
    }
}

/// The settings that a test binary gives the runner.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// Why a need is not met, and the remedy; `None` if it is met. Called at most once per need.
    pub missing: fn(need: &str) -> Option<String>,
    /// Runs once before the first test and returns variables for the environment of all tests.
    pub prepare: fn() -> Vec<(&'static str, OsString)>,
}

/// Runs the tests that the command line selects.
pub fn main(suite: &Suite) -> ExitCode {
    match arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => runner::run(suite, &arguments),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// A time limit, multiplied by `OUBLIETTE_TEST_TIME_FACTOR`.
pub fn scaled(limit: Duration) -> Duration {
    let factor = std::env::var(TIME_FACTOR).ok();
    let factor = factor.and_then(|factor| factor.parse::<f64>().ok());
    limit.mul_f64(factor.filter(|factor| *factor > 0.0).unwrap_or(1.0))
}

/// The seed of a random test: `OUBLIETTE_TEST_SEED`, or else the default, or else a new one. It is
/// printed, so a test that fails shows it.
///
/// # Panics
/// If the variable is not a number.
pub fn seed(default: Option<u64>) -> u64 {
    let given = std::env::var(SEED).ok().map(|seed| match seed.parse() {
        Ok(seed) => seed,
        Err(error) => panic!("{SEED}={seed} is not a number: {error}"),
    });
    let seed = given.or(default).unwrap_or_else(|| {
        let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        u64::try_from(time.as_micros()).unwrap_or_default()
    });
    eprintln!("repeat with {SEED}={seed}");
    seed
}

/// Whether a variable, a list with commas, names something; `None` if it is not set.
///
/// # Panics
/// If it names something unknown.
pub fn is_named(variable: &str, known: &[&str], name: &str) -> Option<bool> {
    let list = std::env::var(variable).ok()?;
    let names = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    for name in names.clone() {
        assert!(
            known.contains(&name),
            "{variable} names {name}; known are {}",
            known.join(", ")
        );
    }
    Some(names.clone().any(|named| named == name))
}

/// The reason for tests that wait to be asked for: `variable` does not name `name`.
pub fn not_named(variable: &str, name: &str, remedy: &str) -> String {
    format!("{variable} does not name {name} ({remedy})")
}

/// Runs an `async` test within the limit of its test.
///
/// # Panics
/// If the limit is exceeded. The future is dropped then, so it can clean up.
pub fn block_on(test: impl Future<Output = ()>, is_multi_thread: bool) {
    let mut builder = if is_multi_thread {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime for a test: {error}"));
    let limit = process::limit_of_this_test();
    runtime.block_on(async {
        let mut test = Box::pin(test);
        if tokio::time::timeout(limit, &mut test).await.is_err() {
            panic!("the test exceeded its limit of {limit:?}");
        }
    });
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Binaries whose tests this harness runs. The compiler drops other kinds of tests in them.
    const FOLDERS: [&str; 7] = [
        "tests/agents",
        "tests/clients",
        "tests/conformance",
        "tests/e2e",
        "tests/runtimes",
        "crates/runtime/tests/docker",
        "crates/sandbox/tests",
    ];

    fn check(path: &Path) {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.for_each(|entry| check(&entry.path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lost = text.contains("#[tokio::test") || text.contains("proptest! {");
            assert!(!lost, "{} has tests that would not run", path.display());
        }
    }

    #[test]
    fn no_test_is_lost_because_another_runner_would_have_to_find_it() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        check(&root.join("crates/runtime/tests/docker.rs"));
        for folder in FOLDERS {
            assert!(root.join(folder).is_dir(), "{folder} is gone");
            check(&root.join(folder));
        }
    }
}
