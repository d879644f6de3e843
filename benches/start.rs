//! How long a server on a store with many projects takes from its spawn to its first answer,
//! beside the spawn of a process that does nothing, and how much memory it holds.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oubliette_benches::figures::median;
use oubliette_benches::table::{time, times};
use oubliette_benches::{
    Aims, Client, Connection, Era, Table, address, is_quick, make_project, make_projects,
};
use serde_json::json;
use support::{Server, binary};

const PROJECTS: usize = 1000;
const CLIENTS: usize = 16;
const CALLS: usize = 20_000;
const START_MS: f64 = 50.0;
const IDLE_MB: f64 = 20.0;

fn main() {
    let (starts, calls) = match is_quick() {
        true => (5, CALLS / 10),
        false => (31, CALLS),
    };
    let mut server = Server::start();
    make_projects(&server, PROJECTS);
    let project = make_project(&server, "measured");
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
    let mut table = Table::new(["", "median", "worst", "of nothing"]);
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

    let idle = Memory::of(server.pid());
    call(&server, &project, calls);
    let used = Memory::of(server.pid());
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

    let mut aims = Aims::default();
    let what = format!("start on {PROJECTS} projects");
    aims.at_most(&what, median(ready) * 1e3, START_MS, " ms");
    aims.at_most("resident after the start", idle.resident, IDLE_MB, " MB");
    let what = format!("resident after {calls} calls");
    aims.at_most(&what, used.resident, IDLE_MB, " MB");
    aims.print();
}

fn row(what: &str, seconds: &[f64], ratio: f64) -> [String; 4] {
    let worst = seconds.iter().copied().fold(0.0, f64::max);
    let shown = |seconds| time(Duration::from_secs_f64(seconds));
    let middle = median(seconds.iter().copied());
    [what.to_owned(), shown(middle), shown(worst), times(ratio)]
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

/// Starts the server and waits for its first answer.
fn start(server: &mut Server) {
    server.start_again();
    let mut connection = Connection::open(address(server));
    let reply = connection.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(reply.status, 200);
}

/// Calls from several clients of both eras.
fn call(server: &Server, project: &str, calls: usize) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let era = [Era::Modern, Era::Legacy][client % 2];
            scope.spawn(move || {
                let arguments = json!({ "project_id": project });
                let mut client = Client::of_tool(server, era, "project_get", &arguments);
                for _ in 0..calls / CLIENTS {
                    client.run();
                }
            });
        }
    });
}

/// What a process holds, in megabytes.
struct Memory {
    resident: f64,
    anonymous: f64,
}

impl Memory {
    fn of(pid: u32) -> Self {
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
