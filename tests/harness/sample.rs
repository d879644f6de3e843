//! Tests that pass, fail, hang and exit, for the test of the runner itself.

#![allow(clippy::print_stdout, reason = "tests print")]

#[macro_use]
extern crate oubliette_test_harness;

use std::process::{Command, ExitCode};
use std::time::Duration;

use oubliette_test_harness::Suite;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn passes() {}

#[test]
async fn passes_in_a_runtime() {
    tokio::task::yield_now().await;
}

#[test]
fn panics() {
    println!("said before the panic");
    panic!("on purpose");
}

#[test]
fn aborts() {
    std::process::abort();
}

#[test]
fn exits_with_success() {
    std::process::exit(0);
}

#[test(limit = 1)]
async fn waits_too_long() {
    tokio::time::sleep(MINUTE).await;
}

/// Blocks its thread, with a child that must not be left over. Its pid is the output.
#[test(limit = 1)]
async fn blocks_with_a_child() {
    let child = Command::new("sleep").arg("60").spawn();
    println!("child {}", child.map_or(0, |child| child.id()));
    std::thread::sleep(MINUTE);
}

#[test(needs(unicorn))]
fn needs_a_unicorn() {}

#[test]
fn draws_a_seed() {
    println!("seed {}", oubliette_test_harness::seed(Some(7)));
    panic!("so that its output is shown");
}

fn missing(need: &str) -> Option<String> {
    Some(format!("there is no {need}"))
}

fn main() -> ExitCode {
    oubliette_test_harness::main(&Suite {
        missing,
        prepare: Vec::new,
    })
}
