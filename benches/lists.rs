//! A page of projects of a store that has few, beside the same page of one that has many.

use std::time::Duration;

use oubliette_benches::figures::Compared;
use oubliette_benches::table::{time, times};
use oubliette_benches::{Aims, Client, Era, Sample, Table, is_quick, load, make_projects};
use serde_json::json;
use support::Server;

const FEW: usize = 10;
const MANY: usize = 1000;
/// How many times as long the page may take of the larger store.
const AIM: f64 = 2.0;

fn main() {
    let (rounds, slice) = match is_quick() {
        true => (3, Duration::from_millis(200)),
        false => (11, Duration::from_millis(500)),
    };
    let servers = [FEW, MANY].map(|count| {
        let server = Server::start();
        make_projects(&server, count);
        server
    });
    let page = json!({ "limit": FEW });
    let client = |server| [Client::of_tool(server, Era::Modern, "project_list", &page)];
    let [mut few, mut many] = servers.each_ref().map(client);
    let mut samples: Vec<(Sample, Sample)> = Vec::new();
    // The first round only warms up.
    for _ in 0..=rounds {
        let beside = load(&mut few, slice);
        let sample = load(&mut many, slice);
        samples.push((sample, beside));
    }
    for [client] in [&few, &many] {
        let result = &client.call.reply()["result"]["structuredContent"];
        let listed = result["projects"].as_array().map_or(0, Vec::len);
        assert_eq!(listed, FEW, "not the page that was asked for");
    }
    let compared = Compared::of(&samples[1..]);
    let mut table = Table::new([
        "project_list, limit 10",
        "p50",
        "p99",
        "per second",
        "p50 ratio",
    ]);
    for (count, sample, ratio) in [
        (FEW, compared.beside, String::new()),
        (MANY, compared.sample, times(compared.ratio)),
    ] {
        table.row([
            format!("of {count} projects"),
            time(sample.p50),
            time(sample.p99),
            format!("{:.0}", sample.rate),
            ratio,
        ]);
    }
    table.print();
    let mut aims = Aims::default();
    let what = format!("a page of {MANY} projects, of one of {FEW}");
    aims.at_most(&what, compared.ratio, AIM, "×");
    aims.print();
}
