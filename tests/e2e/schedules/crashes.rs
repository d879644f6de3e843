//! Schedules of a server that dies: each instant has one run, and each run one turn.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use support::schedules::{history, until};
use support::{Random, Server, ServerOptions};

async fn scheduled(server: &Server, project: &str, cron_expr: &str) -> String {
    let parameters = json!({
        "name": "often", "cron_expr": cron_expr, "prompt": "/sh echo ran >> ran; wc -l < ran",
        "overlap_behavior": "parallel", "targets": [{ "project_id": project }],
    });
    let made = server.admin().call("schedule_create", parameters).await;
    made.ok()["schedule_id"].as_str().unwrap().to_owned()
}

fn succeeded(runs: &[Value]) -> usize {
    runs.iter().filter(|run| run["status"] == "success").count()
}

/// Checks that every run had one turn of one session. Runs that a killed server left open at the same
/// time may have their turns in any order.
async fn check(server: &Server, project: &str, runs: &[Value]) {
    let mut outputs = BTreeSet::new();
    for run in runs {
        assert_eq!(run["status"], "success", "{run}");
        let output: usize = run["output"].as_str().unwrap().parse().unwrap();
        assert!(outputs.insert(output), "two runs had the same turn: {run}");
        assert_eq!(run["session_id"], runs[0]["session_id"], "{run}");
        assert_eq!(run["cause"], "schedule", "{run}");
    }
    assert!(outputs.into_iter().eq(1..=runs.len()));
    let dues: Vec<&str> = runs
        .iter()
        .map(|run| run["due_at"].as_str().unwrap())
        .collect();
    assert!(dues.windows(2).all(|two| two[0] < two[1]), "{dues:?}");
    let ran = std::fs::read_to_string(server.workspace(project).join("ran")).unwrap();
    assert_eq!(ran.lines().count(), runs.len());
    let log = server
        .admin()
        .log(runs[0]["session_id"].as_str().unwrap())
        .await;
    let prompts = log.iter().filter(|event| event["type"] == "prompt").count();
    assert_eq!(prompts, runs.len());
}

#[test(needs(sandbox), mostly_waits, limit = 240)]
async fn every_instant_runs_once_however_often_the_server_is_killed() {
    let mut server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n[schedules]\nmin_interval_seconds = 1\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let schedule = scheduled(&server, &project, "* * * * * *").await;
    let mut random = Random::new();
    until(&admin, &schedule, |runs| succeeded(runs) >= 1).await;
    for _ in 0..25 {
        // The moment of the kill.
        tokio::time::sleep(random.duration_below(Duration::from_millis(1500))).await;
        server.kill();
        server.start_again();
    }
    let before = history(&admin, &schedule).await.len();
    until(&admin, &schedule, |runs| runs.len() > before + 2).await;
    let off = json!({ "schedule_id": schedule, "enabled": false });
    admin.call("schedule_update", off).await.ok();
    let over =
        |runs: &[Value]| !runs.is_empty() && runs.iter().all(|run| run["ended_at"].is_string());
    let runs = until(&admin, &schedule, over).await;
    check(&server, &project, &runs).await;
    assert!(runs.len() > 10, "{}", runs.len());
}

#[test(needs(sandbox), mostly_waits, limit = 240)]
async fn a_schedule_of_every_minute_skips_no_minute_during_a_restart() {
    let mut server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let schedule = scheduled(&server, &project, "* * * * *").await;
    until(&admin, &schedule, |runs| succeeded(runs) == 1).await;
    assert_eq!(server.stop(), Some(0));
    server.start_again();
    let runs = until(&admin, &schedule, |runs| succeeded(runs) == 2).await;
    check(&server, &project, &runs).await;
    let second = |run: &Value| {
        let due: jiff::Timestamp = run["due_at"].as_str().unwrap().parse().unwrap();
        due.as_second()
    };
    assert_eq!(second(&runs[1]) - second(&runs[0]), 60);
    assert_eq!(second(&runs[0]) % 60, 0);
}
