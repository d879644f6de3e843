//! An agent's call of its caller's tool, from the agent's side of `oubliette-client` to the caller and
//! back, compared with a chain of the same pipes, sockets and streams that only forwards, and with one that
//! also syncs each message to disk, as the product must; and the cost of the client itself.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oubliette_benches::chain::{self, Chain};
use oubliette_benches::statistics::{Compared, median};
use oubliette_benches::table::{format_ratio, format_time};
use oubliette_benches::{Sample, Table, Targets, is_quick};
use serde_json::{Value, json};
use support::relay::{RECORDER_CONFIG, keys_of_session};
use support::{AgentClient, Legacy, Server, ServerOptions, binary, built_as};
use tokio::io::AsyncWriteExt;

const MANY_CALLS: usize = 16;
/// The id of the call that waits while others are made.
const WAITING_ID: u64 = 1 << 40;
const SLOW_CALLER_DELAY: Duration = Duration::from_millis(100);

/// The agent's end: of the product, or of a raw chain.
enum Agent {
    Ours(AgentClient),
    Raw(Chain),
}

impl Agent {
    /// Starts a call; the caller takes `ms` milliseconds to respond.
    async fn start_call(&mut self, id: u64, ms: u64) {
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

    /// The id of the next call that has its result.
    async fn next_result(&mut self) -> u64 {
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

    /// Keeps `at_once` calls in flight for some time.
    async fn load(&mut self, at_once: usize, ms: u64, length: Duration) -> Sample {
        let started = Instant::now();
        let (mut next, mut since, mut latencies) = (1, HashMap::new(), Vec::new());
        loop {
            while since.len() < at_once && started.elapsed() < length {
                since.insert(next, Instant::now());
                self.start_call(next, ms).await;
                next += 1;
            }
            if since.is_empty() {
                return Sample::new(latencies, started.elapsed());
            }
            let id = self.next_result().await;
            latencies.push(since.remove(&id).unwrap().elapsed());
        }
    }
}

/// Receives calls on a stream and responds to each after its delay.
async fn run_caller(
    mut stream: reqwest::Response,
    respond: impl Fn(Value) -> Option<(u64, reqwest::RequestBuilder)> + Send + 'static,
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
            if let Some((ms, request)) = message.and_then(&respond) {
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

async fn start_agent(server: &Server) -> (Agent, Vec<String>) {
    let admin = server.admin();
    let params = json!({ "name": "measured", "init_git": false });
    let created = admin.call("project_create", params).await;
    let project = created.ok()["project_id"].as_str().unwrap().to_owned();
    let connected = Legacy::connect(server.url(), &server.admin_key()).await;
    let caller = Arc::new(connected.kept_alive());
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
    tokio::spawn(run_caller(stream, move |message| {
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

async fn start_raw_agent(chain: Chain) -> Agent {
    let http = reqwest::Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .build()
        .unwrap();
    let stream = http.get(&chain.url).send().await.unwrap();
    let url = chain.url.clone();
    tokio::spawn(run_caller(stream, move |request| {
        let ms = request["arguments"]["ms"].as_u64().unwrap();
        let answer = json!({ "id": request["id"], "result": { "ok": true } });
        Some((ms, http.post(&url).json(&answer)))
    }));
    Agent::Raw(chain)
}

/// The cost of an idle client.
struct Costs {
    /// From its start to its response to `initialize`.
    start_ms: f64,
    resident_mib: f64,
    /// Of which not shared with other processes.
    anonymous_mib: f64,
}

fn measure_client(program: &Path, variables: &[String]) -> Costs {
    use std::io::{BufRead, BufReader, Write};
    let (mut starts, mut resident_mib, mut anonymous_mib) = (Vec::new(), 0.0, 0.0);
    for _ in 0..20 {
        let started = Instant::now();
        let mut child = Command::new(program)
            .arg0("oubliette-client")
            .env_clear()
            .envs(variables.iter().filter_map(|pair| pair.split_once('=')))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "agent", "version": "0" },
        });
        let initialize =
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{initialize}").unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        starts.push(started.elapsed().as_secs_f64());
        // It has connected and read its lists of tools by then.
        std::thread::sleep(Duration::from_millis(100));
        // The client is not dumpable, so only root can read this.
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mib = |name: &str| -> f64 {
            let line = status.lines().find(|line| line.starts_with(name));
            let kibibytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
            kibibytes.unwrap_or(f64::NAN) / 1024.0
        };
        resident_mib = f64::max(resident_mib, mib("VmRSS"));
        anonymous_mib = f64::max(anonymous_mib, mib("RssAnon"));
        drop(input);
        child.wait().unwrap();
    }
    Costs {
        start_ms: median(starts) * 1e3,
        resident_mib,
        anonymous_mib,
    }
}

#[tokio::main]
async fn measure() {
    let (rounds, length) = if is_quick() {
        (3, Duration::from_millis(500))
    } else {
        (9, Duration::from_secs(2))
    };
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let (mut ours, variables) = start_agent(&server).await;
    let mut raws = [
        start_raw_agent(Chain::start().await).await,
        start_raw_agent(Chain::start_durable().await).await,
    ];
    let mut table = Table::new([
        "round trips",
        "p50",
        "p99",
        "per second",
        "raw p50",
        "relative",
        "synced raw p50",
        "relative",
    ]);
    let mut targets = Targets::default();
    for at_once in [1, MANY_CALLS] {
        // The first load of each opens the connections.
        ours.load(at_once, 0, length / 4).await;
        for raw in &mut raws {
            raw.load(at_once, 0, length / 4).await;
        }
        let mut samples = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let sample = ours.load(at_once, 0, length).await;
            for (raw, samples) in raws.iter_mut().zip(&mut samples) {
                samples.push((sample, raw.load(at_once, 0, length).await));
            }
        }
        let [raw, synced] = samples.map(|samples| Compared::from_rounds(&samples));
        table.row([
            format!("{at_once} at once"),
            format_time(raw.sample.p50),
            format_time(raw.sample.p99),
            format!("{:.0}", raw.sample.rate),
            format_time(raw.baseline.p50),
            format_ratio(raw.ratio),
            format_time(synced.baseline.p50),
            format_ratio(synced.ratio),
        ]);
        for (compared, chain) in [(raw, "raw chain"), (synced, "raw chain that syncs")] {
            let what = format!("p50 of {at_once} at once, relative to the {chain}");
            targets.at_most(&what, compared.ratio, 3.0, "×");
        }
    }
    let slow = ours.load(MANY_CALLS, 100, length * 2).await;
    let ideal = MANY_CALLS as f64 / SLOW_CALLER_DELAY.as_secs_f64();
    table.row([
        format!("{MANY_CALLS} at once, each 100 ms"),
        format_time(slow.p50),
        format_time(slow.p99),
        format!("{:.0}", slow.rate),
        String::new(),
        String::new(),
        String::new(),
        String::new(),
    ]);
    // The last calls end after the measured time.
    let time_of_all = slow.calls as f64 / slow.rate;
    let share = slow.calls as f64 / (time_of_all * ideal);
    targets.at_least(
        "rate with a caller that takes 100 ms, relative to the ideal",
        share,
        0.9,
        "",
    );

    // A waiting call must not delay others.
    let alone = ours.load(1, 0, length).await;
    ours.start_call(WAITING_ID, 2000 + length.as_millis() as u64)
        .await;
    let baseline = ours.load(1, 0, length).await;
    assert_eq!(ours.next_result().await, WAITING_ID);
    let ratio = baseline.p99.as_secs_f64() / alone.p99.as_secs_f64();
    targets.at_most(
        "p99 while another call waits, relative to alone",
        ratio,
        2.0,
        "×",
    );
    table.print();

    let mut table = Table::new([
        "oubliette-client",
        "to initialized",
        "resident",
        "of which anonymous",
    ]);
    let small = measure_client(&built_as("oubliette-client", "client"), &variables);
    let large = measure_client(binary(), &variables);
    for (name, costs) in [("its own binary", &small), ("the server's binary", &large)] {
        table.row([
            name.to_owned(),
            format!("{:.1} ms", costs.start_ms),
            format!("{:.1} MB", costs.resident_mib),
            format!("{:.1} MB", costs.anonymous_mib),
        ]);
    }
    table.print();
    let start = f64::max(small.start_ms, large.start_ms);
    let what = "oubliette-client, from start to initialized";
    targets.at_most(what, start, 5.0, " ms");
    let what = "oubliette-client, resident when idle";
    targets.at_most(what, small.resident_mib, 3.0, " MB");
    targets.print();
}

fn main() {
    if !chain::run_if_requested() {
        measure();
    }
}
