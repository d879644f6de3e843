//! The suite that every driver passes, as functions over `&dyn Runtime`.
//!
//! [`CASES`] is the list. The suite plays the server: it listens on the relay socket and speaks to
//! the real supervisor, so that what it sees is what an agent would.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a suite of tests, for tests"
)]

mod isolation;
mod lifecycle;
mod limits;
mod relay;
mod room;
mod server;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use crate::{ImageSource, Runtime};

pub use room::Room;
pub use server::{Finished, Server, Supervisor};

/// Nothing that works takes this long, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What containers of the suite are made of.
#[derive(Debug, Clone)]
pub struct Ground {
    /// An image with a shell and the usual commands.
    pub image: ImageSource,
    /// The supervisor: a static binary that is started as `oubliette-client init`.
    pub client: PathBuf,
}

/// One promise of a runtime: its name and how to see that it is kept.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub run: for<'a> fn(&'a dyn Runtime, &'a Ground) -> Running<'a>,
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
                name: stringify!($case),
                run: |runtime, ground| Box::pin($module::$case(runtime, ground)),
            }),+
        ];
    };
}

cases![
    lifecycle::what_is_created_does_not_run_and_is_listed_with_its_project,
    lifecycle::what_is_started_says_who_it_is_and_runs_commands,
    lifecycle::starting_twice_starts_once,
    lifecycle::stopping_ends_daemons_and_what_ignores_the_signal,
    lifecycle::stopping_twice_and_before_the_start_is_fine,
    lifecycle::a_restart_keeps_the_workspace_and_no_process,
    lifecycle::what_is_not_there_is_none_and_can_be_stopped_and_removed,
    lifecycle::removing_ends_what_runs_and_leaves_the_hosts_files,
    lifecycle::an_id_can_be_used_again,
    lifecycle::creating_again_replaces_what_does_not_run,
    lifecycle::starts_and_stops_may_race,
    lifecycle::logs_hold_what_pid_1_wrote,
    isolation::processes_have_few_privileges_and_see_only_each_other,
    isolation::without_a_network_there_is_no_way_out,
    isolation::a_network_that_is_not_offered_is_refused,
    isolation::read_only_mounts_are,
    isolation::the_workspace_is_shared_both_ways,
    limits::memory_is_bounded_and_the_supervisor_survives,
    limits::processes_are_bounded_and_the_supervisor_survives,
    limits::more_processors_than_there_are_is_no_error,
    relay::a_server_that_comes_back_finds_the_same_processes,
];

/// Runs every case, whose names and times go to stderr, and sees that none leaves anything behind.
pub async fn check(runtime: &dyn Runtime, ground: &Ground) {
    for case in CASES {
        let begun = Instant::now();
        let outcome = AssertUnwindSafe((case.run)(runtime, ground))
            .catch_unwind()
            .await;
        let left = runtime.list().await.unwrap();
        for status in &left {
            runtime.remove(&status.id).await.unwrap();
        }
        let took = begun.elapsed().as_millis();
        eprintln!("{}: {} ({took} ms)", runtime.capabilities().name, case.name);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        assert!(left.is_empty(), "{} left {left:?} behind", case.name);
    }
}

/// The supervisor's binary of this build, built if it is not.
pub fn client() -> PathBuf {
    // Cargo builds no binaries of other packages for a test, so this does.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "build",
        "--quiet",
        "--package",
        "oubliette-client",
    ]);
    // What cargo says about this package must not reach the build of another.
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

/// Waits for something that must come.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}
