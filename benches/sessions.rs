//! What a session costs beside the bare agent: from the prompt to its first word in a warm and a
//! cold container, long polls woken, idle sessions in memory, and many at work at once.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_benches::figures::median;
use oubliette_benches::table::time;
use oubliette_benches::{Aims, Client, Era, Table, is_quick};
use serde_json::{Value, json};
use support::{Modern, Server, ServerOptions, binary};

/// How fast the agent is by itself: its process, its handshake, a prompt, its first word.
fn bare() -> f64 {
    let home = tempfile::tempdir().unwrap();
    let begun = Instant::now();
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
    let mut ask = |line: Value, done: &dyn Fn(&Value) -> bool| {
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
    let answer =
        |id: i64| move |message: &Value| message["id"] == id && message["method"].is_null();
    let hello = json!({ "protocolVersion": 1, "clientCapabilities": {} });
    ask(
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }),
        &answer(1),
    );
    let place = json!({ "cwd": home.path(), "mcpServers": [] });
    let opened = ask(
        json!({ "jsonrpc": "2.0", "id": 2, "method": "session/new", "params": place }),
        &answer(2),
    );
    let prompt = json!({ "sessionId": opened["result"]["sessionId"],
        "prompt": [{ "type": "text", "text": "/say hi" }] });
    ask(
        json!({ "jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt }),
        &|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk",
    );
    let took = begun.elapsed().as_secs_f64();
    agent.kill().unwrap();
    agent.wait().unwrap();
    took
}

/// The same through the product, as a caller sees it.
async fn ours(admin: &Modern, project: &str) -> f64 {
    let begun = Instant::now();
    let new = json!({ "new_session": true });
    let session = admin.spawn_with(project, "/say hi", new).await;
    admin
        .follow(&session, |event| {
            event["type"] == "message" || event["type"] == "delta"
        })
        .await;
    let took = begun.elapsed().as_secs_f64();
    admin
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok();
    took
}

fn resident(server: &Server) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// How long after a message each of many waiting readers has its event: median of one alone, and
/// the 99th percentile of all.
async fn wake(server: &Server, project: &str, readers: usize) -> (f64, f64) {
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
    let mut everybody = Vec::new();
    for count in [1, 1, 1, 1, 1, readers] {
        let readers: Vec<_> = (0..count)
            .map(|_| {
                let call = json!({ "name": "session_events", "arguments": wait(last) });
                Client::connect(server, Era::Modern, "tools/call", call, |reply| {
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
        // Until all of them wait: a call that is answered is behind them in no queue.
        tokio::time::sleep(Duration::from_millis(500 + 2 * count as u64)).await;
        let begun = Instant::now();
        admin.message(&session, "/say next").await;
        let times = readers.into_iter().map(|reader| reader.join().unwrap());
        let times: Vec<f64> = times.map(|woken| (woken - begun).as_secs_f64()).collect();
        let settled = admin.status(&session, "idle").await;
        last = settled["last_index"].as_i64().unwrap();
        match count {
            1 => alone.extend(times),
            _ => everybody = times,
        }
    }
    everybody.sort_by(f64::total_cmp);
    let p99 = everybody[everybody.len() * 99 / 100];
    (median(alone), p99)
}

/// Makes sessions, a few at a time, and waits until their agents have stopped.
async fn rest(admin: &Modern, project: &str, count: u32) {
    for batch in 0..count / 10 {
        let mut made = Vec::new();
        for _ in 0..10 {
            let new = json!({ "new_session": true });
            made.push(admin.spawn_with(project, "/say hi", new).await);
        }
        for session in &made {
            admin.turn(session, 1).await;
        }
        if batch % 10 == 9 {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
}

fn start() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n[sessions]\nidle_seconds = 2\n".to_owned(),
        ..ServerOptions::default()
    })
}

#[tokio::main]
async fn main() {
    let quick = is_quick();
    let rounds = if quick { 5 } else { 25 };
    let server = start();
    let admin = server.admin().kept_alive();
    let project = admin.project("measured").await;
    let (mut alone, mut warm, mut cold) = (Vec::new(), Vec::new(), Vec::new());
    ours(&admin, &project).await;
    for _ in 0..rounds {
        alone.push(bare());
        warm.push(ours(&admin, &project).await);
        admin
            .call("container_stop", json!({ "project_id": project }))
            .await
            .ok();
        cold.push(ours(&admin, &project).await);
    }
    let shown = |seconds: f64| time(Duration::from_secs_f64(seconds));
    let (alone, warm, cold) = (median(alone), median(warm), median(cold));
    let mut table = Table::new(["from the prompt to the first word", "median", "our share"]);
    table.row(["the bare agent".to_owned(), shown(alone), String::new()]);
    table.row([
        "in a warm container".to_owned(),
        shown(warm),
        shown(warm - alone),
    ]);
    table.row([
        "in a cold sandbox".to_owned(),
        shown(cold),
        shown(cold - alone),
    ]);
    table.print();
    let mut aims = Aims::default();
    aims.at_most("our share, warm", (warm - alone) * 1e3, 15.0, " ms");
    aims.at_most("our share, cold", (cold - alone) * 1e3, 60.0, " ms");

    let readers = if quick { 100 } else { 1000 };
    let (one, p99) = wake(&server, &project, readers).await;
    let mut table = Table::new(["from a message to its event in a long poll", ""]);
    table.row(["one reader, median".to_owned(), shown(one)]);
    table.row([format!("{readers} readers, 99th percentile"), shown(p99)]);
    table.print();
    aims.at_most(
        &format!("p99 of {readers} long polls woken, of the median of one"),
        p99 / one,
        20.0,
        "×",
    );

    // Many at work at once, none of which may fail.
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
        let right = completion["text"].as_str() == Some(&n.to_string());
        if !right && failed == 0 {
            eprintln!("one that failed: {completion}");
        }
        failed += u32::from(!right);
    }
    aims.at_most(
        &format!("failures of {live} sessions at once"),
        f64::from(failed),
        0.0,
        "",
    );

    // Their agents stop when they are idle; what is left of a session is in the store. A new server: what
    // the one before has freed it has not given back.
    let server = start();
    let admin = server.admin().kept_alive();
    let project = admin.project("idle").await;
    let idle = if quick { 50 } else { 1000 };
    let before = {
        rest(&admin, &project, 200).await;
        resident(&server)
    };
    rest(&admin, &project, idle).await;
    let each = (resident(&server) - before) / f64::from(idle);
    aims.at_most(
        &format!("memory of each of {idle} idle sessions"),
        each,
        50.0,
        " KB",
    );
    aims.print();
}
