//! The MCP endpoint compared with a bare JSON echo server: `project_get` and `tools/list`, in protocol
//! versions with and without MCP sessions, with one client and with sixteen.

use std::time::Duration;

use oubliette_benches::statistics::Compared;
use oubliette_benches::table::{format_ratio, format_time};
use oubliette_benches::{
    Client, Echo, Protocol, Sample, Table, Targets, cpu_time, create_project, echo, is_quick,
    is_selected, load,
};
use serde_json::{Value, json};
use support::Server;

/// How many times the echo's p50 a call may take with one client.
const MAX_P50_RATIO: f64 = 4.0;
const MANY_CLIENTS: usize = 16;

/// One row of the table: clients of the product, and clients of the echo server with bodies of the same
/// size.
struct Case {
    name: String,
    product: Vec<Client>,
    echo: Vec<Client>,
    rounds: Vec<(Sample, Sample)>,
    /// CPU time of the product and of the echo server.
    cpu: (Duration, Duration),
}

impl Case {
    fn new(server: &Server, echo: &Echo, protocol: Protocol, method: &str, params: &Value) -> Self {
        let check = |reply: &Value| {
            let result = &reply["result"];
            result["tools"][0]["inputSchema"].is_object()
                || result["structuredContent"]["project_id"].is_string()
        };
        let connect = |_| Client::connect(server, protocol, method, params.clone(), check);
        let mut product: Vec<Client> = (0..MANY_CLIENTS).map(connect).collect();
        let reply = product[0].run();
        let without_padding = echo.client(method, params, 0).run();
        let baseline = |_| echo.client(method, params, reply.saturating_sub(without_padding));
        let name = params["name"].as_str().unwrap_or(method);
        Self {
            name: format!("{name} {} ({reply} bytes)", protocol.version()),
            product,
            echo: (0..MANY_CLIENTS).map(baseline).collect(),
            rounds: Vec::new(),
            cpu: Default::default(),
        }
    }

    fn measure(&mut self, (server, echo): (u32, u32), clients: usize, slice: Duration) {
        let before = (cpu_time(server), cpu_time(echo));
        let baseline = load(&mut self.echo[..clients], slice);
        let sample = load(&mut self.product[..clients], slice);
        self.rounds.push((sample, baseline));
        self.cpu.0 += cpu_time(server).saturating_sub(before.0);
        self.cpu.1 += cpu_time(echo).saturating_sub(before.1);
    }

    fn clear(&mut self) {
        self.rounds.clear();
        self.cpu = Default::default();
    }
}

fn main() {
    if echo::run_if_requested() {
        return;
    }
    let (rounds, slice) = if is_quick() {
        (3, Duration::from_millis(100))
    } else {
        (11, Duration::from_millis(300))
    };
    let server = Server::start();
    let echo = Echo::start();
    let get = json!({ "name": "project_get", "arguments": {
        "project_id": create_project(&server, "measured"),
    }});
    let requests = [("tools/call", get), ("tools/list", json!({}))];
    let mut targets = Targets::default();
    let mut table = Table::new([
        "",
        "clients",
        "p50",
        "p99",
        "per second",
        "echo p50",
        "echo p99",
        "echo per second",
        "p50 ratio",
        "CPU",
        "echo CPU",
    ]);
    for clients in [1, MANY_CLIENTS] {
        let protocols = [Protocol::Modern, Protocol::Legacy];
        let mut cases: Vec<Case> = protocols
            .iter()
            .flat_map(|protocol| requests.iter().map(move |request| (*protocol, request)))
            .map(|(protocol, (method, params))| Case::new(&server, &echo, protocol, method, params))
            .filter(|case| is_selected(&case.name))
            .collect();
        // The first round only warms up.
        for round in 0..=rounds {
            for case in &mut cases {
                case.measure((server.pid(), echo.pid()), clients, slice);
                if round == 0 {
                    case.clear();
                }
            }
        }
        for case in &cases {
            let compared = Compared::from_rounds(&case.rounds);
            let (product, echo) = (compared.sample, compared.baseline);
            table.row([
                case.name.clone(),
                clients.to_string(),
                format_time(product.p50),
                format_time(product.p99),
                format!("{:.0}", product.rate),
                format_time(echo.p50),
                format_time(echo.p99),
                format!("{:.0}", echo.rate),
                format_ratio(compared.ratio),
                format_time(case.cpu.0 / product.calls as u32),
                format_time(case.cpu.1 / echo.calls as u32),
            ]);
            if clients == 1 {
                let what = format!("p50 of {} with one client, relative to the echo", case.name);
                targets.at_most(&what, compared.ratio, MAX_P50_RATIO, "×");
            }
        }
    }
    table.print();
    targets.print();
}
