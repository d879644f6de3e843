//! The real client as the process of an agent; the test is the server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use oubliette_wire::{AGENT_SUBCOMMAND, FileFormat, HomeFile, HomePlan, HomeReport};

fn plan(shared: &Path) -> HomePlan {
    HomePlan {
        shared: shared.to_str().unwrap().to_owned(),
        own: ".sessions/s1".to_owned(),
        resumed: false,
        private: vec![
            ".sessions".to_owned(),
            ".config".to_owned(),
            ".local".to_owned(),
        ],
        copied: Vec::new(),
        removed: Vec::new(),
        leftovers: Vec::new(),
        files: vec![
            HomeFile::new(
                "bin/program",
                FileFormat::Program,
                "#!/bin/sh\necho $HOME\nexec cat",
            ),
            HomeFile::new("bin/data", FileFormat::Whole, "no program"),
        ],
        commit_hook: String::new(),
        requires_own: false,
    }
}

/// Runs a program as an agent with this plan: its report, and what the program wrote.
fn run(plan: &HomePlan, program: &str, input: &str) -> (HomeReport, String) {
    let json = serde_json::to_vec(plan).unwrap();
    let home = plan.own_path();
    let mut child = Command::new(env!("CARGO_BIN_EXE_oubliette-client"))
        .args([AGENT_SUBCOMMAND, &json.len().to_string(), program])
        .env_clear()
        .env("HOME", &home)
        .env("PATH", format!("{home}/bin:/usr/bin:/bin"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&json).unwrap();
    // An agent that does not start reads no more.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let (report, rest) = output.split_once('\n').unwrap();
    (serde_json::from_str(report).unwrap(), rest.to_owned())
}

#[test]
fn the_agent_gets_its_home_and_the_input_after_the_plan() {
    let shared = tempfile::tempdir().unwrap();
    let mut plan = plan(shared.path());
    let (report, output) = run(&plan, "program", "hello");
    assert_eq!(report, HomeReport::Ready(plan.own_path()));
    assert_eq!(output, format!("{}\nhello", plan.own_path()));

    // A conversation in the shared home stays there, and the environment names that home.
    plan.own = ".sessions/s2".to_owned();
    plan.resumed = true;
    let (report, output) = run(&plan, "program", "hello");
    assert_eq!(report, HomeReport::Ready(plan.shared.clone()));
    assert_eq!(output, format!("{}\nhello", plan.shared));
}

#[test]
fn an_agent_that_cannot_start_reports_why() {
    let shared = tempfile::tempdir().unwrap();
    let mut plan = plan(shared.path());
    let (report, _) = run(&plan, "no-such-program", "");
    assert!(matches!(report, HomeReport::NotFound(_)), "{report:?}");
    let (report, _) = run(&plan, "data", "");
    assert!(matches!(report, HomeReport::Denied(_)), "{report:?}");

    plan.files = vec![HomeFile::new("bin/program/below", FileFormat::Whole, "")];
    let (report, _) = run(&plan, "sh", "");
    let HomeReport::Failed(reason) = report else {
        panic!("{report:?}");
    };
    assert!(reason.contains("bin/program"), "{reason}");

    plan.own = ".sessions/s2".to_owned();
    plan.resumed = true;
    plan.requires_own = true;
    assert_eq!(run(&plan, "sh", "").0, HomeReport::Shared);
}
