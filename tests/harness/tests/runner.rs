//! The runner, on tests that pass, fail, hang and exit (`sample.rs`).

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::path::Path;
use std::process::Command;

/// The exit code and the output of the runner on the tests whose names contain the filter.
fn run(filter: &str, env: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oubliette-harness-sample"));
    for variable in [
        "OUBLIETTE_TEST_IGNORED",
        "OUBLIETTE_TEST_SEED",
        "OUBLIETTE_TEST_TIMES",
    ] {
        command.env_remove(variable);
    }
    command.arg(filter).envs(env.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), text)
}

fn assert_fails(filter: &str, why: &str) -> String {
    let (code, text) = run(filter, &[]);
    assert_eq!(code, 101, "{text}");
    assert!(
        text.contains(&format!("test {filter} ... FAILED")),
        "{text}"
    );
    assert!(text.contains(why), "{text}");
    assert!(text.contains("0 passed; 1 failed; 0 ignored"), "{text}");
    text
}

#[test]
fn tests_that_return_pass() {
    let (code, text) = run("passes", &[]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("test result: ok. 2 passed; 0 failed; 0 ignored"),
        "{text}"
    );
}

#[test]
fn a_test_that_panics_or_dies_fails_and_shows_its_output() {
    let text = assert_fails("panics", "on purpose");
    assert!(text.contains("said before the panic"), "{text}");
    assert_fails("aborts", "signal: 6");
}

#[test]
fn a_test_whose_process_exits_early_has_not_passed() {
    assert_fails("exits_with_success", "exited before the test returned");
}

#[test]
fn a_test_that_exceeds_its_limit_fails() {
    assert_fails("waits_too_long", "exceeded its limit of 1s");
}

#[test]
fn a_test_that_blocks_is_killed_with_its_children() {
    let text = assert_fails("blocks_with_a_child", "killed: it exceeded its limit of 1s");
    let child = text
        .lines()
        .find_map(|line| line.strip_prefix("child "))
        .unwrap();
    // The pid cannot be another process's already: a minute has not passed since it was given.
    let command_line = Path::new("/proc").join(child).join("cmdline");
    let left = std::fs::read_to_string(command_line).unwrap_or_default();
    assert!(!left.starts_with("sleep"), "{child} is left: {left}");
}

#[test]
fn a_test_whose_need_is_not_met_is_ignored_with_the_reason_unless_all_must_run() {
    let (code, text) = run("unicorn", &[]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("test needs_a_unicorn ... ignored, there is no unicorn"),
        "{text}"
    );
    assert!(text.contains("0 passed; 0 failed; 1 ignored"), "{text}");
    assert!(text.contains("1 ignored: there is no unicorn"), "{text}");

    let (code, text) = run("unicorn", &[("OUBLIETTE_TEST_IGNORED", "fail")]);
    assert_eq!(code, 101, "{text}");
    assert!(text.contains("test result: FAILED"), "{text}");
}

#[test]
fn a_seed_of_the_environment_reaches_the_test() {
    let (_, text) = run("draws", &[("OUBLIETTE_TEST_SEED", "4711")]);
    assert!(text.contains("seed 4711"), "{text}");
    let (_, text) = run("draws", &[]);
    assert!(text.contains("seed 7"), "{text}");
}
