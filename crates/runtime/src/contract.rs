//! The contract of a runtime: a suite that every driver passes, as functions over `&dyn Runtime`.
//!
//! [`CASES`] is the list. The suite takes the place of the server: it listens on the relay socket and
//! talks to the real supervisor.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a suite of tests, for tests"
)]

mod container;
mod isolation;
mod lifecycle;
mod limits;
mod records;
mod relay;
mod relay_server;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use crate::{ImageSource, Runtime};

pub use container::TestContainer;
pub use relay_server::{CommandOutput, RelayServer, Supervisor};

/// Far longer than any step takes, also on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

type CaseFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What the containers of the suite are made of.
#[derive(Debug, Clone)]
pub struct Fixture {
    /// An image with a shell and the usual commands.
    pub image: ImageSource,
    /// The supervisor: a static binary that is started as `oubliette-client init`.
    pub client: PathBuf,
}

/// One promise of a runtime, and the function that checks it.
#[derive(Clone, Copy)]
pub struct Case {
    /// The module of the suite that it is in.
    pub part: &'static str,
    pub name: &'static str,
    pub run: for<'a> fn(&'a dyn Runtime, &'a Fixture) -> CaseFuture<'a>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! cases {
    ($($module:ident :: $case:ident),+ $(,)?) => {
        pub const CASES: &[Case] = &[
            $(Case {
                part: stringify!($module),
                name: stringify!($case),
                run: |runtime, fixture| Box::pin($module::$case(runtime, fixture)),
            }),+
        ];
    };
}

cases![
    records::a_created_container_does_not_run_and_is_listed_with_its_project,
    records::a_missing_container_can_be_inspected_stopped_and_removed,
    records::creating_again_replaces_the_record,
    lifecycle::a_started_container_authenticates_and_runs_commands,
    lifecycle::starting_twice_starts_once,
    lifecycle::stopping_ends_daemons_and_processes_that_ignore_the_signal,
    lifecycle::stopping_twice_or_before_the_start_is_not_an_error,
    lifecycle::a_restart_keeps_the_workspace_and_ends_every_process,
    lifecycle::removing_ends_every_process_and_keeps_the_hosts_files,
    lifecycle::an_id_can_be_used_again,
    lifecycle::creating_again_replaces_a_stopped_container,
    lifecycle::starts_and_stops_may_race,
    lifecycle::logs_contain_the_output_of_pid_1,
    isolation::processes_have_few_privileges_and_see_only_each_other,
    isolation::without_a_network_there_is_only_loopback,
    isolation::a_network_that_is_not_offered_is_refused,
    isolation::read_only_mounts_cannot_be_written,
    isolation::the_workspace_is_shared_both_ways,
    limits::memory_is_limited_and_the_supervisor_survives,
    limits::processes_are_limited_and_the_supervisor_survives,
    limits::more_processors_than_the_host_has_is_not_an_error,
    relay::a_restarted_server_finds_the_same_processes,
];

/// Runs every case, prints its name and duration to stderr, and checks that it leaves no container.
pub async fn check(runtime: &dyn Runtime, fixture: &Fixture) {
    for case in CASES {
        check_case(runtime, fixture, case).await;
    }
}

/// Runs the cases of one module of the suite, for example `records`.
pub async fn check_part(runtime: &dyn Runtime, fixture: &Fixture, part: &str) {
    let cases: Vec<&Case> = CASES.iter().filter(|case| case.part == part).collect();
    assert!(!cases.is_empty(), "the suite has no part `{part}`");
    for case in cases {
        check_case(runtime, fixture, case).await;
    }
}

async fn check_case(runtime: &dyn Runtime, fixture: &Fixture, case: &Case) {
    let started = Instant::now();
    let outcome = AssertUnwindSafe((case.run)(runtime, fixture))
        .catch_unwind()
        .await;
    let left = runtime.list().await.unwrap();
    for status in &left {
        runtime.remove(&status.id).await.unwrap();
    }
    let milliseconds = started.elapsed().as_millis();
    eprintln!(
        "{}: {} ({milliseconds} ms)",
        runtime.capabilities().name,
        case.name
    );
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    assert!(left.is_empty(), "{} left {left:?} behind", case.name);
}

/// Builds the supervisor's binary if needed and returns its path.
pub fn client() -> PathBuf {
    // Cargo does not build binaries of other packages for a test.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "build",
        "--quiet",
        "--package",
        "oubliette-client",
    ]);
    // Cargo's variables about this package must not reach the build of another.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            build.env_remove(&name);
        }
    }
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(
        build.status().unwrap().success(),
        "the client does not build"
    );
    let this = std::env::current_exe().unwrap();
    let profile: Option<&Path> = this
        .ancestors()
        .find(|path| path.ends_with("debug") || path.ends_with("release"));
    profile.unwrap().join("oubliette-client")
}

/// Waits for an event that must happen.
async fn within_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_TIMEOUT, future)
        .await
        .unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}
