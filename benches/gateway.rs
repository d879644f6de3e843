//! What it costs that a container reaches its model through the gateway, and other hosts through the gate: the same
//! program in a container and directly on this machine, with the same servers on loopback.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]
#![allow(clippy::print_stdout, reason = "it prints what it needs")]

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use futures_util::future::join_all;
use futures_util::stream;
use oubliette_benches::egress::{self, EgressLoad, EgressTimes, Route};
use oubliette_benches::statistics::median;
use oubliette_benches::table::{format_ratio, format_time};
use oubliette_benches::{Table, Targets, is_quick};
use serde_json::json;
use support::{Modern, Server, ServerOptions, needs};
use tokio::net::TcpListener;

const PROXY: &str = "127.0.0.1:3128";
const GATEWAY: &str = "127.0.0.1:3129";
const CHUNK_BYTES: usize = 64 << 10;
/// The largest rate that is asked for: five gigabits.
const MAX_WANTED_RATE: f64 = 625e6;
/// A container has at most 512 connections.
const CONTAINERS: usize = 4;
const CONNECTIONS: usize = 1000;
/// The demo agent, which leaves its placeholder for programs of its container.
const AGENT: &str = "[agents.claude]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"printf %s \\\"$ANTHROPIC_API_KEY\\\" > \
     /workspace/key; exec /usr/local/bin/oubliette-client demo-agent\"]\n[models.bench]\ninput_usd = 0.001\n\
     output_usd = 0.001\n";
const ANSWER: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"bench\",\"usage\":\
    {\"input_tokens\":10,\"output_tokens\":1}}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\
    \"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hello\"}}\n\nevent: message_delta\ndata: {\"type\":\
    \"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\nevent: message_stop\n\
    data: {\"type\":\"message_stop\"}\n\n";

/// Starts what is reached: a model, a download and a greeting.
async fn start_upstream(bytes: u64) -> SocketAddr {
    let download = move || async move {
        let chunk = Bytes::from(vec![7; CHUNK_BYTES]);
        let chunks =
            (0..bytes / CHUNK_BYTES as u64).map(move |_| Ok::<_, std::io::Error>(chunk.clone()));
        let length = [(header::CONTENT_LENGTH, bytes.to_string())];
        (length, Body::from_stream(stream::iter(chunks)))
    };
    let answer = || async { ([(header::CONTENT_TYPE, "text/event-stream")], ANSWER) };
    let router = Router::new()
        .route("/v1/messages", post(answer))
        .route("/download", get(download))
        .route("/hello", get(|| async { "hello" }));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A request of the model, or for a path; `prefix` and `key` are those of the gateway.
fn request(prefix: &str, path: &str, key: &str) -> String {
    let head = |method: &str| {
        format!("{method} {prefix}{path} HTTP/1.1\r\nHost: bench\r\nx-api-key: {key}\r\n")
    };
    if path != "/v1/messages" {
        return format!("{}\r\n", head("GET"));
    }
    let text = "x".repeat(4000);
    let body = json!({
        "model": "bench", "max_tokens": 100, "stream": true,
        "messages": [{ "role": "user", "content": text }],
    });
    let body = body.to_string();
    let length = body.len();
    let kind = "content-type: application/json";
    format!(
        "{}{kind}\r\ncontent-length: {length}\r\n\r\n{body}",
        head("POST")
    )
}

/// A container with the network `policy` whose agent runs.
struct Container<'a> {
    admin: &'a Modern,
    project: String,
    key: String,
}

impl<'a> Container<'a> {
    async fn start(server: &Server, admin: &'a Modern, name: &str, max_cost_usd: f64) -> Self {
        let made = json!({
            "name": name, "agent": "claude", "network": "policy", "credential_refs": ["bench"],
            "max_cost_usd": max_cost_usd, "init_git": false,
        });
        let made = admin.call("project_create", made).await;
        let project = made.ok()["project_id"].as_str().unwrap().to_owned();
        let session = admin.spawn(&project, "/say ready").await;
        admin.turn(&session, 1).await;
        let workspace = server.workspace(&project);
        let key = std::fs::read_to_string(workspace.join("key")).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), workspace.join("load")).unwrap();
        Self {
            admin,
            project,
            key,
        }
    }

    async fn run(&self, load: &EgressLoad) -> EgressTimes {
        let [argument, load] = load.arguments();
        let command = ["/workspace/load".to_owned(), argument, load];
        let exec = json!({ "project_id": self.project, "command": command });
        let ran = self.admin.call("container_exec", exec).await;
        let ran = ran.ok();
        assert_eq!(ran["exit_code"], 0, "{ran}");
        serde_json::from_str(ran["stdout"].as_str().unwrap()).unwrap()
    }
}

/// Runs a load on this machine, in a process of its own too.
async fn run_directly(load: EgressLoad) -> EgressTimes {
    let program = std::env::current_exe().unwrap();
    let running = tokio::task::spawn_blocking(move || {
        let ran = Command::new(program).args(load.arguments()).output();
        let ran = ran.unwrap();
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        serde_json::from_slice(&ran.stdout).unwrap()
    });
    running.await.unwrap()
}

/// The gate of a data directory: its resident memory in megabytes now, and at most.
fn gate_memory(server: &Server) -> (f64, f64) {
    let home = server.home().to_str().unwrap().to_owned();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut gates = entries.filter(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        let words: Vec<&str> = command.split('\0').collect();
        words.get(1) == Some(&"gate") && words.get(2) == Some(&home.as_str())
    });
    let gate = gates.next().unwrap().path();
    let status = std::fs::read_to_string(gate.join("status")).unwrap();
    let megabytes = |name: &str| -> f64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        let kibibytes: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kibibytes * 1024.0 / 1e6
    };
    (megabytes("VmRSS"), megabytes("VmHWM"))
}

/// The medians of a call over all rounds.
#[derive(Default)]
struct Calls {
    first_bytes: Vec<f64>,
    calls: Vec<f64>,
    p99: Vec<f64>,
}

impl Calls {
    fn add(&mut self, mut times: EgressTimes) {
        self.first_bytes.push(median(times.first_bytes));
        times.calls.sort_unstable_by(f64::total_cmp);
        self.p99.push(times.calls[times.calls.len() * 99 / 100]);
        self.calls.push(median(times.calls));
    }

    fn medians(&self) -> [f64; 3] {
        [&self.first_bytes, &self.calls, &self.p99].map(|times| median(times.iter().copied()))
    }
}

async fn measure_calls(
    upstream: SocketAddr,
    containers: &[(&str, &Container<'_>)],
    targets: &mut Targets,
) {
    let (rounds, count) = if is_quick() { (3, 200) } else { (9, 1000) };
    let direct = EgressLoad::Calls {
        address: upstream.to_string(),
        request: request("", "/v1/messages", "key"),
        count,
    };
    let mut baseline = Calls::default();
    let mut measured: Vec<Calls> = containers.iter().map(|_| Calls::default()).collect();
    for round in 0..=rounds {
        let direct = run_directly(direct.clone()).await;
        // The first round opens the connections to the model.
        if round > 0 {
            baseline.add(direct);
        }
        for ((_, container), measured) in containers.iter().zip(&mut measured) {
            let load = EgressLoad::Calls {
                address: GATEWAY.to_owned(),
                request: request("/anthropic", "/v1/messages", &container.key),
                count,
            };
            let times = container.run(&load).await;
            if round > 0 {
                measured.add(times);
            }
        }
    }
    let mut table = Table::new([
        "a call of a model",
        "first byte p50",
        "p50",
        "p99",
        "added p50",
    ]);
    let [_, direct_p50, _] = baseline.medians();
    let names = containers.iter().map(|(name, _)| *name);
    for (name, calls) in [("direct")]
        .into_iter()
        .chain(names)
        .zip([&baseline].into_iter().chain(&measured))
    {
        let [first_byte, p50, p99] = calls.medians();
        let time = |seconds: f64| format_time(Duration::from_secs_f64(seconds.max(0.0)));
        let added = p50 - direct_p50;
        table.row([
            name.to_owned(),
            time(first_byte),
            time(p50),
            time(p99),
            time(added),
        ]);
        if name != "direct" {
            let what = format!("latency added to a call, {name}");
            targets.at_most(&what, added * 1e3, 1.0, " ms");
        }
    }
    table.print();
}

async fn measure_downloads(
    upstream: SocketAddr,
    container: &Container<'_>,
    bytes: u64,
    targets: &mut Targets,
) {
    let rounds = if is_quick() { 3 } else { 9 };
    let route = |address: &str, proxy: Option<&str>| Route {
        address: address.to_owned(),
        proxy: proxy.map(str::to_owned),
    };
    let load = |route: Route, request: String| EgressLoad::Download {
        route,
        request,
        bytes,
    };
    let address = upstream.to_string();
    let plain = request("", "/download", "");
    let direct = load(route(&address, None), plain.clone());
    let tunnel = load(route(&address, Some(PROXY)), plain);
    let by_key = request("/anthropic", "/download", &container.key);
    let gateway = load(route(GATEWAY, None), by_key);
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        times[0].push(run_directly(direct.clone()).await.total);
        times[1].push(container.run(&tunnel).await.total);
        times[2].push(container.run(&gateway).await.total);
    }
    let rates = times.map(|times| bytes as f64 / median(times));
    let mut table = Table::new(["a download", "rate", "relative"]);
    for (name, rate) in ["direct", "tunnel", "gateway"].into_iter().zip(rates) {
        let rate_text = format!("{:.0} MB/s", rate / 1e6);
        table.row([name.to_owned(), rate_text, format_ratio(rate / rates[0])]);
        if name != "direct" {
            let wanted = rates[0].min(MAX_WANTED_RATE);
            let what = format!("download by the {name}, relative to direct up to 5 Gbit/s");
            targets.at_least(&what, rate / wanted, 0.8, "×");
        }
    }
    table.print();
}

async fn measure_connections(upstream: SocketAddr, containers: &[&Container<'_>]) {
    let load = |proxy: Option<&str>| EgressLoad::Connections {
        route: Route {
            address: upstream.to_string(),
            proxy: proxy.map(str::to_owned),
        },
        request: request("", "/hello", ""),
        count: CONNECTIONS / CONTAINERS,
    };
    let (direct, tunnel) = (load(None), load(Some(PROXY)));
    let longest = |times: Vec<EgressTimes>| times.iter().map(|it| it.total).fold(0.0, f64::max);
    let direct = longest(join_all((0..CONTAINERS).map(|_| run_directly(direct.clone()))).await);
    let tunnel = longest(join_all(containers.iter().map(|it| it.run(&tunnel))).await);
    let what = format!("{CONNECTIONS} connections, opened, used and open at once");
    let mut table = Table::new([what.as_str(), "time", "relative"]);
    for (name, time) in [("direct", direct), ("tunnel", tunnel)] {
        let shown = format_time(Duration::from_secs_f64(time));
        table.row([name.to_owned(), shown, format_ratio(time / direct)]);
    }
    table.print();
}

#[tokio::main]
async fn measure() {
    if needs::missing("sandbox").is_some() {
        println!("the sandbox does not work here");
        return;
    }
    let bytes = if is_quick() { 256 << 20 } else { 1 << 30 };
    let upstream = start_upstream(bytes).await;
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{AGENT}[network]\nallow = [\"{upstream}\"]\n"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let add = json!({
        "name": "bench", "kind": "anthropic", "value": "sk-bench-0123456789abcdef",
        "base_url": format!("http://{upstream}"),
    });
    admin.call("credential_add", add).await.ok();
    let mut containers = Vec::new();
    for (name, max_cost_usd) in [("one", 1000.0), ("two", 1e6), ("three", 1e6), ("four", 1e6)] {
        containers.push(Container::start(&server, &admin, name, max_cost_usd).await);
    }
    let (idle, _) = gate_memory(&server);
    let mut targets = Targets::default();
    let ways = [
        ("with a budget", &containers[0]),
        ("without", &containers[1]),
    ];
    measure_calls(upstream, &ways, &mut targets).await;
    measure_downloads(upstream, &containers[1], bytes, &mut targets).await;
    measure_connections(upstream, &containers.iter().collect::<Vec<_>>()).await;
    let (after, most) = gate_memory(&server);
    let mut table = Table::new(["memory of the gate", "idle", "at the end", "at most"]);
    let megabytes = [idle, after, most].map(|it| format!("{it:.1} MB"));
    let [idle_text, after, most] = megabytes;
    table.row(["resident".to_owned(), idle_text, after, most]);
    table.print();
    targets.at_most("memory of the idle gate", idle, 15.0, " MB");
    targets.print();
}

fn main() {
    if !egress::run_if_requested() {
        measure();
    }
}
