//! Real sandboxes on this machine. `OUBLIETTE_TEST_SANDBOX` lists the modes that must work here:
//! `root`, `user` and `bwrap`, separated by commas. A test of a mode that is not listed is skipped
//! with a message; one of a listed mode that does not work fails.
//!
//! Tests only open settings of the host to find out whether they can be written; they never write.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod failures;
mod isolation;
mod lifecycle;
mod limits;
mod probe;
mod support;
