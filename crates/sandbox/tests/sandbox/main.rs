//! Real sandboxes on this machine. `OUBLIETTE_TEST_SANDBOX` names the ways that must work here, a
//! list of `root`, `user` and `bwrap`; a test of a way that it does not name says so and does
//! nothing, one that it names and that is not possible fails.
//!
//! Whether a setting of the host can be written is only ever found out by opening it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod failures;
mod isolation;
mod lifecycle;
mod limits;
mod probe;
mod support;
