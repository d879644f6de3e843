//! `project_changes` compared with the real `openspec` command on the same files.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_benches::statistics::median;
use oubliette_benches::table::{format_ratio, format_time};
use oubliette_benches::{Client, Protocol, Table, Targets, create_project, is_quick, load};
use serde_json::{Value, json};
use support::{Server, clients, needs};

const CHANGE_COUNT: usize = 200;
const TASKS_PER_CHANGE: usize = 25;
/// How many times as fast as the command the server must be.
const MIN_SPEEDUP: f64 = 50.0;

fn main() {
    if let Some(reason) = needs::missing("openspec") {
        eprintln!("{reason}");
        return;
    }
    let install_dir = clients::client("openspec");
    let (rounds, slice) = if is_quick() {
        (3, Duration::from_millis(300))
    } else {
        (9, Duration::from_secs(1))
    };
    let server = Server::start();
    let id = create_project(&server, "one");
    let workspace = server.workspace(&id);
    write_changes(&workspace);
    let page = json!({ "project_id": id, "limit": 1000 });
    let mut client = [Client::calling_tool(
        &server,
        Protocol::Modern,
        "project_changes",
        &page,
    )];
    let mut seconds: Vec<(f64, f64)> = Vec::new();
    let mut command_output = Value::Null;
    // The first round only warms up.
    for _ in 0..=rounds {
        let started = Instant::now();
        command_output = run_command(&install_dir, &workspace);
        let baseline = started.elapsed();
        let sample = load(&mut client, slice);
        seconds.push((sample.p50.as_secs_f64(), baseline.as_secs_f64()));
    }
    let reply = client[0].call.reply();
    let ours = &reply["result"]["structuredContent"]["changes"];
    let completed_tasks = |list: &Value| -> Vec<(Value, Value)> {
        let list = list.as_array().unwrap().iter();
        list.map(|one| (one["name"].clone(), one["completedTasks"].clone()))
            .collect()
    };
    assert_eq!(completed_tasks(ours).len(), CHANGE_COUNT);
    let theirs = completed_tasks(&command_output["changes"]);
    assert_eq!(
        completed_tasks(ours),
        theirs,
        "the server and the command list different changes"
    );
    let measured = &seconds[1..];
    let median_of = |part: fn(&(f64, f64)) -> f64| median(measured.iter().map(part));
    let ratio = median_of(|(ours, theirs)| theirs / ours);
    let show = |seconds: f64| format_time(Duration::from_secs_f64(seconds));
    let what = format!("{CHANGE_COUNT} changes with {TASKS_PER_CHANGE} tasks each");
    let mut table = Table::new([what.as_str(), "p50", "ratio"]);
    table.row([
        "`openspec list --json`".to_owned(),
        show(median_of(|round| round.1)),
        String::new(),
    ]);
    table.row([
        "`project_changes`".to_owned(),
        show(median_of(|round| round.0)),
        format_ratio(ratio),
    ]);
    table.print();
    let mut targets = Targets::default();
    targets.at_least("speedup over the command", ratio, MIN_SPEEDUP, "×");
    targets.print();
}

fn write_changes(workspace: &Path) {
    for number in 0..CHANGE_COUNT {
        let change = workspace.join(format!("openspec/changes/change-{number:03}"));
        let specs = change.join("specs/capability");
        fs::create_dir_all(&specs).unwrap();
        let tasks: String = (0..TASKS_PER_CHANGE)
            .map(|task| {
                let mark = if task < number % TASKS_PER_CHANGE {
                    'x'
                } else {
                    ' '
                };
                format!("- [{mark}] 1.{task} Do one more thing and see that it works\n")
            })
            .collect();
        for (path, content) in [
            (
                change.join(".openspec.yaml"),
                "schema: spec-driven\ncreated: 2026-01-31\n",
            ),
            (change.join("proposal.md"), "# Why\n\nBecause.\n"),
            (change.join("design.md"), "# How\n\nLike this.\n"),
            (change.join("tasks.md"), tasks.as_str()),
            (specs.join("spec.md"), "## ADDED Requirements\n"),
        ] {
            fs::write(path, content).unwrap();
        }
    }
}

/// Runs `openspec list` once.
fn run_command(install_dir: &Path, workspace: &Path) -> Value {
    let program = install_dir.join("node_modules/@fission-ai/openspec/bin/openspec.js");
    let output = Command::new(install_dir.join("node_modules/.bin/node"))
        .arg(program)
        .args(["list", "--json"])
        .current_dir(workspace)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", workspace.parent().unwrap())
        .env("OPENSPEC_TELEMETRY", "0")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}
