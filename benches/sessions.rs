//! What a session costs compared with the agent alone: the time from the prompt to the first word in a
//! warm and a cold container, the time to wake long polls, the memory of idle sessions, and failures of
//! many sessions at once.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_benches::statistics::median;
use oubliette_benches::table::format_time;
use oubliette_benches::{Client, Protocol, Table, Targets, is_quick};
use serde_json::{Value, json};
use support::{Modern, Server, ServerOptions, binary};

/// Seconds that the agent alone takes: its process, its handshake, a prompt, its first word.
fn measure_agent_alone() -> f64 {
    let home = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let mut agent = Command::new(binary())
        .arg("demo-agent")
        .env("HOME", home.path())
        .current_dir(home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = agent.stdin.take().unwrap();
    let mut output = BufReader::new(agent.stdout.take().unwrap());
    let mut request = |line: Value, done: &dyn Fn(&Value) -> bool| {
        writeln!(input, "{line}").unwrap();
        loop {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            if done(&message) {
                return message;
            }
        }
    };
    let is_reply_to =
        |id: i64| move |message: &Value| message["id"] == id && message["method"].is_null();
    let capabilities = json!({ "protocolVersion": 1, "clientCapabilities": {} });
    request(
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": capabilities }),
        &is_reply_to(1),
    );
    let directory = json!({ "cwd": home.path(), "mcpServers": [] });
    let opened = request(
        json!({ "jsonrpc": "2.0", "id": 2, "method": "session/new", "params": directory }),
        &is_reply_to(2),
    );
    let prompt = json!({ "sessionId": opened["result"]["sessionId"],
        "prompt": [{ "type": "text", "text": "/say hi" }] });
    request(
        json!({ "jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt }),
        &|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk",
    );
    let seconds = started.elapsed().as_secs_f64();
    agent.kill().unwrap();
    agent.wait().unwrap();
    seconds
}

/// Seconds from `session_spawn` to the first word, as a caller sees them.
async fn measure_session(admin: &Modern, project: &str) -> f64 {
    let started = Instant::now();
    let new = json!({ "new_session": true });
    let session = admin.spawn_with(project, "/say hi", new).await;
    admin
        .follow(&session, |event| {
            event["type"] == "message" || event["type"] == "delta"
        })
        .await;
    let seconds = started.elapsed().as_secs_f64();
    admin
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok();
    seconds
}

fn resident_kb(server: &Server) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Seconds from a message until long polls return its event: the median of one reader alone, and the
/// 99th percentile of many.
async fn measure_wakeups(server: &Server, project: &str, readers: usize) -> (f64, f64) {
    let admin = server.admin().kept_alive();
    let session = admin
        .spawn_with(project, "/say ready", json!({ "new_session": true }))
        .await;
    admin.turn(&session, 1).await;
    let idle = admin.status(&session, "idle").await;
    let mut last = idle["last_index"].as_i64().unwrap();
    let wait =
        |since: i64| json!({ "session_id": session, "since_index": since, "wait_seconds": 50 });
    let mut alone = Vec::new();
    let mut together = Vec::new();
    for count in [1, 1, 1, 1, 1, readers] {
        let readers: Vec<_> = (0..count)
            .map(|_| {
                let call = json!({ "name": "session_events", "arguments": wait(last) });
                Client::connect(server, Protocol::Modern, "tools/call", call, |reply| {
                    let events = &reply["result"]["structuredContent"]["events"];
                    events.as_array().is_some_and(|events| !events.is_empty())
                })
            })
            .map(|mut reader| {
                std::thread::spawn(move || {
                    reader.run();
                    Instant::now()
                })
            })
            .collect();
        // Long enough that all of them wait.
        tokio::time::sleep(Duration::from_millis(500 + 2 * count as u64)).await;
        let started = Instant::now();
        admin.message(&session, "/say next").await;
        let times: Vec<f64> = readers
            .into_iter()
            .map(|reader| (reader.join().unwrap() - started).as_secs_f64())
            .collect();
        let idle_again = admin.status(&session, "idle").await;
        last = idle_again["last_index"].as_i64().unwrap();
        match count {
            1 => alone.extend(times),
            _ => together = times,
        }
    }
    together.sort_by(f64::total_cmp);
    let p99 = together[together.len() * 99 / 100];
    (median(alone), p99)
}

/// Creates sessions, ten at a time, and waits until their agents have stopped.
async fn create_idle_sessions(admin: &Modern, project: &str, count: u32) {
    for batch in 0..count / 10 {
        let mut created = Vec::new();
        for _ in 0..10 {
            let new = json!({ "new_session": true });
            created.push(admin.spawn_with(project, "/say hi", new).await);
        }
        for session in &created {
            admin.turn(session, 1).await;
        }
        if batch % 10 == 9 {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
}

fn start_server() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n[sessions]\nidle_seconds = 2\n".to_owned(),
        ..ServerOptions::default()
    })
}

#[tokio::main]
async fn main() {
    let quick = is_quick();
    let rounds = if quick { 5 } else { 25 };
    let server = start_server();
    let admin = server.admin().kept_alive();
    let project = admin.project("measured").await;
    let (mut alone, mut warm, mut cold) = (Vec::new(), Vec::new(), Vec::new());
    measure_session(&admin, &project).await;
    for _ in 0..rounds {
        alone.push(measure_agent_alone());
        warm.push(measure_session(&admin, &project).await);
        admin
            .call("container_stop", json!({ "project_id": project }))
            .await
            .ok();
        cold.push(measure_session(&admin, &project).await);
    }
    let show = |seconds: f64| format_time(Duration::from_secs_f64(seconds));
    let (alone, warm, cold) = (median(alone), median(warm), median(cold));
    let mut table = Table::new(["from the prompt to the first word", "median", "added"]);
    table.row(["the agent alone".to_owned(), show(alone), String::new()]);
    table.row([
        "in a warm container".to_owned(),
        show(warm),
        show(warm - alone),
    ]);
    table.row([
        "in a cold sandbox".to_owned(),
        show(cold),
        show(cold - alone),
    ]);
    table.print();
    let mut targets = Targets::default();
    targets.at_most(
        "added in a warm container",
        (warm - alone) * 1e3,
        15.0,
        " ms",
    );
    targets.at_most("added in a cold sandbox", (cold - alone) * 1e3, 60.0, " ms");

    let readers = if quick { 100 } else { 1000 };
    let (one, p99) = measure_wakeups(&server, &project, readers).await;
    let mut table = Table::new(["from a message to its event in a long poll", ""]);
    table.row(["one reader, median".to_owned(), show(one)]);
    table.row([format!("{readers} readers, 99th percentile"), show(p99)]);
    table.print();
    targets.at_most(
        &format!("p99 of {readers} long polls, relative to the median of one"),
        p99 / one,
        20.0,
        "×",
    );

    let live = if quick { 20 } else { 100 };
    let mut sessions = Vec::new();
    for n in 0..live {
        let new = json!({ "new_session": true });
        let prompt = format!("/sh sleep 1; echo {n}");
        sessions.push((n, admin.spawn_with(&project, &prompt, new).await));
    }
    let mut failed = 0;
    for (n, session) in &sessions {
        let completion = admin.turn(session, 1).await;
        let is_right = completion["text"].as_str() == Some(&n.to_string());
        if !is_right && failed == 0 {
            eprintln!("a session failed: {completion}");
        }
        failed += u32::from(!is_right);
    }
    targets.at_most(
        &format!("failures of {live} sessions at once"),
        f64::from(failed),
        0.0,
        "",
    );

    // Agents stop when they are idle, and their sessions stay in the store. A new server, because the old one
    // has not returned the memory that it freed.
    let server = start_server();
    let admin = server.admin().kept_alive();
    let project = admin.project("idle").await;
    let idle = if quick { 50 } else { 1000 };
    let before = {
        create_idle_sessions(&admin, &project, 200).await;
        resident_kb(&server)
    };
    create_idle_sessions(&admin, &project, idle).await;
    let each = (resident_kb(&server) - before) / f64::from(idle);
    targets.at_most(
        &format!("memory of each of {idle} idle sessions"),
        each,
        50.0,
        " KB",
    );
    targets.print();
}
