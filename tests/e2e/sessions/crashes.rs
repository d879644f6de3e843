//! The server may die at any moment of a session: afterwards the log is that of an undisturbed run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Modern, Random, Server, ServerOptions, server_with};

/// How many times the server is killed at least.
const KILLS: usize = 200;

/// A turn with the usual events, and time to be killed in between.
const SCRIPT: &str = "/say It begins.
/repeat 6 /sh echo step; sleep 0.01
/say Then some words, which are streamed,
/sleep 0.4
/say one after the other,
/sleep 0.4
/say until they end.
/usage 10 2 0.01
/ask May I go on?
/repeat 4 /sh echo more >&2; exit 3
/garbage this is no message
/say It ends.
/sh wc -l < counted
/usage 5 1 0.02";

/// Checks that the deltas before each message or thought are the start of its text, each part once: only
/// the end of a text may come without a delta.
fn check_deltas(log: &[Value], round: usize) {
    let mut joined = String::new();
    for event in log {
        let (kind, text) = (&event["type"], event["text"].as_str().unwrap_or_default());
        if kind == "delta" {
            joined.push_str(text);
        } else if kind == "message" || kind == "thought" {
            assert!(
                text.starts_with(&joined),
                "round {round}: {joined:?} of {event}"
            );
            joined.clear();
        }
    }
    assert_eq!(joined, "", "round {round}: deltas of no message");
}

/// A log without the fields that differ from run to run: times, ids, and how text was cut into deltas.
fn essence(log: &[Value]) -> Vec<Value> {
    let mut known: Vec<Value> = Vec::new();
    for event in log {
        let mut event = event.clone();
        if event["type"] == "delta" {
            continue;
        }
        for key in [
            "index",
            "session_id",
            "timestamp",
            "expires_at",
            "request_id",
            "waiting_for",
        ] {
            event.as_object_mut().unwrap().remove(key);
        }
        known.push(event);
    }
    known
}

/// Allows every permission request of an agent, until the task is aborted.
async fn allow_every_request(caller: Modern, session: String) {
    let mut since = -1;
    loop {
        let next_page = json!({ "session_id": session, "since_index": since, "wait_seconds": 5 });
        let page = caller
            .call_until_answered("session_events", next_page)
            .await;
        since = page.ok()["last_index"].as_i64().unwrap();
        for event in page.ok()["events"].as_array().unwrap() {
            if event["type"] == "permission_request" {
                let answer = json!({
                    "session_id": session, "request_id": event["request_id"], "decision": "allow",
                });
                caller.call_until_answered("session_permit", answer).await;
            }
        }
    }
}

fn is_over(session: &Value) -> bool {
    session["status"] == "idle" && session["turns"] == 2
}

/// Runs the script, which makes about `events` events, and kills the server at random places in its
/// log; never if `events` is 0. Returns the log, and for each kill the index of the last event before it.
async fn run(
    server: &mut Server,
    project: &str,
    events: u64,
    random: &mut Random,
) -> (Vec<Value>, Vec<usize>) {
    let admin = server.admin();
    let choices = json!({ "new_session": true, "autonomy": "off" });
    let prompt = SCRIPT.replace("counted", "/dev/null");
    let session = admin.spawn_with(project, &prompt, choices).await;
    admin
        .message(&session, "/say And a second turn.\n/sh echo two")
        .await;
    let answering = tokio::spawn(allow_every_request(admin.clone(), session.clone()));
    let mut killed_after = Vec::new();
    let mut next = 0;
    while next < events {
        // A place in the log, not a time: however slow the machine is, kills fall everywhere.
        let target = next + random.below(events - next);
        let page = json!({
            "session_id": session, "since_index": i64::try_from(target).unwrap() - 1,
            "max_events": 1, "wait_seconds": 5, "types": ["all"],
        });
        let page = admin.call_until_answered("session_events", page).await;
        if page.ok()["events"].as_array().unwrap().is_empty() {
            if is_over(&admin.session(&session).await) {
                break;
            }
            continue;
        }
        tokio::time::sleep(random.duration_below(Duration::from_millis(5))).await;
        server.kill();
        killed_after.push(usize::try_from(target).unwrap());
        next = target + 1;
        server.start_again();
    }
    admin.turn(&session, 2).await;
    answering.abort();
    admin.status(&session, "idle").await;
    let log = admin.log(&session).await;
    admin
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok();
    (log, killed_after)
}

#[test(needs(sandbox), limit = 900)]
async fn the_log_after_any_number_of_crashes_is_that_of_an_undisturbed_run() {
    let mut server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let project = server.admin().project("one").await;
    let mut random = Random::new();
    let (undisturbed, _) = run(&mut server, &project, 0, &mut random).await;
    let expected = essence(&undisturbed);
    let types: Vec<&str> = expected
        .iter()
        .map(|e| e["type"].as_str().unwrap())
        .collect();
    let deltas = undisturbed.iter().filter(|event| event["type"] == "delta");
    assert!(deltas.count() >= 2, "the script streams nothing");
    check_deltas(&undisturbed, 0);
    for kind in [
        "status",
        "prompt",
        "message",
        "tool_call",
        "tool_result",
        "usage",
        "permission_request",
        "permission_answer",
        "checkpoint",
        "completion",
        "log",
    ] {
        assert!(
            types.contains(&kind),
            "the script makes no {kind}: {types:?}"
        );
    }
    let mut kills_after: BTreeMap<String, usize> = BTreeMap::new();
    let mut round = 0;
    while kills_after.values().sum::<usize>() < KILLS {
        round += 1;
        let (log, killed_after) =
            run(&mut server, &project, undisturbed.len() as u64, &mut random).await;
        for index in killed_after {
            *kills_after
                .entry(log[index]["type"].to_string())
                .or_default() += 1;
        }
        let indexes: Vec<i64> = log.iter().map(|e| e["index"].as_i64().unwrap()).collect();
        assert_eq!(indexes, (0..log.len() as i64).collect::<Vec<_>>());
        check_deltas(&log, round);
        let found = essence(&log);
        for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "round {round}, event {n}");
        }
        assert_eq!(found.len(), expected.len(), "round {round}");
    }
    eprintln!("kills by the kind of event before them: {kills_after:?}");
    assert!(
        kills_after.len() >= 8,
        "few moments were met: {kills_after:?}"
    );
}

#[test(runtimes)]
async fn a_server_that_dies_in_mid_turn_finds_its_agent_again_in_every_runtime(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let made = json!({ "name": "one", "init_git": false });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let prompt = "/say before\n/sh sleep 1; echo slept\n/say after";
    let session = admin.spawn(&project, prompt).await;
    admin.follow(&session, |e| e["type"] == "tool_call").await;
    server.kill();
    server.start_again();
    // Queued while the turn runs that another server began.
    admin.message(&session, "/say next").await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "before\n\nafter\nslept", "{runtime}");
    assert_eq!(admin.turn(&session, 2).await["text"], "next", "{runtime}");
    let log = admin.log(&session).await;
    assert!(log.iter().all(|e| e["resumed_by"].is_null()), "{log:#?}");
}

#[test(needs(sandbox))]
async fn a_server_that_stops_leaves_its_agents_at_work() {
    let mut server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let prompt =
        "/sh for n in 1 2 3 4 5; do echo $n >> counted; sleep 0.1; done\n/sh wc -l < counted";
    let session = admin.spawn(&project, prompt).await;
    admin.follow(&session, |e| e["type"] == "tool_call").await;
    assert_eq!(server.stop(), Some(0));
    let counted = server.workspace(&project).join("counted");
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while std::fs::read_to_string(&counted)
        .unwrap_or_default()
        .lines()
        .count()
        < 5
    {
        assert!(
            std::time::Instant::now() < deadline,
            "the agent stopped with its server"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.start_again();
    assert_eq!(admin.turn(&session, 1).await["text"], "5");
}
