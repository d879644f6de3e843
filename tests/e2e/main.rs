//! The real server, driven from outside: what works, what is refused, and what survives.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[macro_use]
extern crate oubliette_test_harness;

mod agents;
mod callers;
mod checkout;
mod cli;
mod containers;
mod credentials;
mod documents;
mod gateway;
mod hostile;
mod network;
mod openspec;
mod projects;
mod schedules;
mod server;
mod sessions;
mod work;

fn main() -> std::process::ExitCode {
    oubliette_test_harness::main(&support::needs::SUITE)
}
