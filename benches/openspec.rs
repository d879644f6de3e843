//! The changes of a project as the server lists them, beside the real `openspec` command on the same
//! files.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_benches::figures::median;
use oubliette_benches::table::{time, times};
use oubliette_benches::{Aims, Client, Era, Table, is_quick, load, make_project};
use serde_json::{Value, json};
use support::{Server, clients, needs};

const CHANGES: usize = 200;
const TASKS: usize = 25;
/// How many times as fast the server must be.
const AIM: f64 = 50.0;

fn main() {
    if let Some(reason) = needs::missing("openspec") {
        eprintln!("{reason}");
        return;
    }
    let place = clients::client("openspec");
    let (rounds, slice) = match is_quick() {
        true => (3, Duration::from_millis(300)),
        false => (9, Duration::from_secs(1)),
    };
    let server = Server::start();
    let id = make_project(&server, "one");
    let workspace = server.workspace(&id);
    fill(&workspace);
    let page = json!({ "project_id": id, "limit": 1000 });
    let mut client = [Client::of_tool(
        &server,
        Era::Modern,
        "project_changes",
        &page,
    )];
    let mut seconds: Vec<(f64, f64)> = Vec::new();
    let mut theirs = Value::Null;
    // The first round only warms up.
    for _ in 0..=rounds {
        let begun = Instant::now();
        theirs = command(&place, &workspace);
        let beside = begun.elapsed();
        let sample = load(&mut client, slice);
        seconds.push((sample.p50.as_secs_f64(), beside.as_secs_f64()));
    }
    let reply = client[0].call.reply();
    let ours = &reply["result"]["structuredContent"]["changes"];
    let counted = |list: &Value| -> Vec<(Value, Value)> {
        let list = list.as_array().unwrap().iter();
        list.map(|one| (one["name"].clone(), one["completedTasks"].clone()))
            .collect()
    };
    assert_eq!(counted(ours).len(), CHANGES);
    let theirs = counted(&theirs["changes"]);
    assert_eq!(counted(ours), theirs, "not the same answer");
    let measured = &seconds[1..];
    let of = |part: fn(&(f64, f64)) -> f64| median(measured.iter().map(part));
    let ratio = of(|(ours, theirs)| theirs / ours);
    let shown = |seconds: f64| time(Duration::from_secs_f64(seconds));
    let what = format!("{CHANGES} changes with {TASKS} tasks each");
    let mut table = Table::new([what.as_str(), "p50", "ratio"]);
    table.row([
        "`openspec list --json`".to_owned(),
        shown(of(|round| round.1)),
        String::new(),
    ]);
    table.row([
        "`project_changes`".to_owned(),
        shown(of(|round| round.0)),
        times(ratio),
    ]);
    table.print();
    let mut aims = Aims::default();
    aims.at_least("the command's time, of the server's", ratio, AIM, "×");
    aims.print();
}

/// Changes as people write them.
fn fill(workspace: &Path) {
    for number in 0..CHANGES {
        let change = workspace.join(format!("openspec/changes/change-{number:03}"));
        let specs = change.join("specs/capability");
        fs::create_dir_all(&specs).unwrap();
        let tasks: String = (0..TASKS)
            .map(|task| {
                let mark = if task < number % TASKS { 'x' } else { ' ' };
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

/// Runs the command once, as people do.
fn command(place: &Path, workspace: &Path) -> Value {
    let program = place.join("node_modules/@fission-ai/openspec/bin/openspec.js");
    let output = Command::new(place.join("node_modules/.bin/node"))
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
