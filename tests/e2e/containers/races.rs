//! Concurrent calls on one container: no deadlock, every call is answered, and the end state is sound.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{Modern, Random, Reply, server_with};

/// The time limit of a race.
const RACE_TIMEOUT: Duration = Duration::from_secs(90);
/// The time limit of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

type Calls = Vec<(&'static str, Value)>;
type Answers = BTreeMap<String, usize>;

fn draw(random: &mut Random, id: &str) -> (&'static str, Value) {
    let project = json!({ "project_id": id });
    let exec = |command: &str| json!({ "project_id": id, "command": command });
    match random.below(8) {
        0 => ("container_stop", project),
        1 | 2 => ("container_start", project),
        3 => ("container_logs", project),
        4 => ("container_exec", exec("sleep 0.05; echo done")),
        _ => ("container_exec", exec("echo done")),
    }
}

/// The outcome of a call; anything but a result or a sentence is a failure.
fn read(tool: &str, reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{tool}: {}", reply.text);
    if reply.is_error() {
        return format!("{tool}: {}", reply.sentence());
    }
    let (code, output) = (&reply.ok()["exit_code"], &reply.ok()["stdout"]);
    match code.as_i64() {
        None => assert!(output.is_null(), "{}", reply.text),
        Some(0) => assert_eq!(*output, "done\n", "{}", reply.text),
        // Its container was stopped.
        Some(code) => assert!([137, 143].contains(&code), "{}", reply.text),
    }
    format!("{tool}: done")
}

/// Runs all workers at once, each with its calls in a row; the outcomes.
async fn race(admin: &Modern, workers: Vec<Calls>) -> Answers {
    let running = workers.into_iter().map(async |calls| {
        let mut answers = Vec::new();
        for (tool, arguments) in calls {
            let begun = Instant::now();
            let reply = admin.call(tool, arguments).await;
            let took = begun.elapsed();
            assert!(
                took < scaled(CALL_TIMEOUT),
                "{tool} took {took:?}: {}",
                reply.text
            );
            answers.push(read(tool, &reply));
        }
        answers
    });
    let all = tokio::time::timeout(scaled(RACE_TIMEOUT), join_all(running)).await;
    let mut answers = Answers::new();
    for answer in all.expect("a deadlock").into_iter().flatten() {
        *answers.entry(answer).or_default() += 1;
    }
    eprintln!("{answers:#?}");
    answers
}

#[test(runtimes)]
async fn starts_stops_and_commands_at_once_all_get_an_answer(runtime: &str) {
    let mut random = Random::new();
    let server = server_with(runtime, "").await;
    let admin = server.admin().kept_alive();
    let id = admin.project("one").await;
    let (workers, each) = match support::runtime_name(runtime) {
        "docker" => (6, 4),
        _ => (16, 12),
    };
    let mut calls = || -> Calls { (0..each).map(|_| draw(&mut random, &id)).collect() };
    let first = (0..workers).map(|_| calls()).collect();
    let second: Vec<Calls> = (0..workers).map(|_| calls()).collect();
    race(&admin, first).await;
    let exec = json!({ "project_id": id, "command": "echo done" });
    let after = admin.call("container_exec", exec).await;
    assert_eq!(after.ok()["stdout"], "done\n");
    let leftovers = server.leftovers();
    let inside = |line: &&String| line.contains("oubliette-client init");
    let inside = leftovers.processes.iter().filter(inside).count();
    assert_eq!(inside, 1, "{leftovers}");

    let doomed = second.into_iter().enumerate().map(|(n, mut calls)| {
        if n % 4 == 0 {
            calls.insert(each / 2, ("project_delete", json!({ "project_id": id })));
        }
        calls
    });
    let answers = race(&admin, doomed.collect()).await;
    assert_eq!(answers["project_delete: done"], 1);
    server.assert_nothing_left().await;
}

#[test(runtimes)]
async fn a_command_whose_container_is_stopped_is_answered(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let exec = json!({ "project_id": id, "command": "touch begun; exec sleep 600" });
    let running = tokio::spawn({
        let admin = admin.clone();
        async move { admin.call("container_exec", exec).await }
    });
    let begun = support::eventually(Duration::from_secs(20), async || {
        server.workspace(&id).join("begun").exists()
    });
    assert!(begun.await);
    let stop = json!({ "project_id": id });
    assert_eq!(
        admin.call("container_stop", stop).await.ok()["stopped"],
        true
    );
    let reply = tokio::time::timeout(scaled(CALL_TIMEOUT), running)
        .await
        .expect("no answer")
        .unwrap();
    if reply.is_error() {
        assert!(reply.sentence().contains("ended"), "{}", reply.text);
    } else {
        assert_eq!(reply.ok()["exit_code"], 143, "{}", reply.text);
    }
}
