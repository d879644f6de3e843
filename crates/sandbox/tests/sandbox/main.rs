//! Real sandboxes on this machine, in three modes: `root`, `user` and `bwrap`. The modes that
//! `OUBLIETTE_TEST_SANDBOX` names must work. Without it, `root` and `user` run where they work.
//!
//! Whether a setting of the host can be written is only ever found out by opening it.
#![cfg_attr(
    target_os = "linux",
    allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")
)]

#[cfg(target_os = "linux")]
mod failures;
#[cfg(target_os = "linux")]
mod hostile;
#[cfg(target_os = "linux")]
mod isolation;
#[cfg(target_os = "linux")]
mod lifecycle;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod modes;
#[cfg(target_os = "linux")]
mod persons;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod probes;
#[cfg(target_os = "linux")]
mod support;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    oubliette_test_harness::main(&modes::SUITE)
}

#[cfg(not(target_os = "linux"))]
fn main() {}
