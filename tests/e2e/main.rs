//! The real server, driven from outside: what works, what is refused, and what survives.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod projects;
