//! How long a server with many projects takes from its spawn to its first response, compared with a
//! process that does nothing, and how much memory it uses.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_benches::statistics::median;
use oubliette_benches::table::{format_ratio, format_time};
use oubliette_benches::{
    Client, Connection, Protocol, Table, Targets, address, create_project, create_projects,
    is_quick,
};
use serde_json::json;
use support::{Server, binary};

const PROJECT_COUNT: usize = 1000;
const CLIENT_COUNT: usize = 16;
const CALL_COUNT: usize = 20_000;
const MAX_START_MS: f64 = 50.0;
const MAX_RESIDENT_MB: f64 = 20.0;

fn main() {
    let (starts, calls) = if is_quick() {
        (5, CALL_COUNT / 10)
    } else {
        (31, CALL_COUNT)
    };
    let mut server = Server::start();
    create_projects(&server, PROJECT_COUNT);
    let project = create_project(&server, "measured");
    let (mut nothing, mut version, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..starts {
        nothing.push(timed(|| run("/bin/true".as_ref(), &[])));
        version.push(timed(|| run(binary(), &["--version"])));
        server.stop();
        ready.push(timed(|| start(&mut server)));
    }
    let ratio = median(
        ready
            .iter()
            .zip(&nothing)
            .map(|(ready, nothing)| ready / nothing),
    );
    let mut table = Table::new(["", "median", "worst", "relative"]);
    for (what, spawned) in [("/bin/true", &nothing), ("oubliette --version", &version)] {
        let ratio = median(
            spawned
                .iter()
                .zip(&nothing)
                .map(|(own, nothing)| own / nothing),
        );
        table.row(row(what, spawned, ratio));
    }
    table.row(row("oubliette serve, to GET /healthz", &ready, ratio));
    table.print();

    let idle = Memory::of_process(server.pid());
    make_calls(&server, &project, calls);
    let used = Memory::of_process(server.pid());
    let mut table = Table::new(["memory", "resident", "of which anonymous"]);
    for (what, memory) in [
        ("after the start".to_owned(), &idle),
        (format!("after {calls} calls"), &used),
    ] {
        table.row([
            what,
            format!("{:.1} MB", memory.resident),
            format!("{:.1} MB", memory.anonymous),
        ]);
    }
    table.print();

    let mut targets = Targets::default();
    let what = format!("start on {PROJECT_COUNT} projects");
    targets.at_most(&what, median(ready) * 1e3, MAX_START_MS, " ms");
    targets.at_most(
        "resident after the start",
        idle.resident,
        MAX_RESIDENT_MB,
        " MB",
    );
    let what = format!("resident after {calls} calls");
    targets.at_most(&what, used.resident, MAX_RESIDENT_MB, " MB");
    targets.print();
}

fn row(what: &str, seconds: &[f64], ratio: f64) -> [String; 4] {
    let worst = seconds.iter().copied().fold(0.0, f64::max);
    let show = |seconds| format_time(Duration::from_secs_f64(seconds));
    let middle = median(seconds.iter().copied());
    [
        what.to_owned(),
        show(middle),
        show(worst),
        format_ratio(ratio),
    ]
}

fn timed(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64()
}

fn run(program: &std::path::Path, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
}

/// Starts the server and waits for its first response.
fn start(server: &mut Server) {
    server.start_again();
    let mut connection = Connection::open(address(server));
    let reply = connection.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(reply.status, 200);
}

/// Calls from several clients of both protocols.
fn make_calls(server: &Server, project: &str, calls: usize) {
    std::thread::scope(|scope| {
        for client in 0..CLIENT_COUNT {
            let protocol = [Protocol::Modern, Protocol::Legacy][client % 2];
            scope.spawn(move || {
                let arguments = json!({ "project_id": project });
                let mut client = Client::calling_tool(server, protocol, "project_get", &arguments);
                for _ in 0..calls / CLIENT_COUNT {
                    client.run();
                }
            });
        }
    });
}

/// The memory of a process, in megabytes.
struct Memory {
    resident: f64,
    anonymous: f64,
}

impl Memory {
    fn of_process(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let megabytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes = line.unwrap().trim_start_matches(':').trim_end_matches("kB");
            kilobytes.trim().parse::<f64>().unwrap() * 1024.0 / 1e6
        };
        Self {
            resident: megabytes("VmRSS"),
            anonymous: megabytes("RssAnon"),
        }
    }
}
