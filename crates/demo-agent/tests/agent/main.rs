//! The real process, driven over stdio with JSON-RPC lines and without the SDK.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod examples;
mod lines;
mod process;
mod sessions;
mod tools;

use process::{Agent, Turn};
