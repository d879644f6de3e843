//! An agent's call of its caller's tool, from the agent's side of `oubliette-client` to the caller and
//! back, beside a chain of the same pipes, sockets and streams with nothing at them, and one that also
//! syncs what it passes on, as we have to; and what the client itself costs.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oubliette_benches::chain::{self, Chain};
use oubliette_benches::figures::{Compared, median};
use oubliette_benches::table::{time, times};
use oubliette_benches::{Aims, Sample, Table, is_quick};
use serde_json::{Value, json};
use support::relay::{RECORDER_CONFIG, keys_of_session};
use support::{AgentClient, Legacy, Server, ServerOptions, binary, built_as};
use tokio::io::AsyncWriteExt;

const AT_ONCE: usize = 16;
/// The call that waits while others are made.
const WAITING: u64 = 1 << 40;
const SLOW: Duration = Duration::from_millis(100);

/// Something that sends a call on its way and gets what comes back.
enum Agent {
    Ours(AgentClient),
    Raw(Chain),
}

impl Agent {
    /// Begins a call; the caller takes `ms` milliseconds to answer it.
    async fn begin(&mut self, id: u64, ms: u64) {
        let arguments = json!({ "ms": ms, "message": "hello there" });
        match self {
            Self::Ours(client) => client.begin_call(id, "app_echo", arguments).await,
            Self::Raw(chain) => {
                let line = json!({ "id": id, "method": "caller_tool", "arguments": arguments });
                let line = format!("{line}\n");
                chain.input.write_all(line.as_bytes()).await.unwrap();
            }
        }
    }

    async fn next(&mut self) -> u64 {
        match self {
            Self::Ours(client) => {
                let (id, reply) = client.next().await;
                assert_eq!(reply["result"]["structuredContent"]["ok"], true, "{reply}");
                id
            }
            Self::Raw(chain) => {
                let line = chain.output.next_line().await.unwrap().unwrap();
                let reply: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(reply["result"]["ok"], true);
                reply["id"].as_u64().unwrap()
            }
        }
    }

    /// Keeps so many calls on their way for a while.
    async fn load(&mut self, at_once: usize, ms: u64, length: Duration) -> Sample {
        let begun = Instant::now();
        let (mut next, mut since, mut latencies) = (1, HashMap::new(), Vec::new());
        loop {
            while since.len() < at_once && begun.elapsed() < length {
                since.insert(next, Instant::now());
                self.begin(next, ms).await;
                next += 1;
            }
            if since.is_empty() {
                return Sample::new(latencies, begun.elapsed());
            }
            let id = self.next().await;
            latencies.push(since.remove(&id).unwrap().elapsed());
        }
    }
}

/// Hears of calls on a stream and answers each in its own time.
async fn be_the_caller(
    mut stream: reqwest::Response,
    answer: impl Fn(Value) -> Option<(u64, reqwest::RequestBuilder)> + Send + 'static,
) {
    let mut text = String::new();
    while let Ok(Some(chunk)) = stream.chunk().await {
        text.push_str(&String::from_utf8_lossy(&chunk));
        while let Some(end) = text.find('\n') {
            let line: String = text.drain(..=end).collect();
            let Some(data) = line.trim().strip_prefix("data:") else {
                continue;
            };
            let message: Option<Value> = serde_json::from_str(data.trim()).ok();
            if let Some((ms, request)) = message.and_then(&answer) {
                tokio::spawn(async move {
                    if ms > 0 {
                        tokio::time::sleep(Duration::from_millis(ms)).await;
                    }
                    let reply = request.send().await.unwrap();
                    assert_eq!(reply.status(), 200);
                    reply.bytes().await.unwrap();
                });
            }
        }
    }
}

async fn ours(server: &Server) -> (Agent, Vec<String>) {
    let admin = server.admin();
    let made = json!({ "name": "measured", "init_git": false });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let caller = Legacy::connect(server.url(), &server.admin_key()).await;
    let caller = Arc::new(caller.kept_alive());
    let schema = json!({ "type": "object", "properties": { "message": { "type": "string" } } });
    let tool = json!({ "name": "echo", "inputSchema": schema });
    let spawn = json!({
        "project_id": project, "prompt": "/say ready", "agent": "recorder",
        "context": { "caller_id": "app", "caller_tools": [tool] },
    });
    let stream = caller.stream().await;
    let spawned = caller.call("session_spawn", spawn).await;
    let session = spawned.ok()["session_id"].as_str().unwrap().to_owned();
    admin.turn(&session, 1).await;
    tokio::spawn(be_the_caller(stream, move |message| {
        let event = &message["params"]["data"];
        if event["type"] != "caller_tool_request" {
            return None;
        }
        let answer = json!({
            "session_id": event["session_id"], "request_id": event["request_id"],
            "result": { "ok": true },
        });
        let call = json!({ "name": "caller_tool_response", "arguments": answer });
        let ms = event["arguments"]["ms"].as_u64().unwrap();
        Some((ms, caller.request("tools/call", call)))
    }));
    let agent_keys = keys_of_session(server, &project, &session);
    let mut agent = AgentClient::start(server, &project, &agent_keys).await;
    agent.begin(0, "tools/list", json!({})).await;
    agent.reply(0).await;
    let variables = AgentClient::variables(server, &project, &agent_keys);
    (Agent::Ours(agent), variables)
}

async fn raw(chain: Chain) -> Agent {
    let http = reqwest::Client::builder().no_proxy().tcp_nodelay(true);
    let http = http.build().unwrap();
    let stream = http.get(&chain.url).send().await.unwrap();
    let url = chain.url.clone();
    tokio::spawn(be_the_caller(stream, move |request| {
        let ms = request["arguments"]["ms"].as_u64().unwrap();
        let answer = json!({ "id": request["id"], "result": { "ok": true } });
        Some((ms, http.post(&url).json(&answer)))
    }));
    Agent::Raw(chain)
}

/// What the client costs, in milliseconds and mebibytes.
struct Costs {
    /// From its start to its introduction.
    start: f64,
    /// What it holds when it has nothing to do, and what of that it shares with nobody.
    resident: f64,
    own: f64,
}

fn client(program: &Path, variables: &[String]) -> Costs {
    use std::io::{BufRead, BufReader, Write};
    let (mut starts, mut resident, mut own) = (Vec::new(), 0.0, 0.0);
    for _ in 0..20 {
        let begun = Instant::now();
        let mut child = Command::new(program)
            .arg0("oubliette-client")
            .env_clear()
            .envs(variables.iter().filter_map(|pair| pair.split_once('=')))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "agent", "version": "0" },
        });
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello });
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{hello}").unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        starts.push(begun.elapsed().as_secs_f64());
        // Its connection and its lists are made by then.
        std::thread::sleep(Duration::from_millis(100));
        // Not dumpable, so only root reads this.
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let of = |name: &str| -> f64 {
            let line = status.lines().find(|line| line.starts_with(name));
            let kibibytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
            kibibytes.unwrap_or(f64::NAN) / 1024.0
        };
        resident = f64::max(resident, of("VmRSS"));
        own = f64::max(own, of("RssAnon"));
        drop(input);
        child.wait().unwrap();
    }
    Costs {
        start: median(starts) * 1e3,
        resident,
        own,
    }
}

#[tokio::main]
async fn measure() {
    let (rounds, length) = match is_quick() {
        true => (3, Duration::from_millis(500)),
        false => (9, Duration::from_secs(2)),
    };
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let (mut ours, variables) = ours(&server).await;
    let mut raws = [
        raw(Chain::start().await).await,
        raw(Chain::start_lasting().await).await,
    ];
    let mut table = Table::new([
        "round trips",
        "p50",
        "p99",
        "per second",
        "raw p50",
        "of raw",
        "synced raw p50",
        "of synced raw",
    ]);
    let mut aims = Aims::default();
    for at_once in [1, AT_ONCE] {
        // The first of each pays for connections.
        ours.load(at_once, 0, length / 4).await;
        for raw in &mut raws {
            raw.load(at_once, 0, length / 4).await;
        }
        let mut samples = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let own = ours.load(at_once, 0, length).await;
            for (raw, samples) in raws.iter_mut().zip(&mut samples) {
                samples.push((own, raw.load(at_once, 0, length).await));
            }
        }
        let [raw, synced] = samples.map(|samples| Compared::of(&samples));
        table.row([
            format!("{at_once} at once"),
            time(raw.sample.p50),
            time(raw.sample.p99),
            format!("{:.0}", raw.sample.rate),
            time(raw.beside.p50),
            times(raw.ratio),
            time(synced.beside.p50),
            times(synced.ratio),
        ]);
        for (compared, chain) in [(raw, "raw chain"), (synced, "raw chain that syncs")] {
            let what = format!("p50 of {at_once} at once, of the {chain}");
            aims.at_most(&what, compared.ratio, 3.0, "×");
        }
    }
    let slow = ours.load(AT_ONCE, 100, length * 2).await;
    let ideal = AT_ONCE as f64 / SLOW.as_secs_f64();
    table.row([
        format!("{AT_ONCE} at once, each 100 ms"),
        time(slow.p50),
        time(slow.p99),
        format!("{:.0}", slow.rate),
        String::new(),
        String::new(),
        String::new(),
        String::new(),
    ]);
    // The last ones are begun at the end of the time and answered after it.
    let time_of_all = slow.calls as f64 / slow.rate;
    let share = slow.calls as f64 / (time_of_all * ideal);
    aims.at_least(
        "rate with a caller that takes 100 ms, of the ideal",
        share,
        0.9,
        "",
    );

    // One that takes its time holds no other up.
    let alone = ours.load(1, 0, length).await;
    ours.begin(WAITING, 2000 + length.as_millis() as u64).await;
    let beside = ours.load(1, 0, length).await;
    assert_eq!(ours.next().await, WAITING);
    let ratio = beside.p99.as_secs_f64() / alone.p99.as_secs_f64();
    aims.at_most("p99 beside a call that waits, of alone", ratio, 2.0, "×");
    table.print();

    let mut table = Table::new([
        "oubliette-client",
        "to its introduction",
        "resident",
        "its own",
    ]);
    let small = client(&built_as("oubliette-client", "client"), &variables);
    let large = client(binary(), &variables);
    for (name, costs) in [("by itself", &small), ("as the server's file", &large)] {
        table.row([
            name.to_owned(),
            format!("{:.1} ms", costs.start),
            format!("{:.1} MB", costs.resident),
            format!("{:.1} MB", costs.own),
        ]);
    }
    table.print();
    let start = f64::max(small.start, large.start);
    let what = "oubliette-client, from start to its introduction";
    aims.at_most(what, start, 5.0, " ms");
    let what = "oubliette-client, resident when idle";
    aims.at_most(what, small.resident, 3.0, " MB");
    aims.print();
}

fn main() {
    if !chain::run_if_asked() {
        measure();
    }
}
