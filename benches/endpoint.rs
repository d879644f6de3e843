//! The MCP endpoint beside a bare JSON echo: `project_get` and `tools/list`, both eras of the
//! protocol, one client and sixteen.

use std::time::Duration;

use oubliette_benches::figures::Compared;
use oubliette_benches::table::{time, times};
use oubliette_benches::{
    Aims, Client, Echo, Era, Sample, Table, cpu_time, echo, is_quick, is_wanted, load, make_project,
};
use serde_json::{Value, json};
use support::Server;

/// How many times the echo's p50 a call may take with one client.
const AIM: f64 = 4.0;
const MANY: usize = 16;

/// One row of the table: clients of the product, and of the echo with bodies of the same size.
struct Case {
    name: String,
    product: Vec<Client>,
    echo: Vec<Client>,
    rounds: Vec<(Sample, Sample)>,
    /// What the processes of the product and of the echo have computed for it.
    cpu: (Duration, Duration),
}

impl Case {
    fn new(server: &Server, echo: &Echo, era: Era, method: &str, params: &Value) -> Self {
        let check = |reply: &Value| {
            let result = &reply["result"];
            result["tools"][0]["inputSchema"].is_object()
                || result["structuredContent"]["project_id"].is_string()
        };
        let connect = |_| Client::connect(server, era, method, params.clone(), check);
        let mut product: Vec<Client> = (0..MANY).map(connect).collect();
        let reply = product[0].run();
        let bare = echo.client(method, params, 0).run();
        let beside = |_| echo.client(method, params, reply.saturating_sub(bare));
        let name = params["name"].as_str().unwrap_or(method);
        Self {
            name: format!("{name} {} ({reply} bytes)", era.version()),
            product,
            echo: (0..MANY).map(beside).collect(),
            rounds: Vec::new(),
            cpu: Default::default(),
        }
    }

    fn measure(&mut self, (server, echo): (u32, u32), clients: usize, slice: Duration) {
        let before = (cpu_time(server), cpu_time(echo));
        let beside = load(&mut self.echo[..clients], slice);
        let sample = load(&mut self.product[..clients], slice);
        self.rounds.push((sample, beside));
        self.cpu.0 += cpu_time(server).saturating_sub(before.0);
        self.cpu.1 += cpu_time(echo).saturating_sub(before.1);
    }

    fn forget(&mut self) {
        self.rounds.clear();
        self.cpu = Default::default();
    }
}

fn main() {
    if echo::run_if_asked() {
        return;
    }
    let (rounds, slice) = match is_quick() {
        true => (3, Duration::from_millis(100)),
        false => (11, Duration::from_millis(300)),
    };
    let server = Server::start();
    let echo = Echo::start();
    let get = json!({ "name": "project_get", "arguments": {
        "project_id": make_project(&server, "measured"),
    }});
    let requests = [("tools/call", get), ("tools/list", json!({}))];
    let mut aims = Aims::default();
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
    for clients in [1, MANY] {
        let eras = [Era::Modern, Era::Legacy];
        let mut cases: Vec<Case> = eras
            .iter()
            .flat_map(|era| requests.iter().map(move |request| (*era, request)))
            .map(|(era, (method, params))| Case::new(&server, &echo, era, method, params))
            .filter(|case| is_wanted(&case.name))
            .collect();
        // The first round only warms up.
        for round in 0..=rounds {
            for case in &mut cases {
                case.measure((server.pid(), echo.pid()), clients, slice);
                if round == 0 {
                    case.forget();
                }
            }
        }
        for case in &cases {
            let compared = Compared::of(&case.rounds);
            let (product, echo) = (compared.sample, compared.beside);
            table.row([
                case.name.clone(),
                clients.to_string(),
                time(product.p50),
                time(product.p99),
                format!("{:.0}", product.rate),
                time(echo.p50),
                time(echo.p99),
                format!("{:.0}", echo.rate),
                times(compared.ratio),
                time(case.cpu.0 / product.calls as u32),
                time(case.cpu.1 / echo.calls as u32),
            ]);
            if clients == 1 {
                let what = format!("p50 of {} with one client, of the echo's", case.name);
                aims.at_most(&what, compared.ratio, AIM, "×");
            }
        }
    }
    table.print();
    aims.print();
}
