//! The MCP endpoint beside a bare JSON echo: `project_get` and `tools/list`, both eras of the
//! protocol, one client and sixteen.

use std::time::Duration;

use oubliette_benches::figures::Compared;
use oubliette_benches::table::{time, times};
use oubliette_benches::{
    Aims, Client, Echo, Era, Sample, Table, echo, is_quick, is_wanted, load, make_project,
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
        }
    }

    fn measure(&mut self, clients: usize, slice: Duration) {
        let echo = load(&mut self.echo[..clients], slice);
        let product = load(&mut self.product[..clients], slice);
        self.rounds.push((product, echo));
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
                case.measure(clients, slice);
                if round == 0 {
                    case.rounds.clear();
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
