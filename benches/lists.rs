//! A page of `project_list` on a store with many projects, compared with one that has few.

use std::time::Duration;

use oubliette_benches::statistics::Compared;
use oubliette_benches::table::{format_ratio, format_time};
use oubliette_benches::{
    Client, Protocol, Sample, Table, Targets, create_projects, is_quick, load,
};
use serde_json::json;
use support::Server;

const FEW_PROJECTS: usize = 10;
const MANY_PROJECTS: usize = 1000;
/// How many times as long the page of the larger store may take.
const MAX_P50_RATIO: f64 = 2.0;

fn main() {
    let (rounds, slice) = if is_quick() {
        (3, Duration::from_millis(200))
    } else {
        (11, Duration::from_millis(500))
    };
    let servers = [FEW_PROJECTS, MANY_PROJECTS].map(|count| {
        let server = Server::start();
        create_projects(&server, count);
        server
    });
    let page = json!({ "limit": FEW_PROJECTS });
    let client = |server| {
        [Client::calling_tool(
            server,
            Protocol::Modern,
            "project_list",
            &page,
        )]
    };
    let [mut few, mut many] = servers.each_ref().map(client);
    let mut samples: Vec<(Sample, Sample)> = Vec::new();
    // The first round only warms up.
    for _ in 0..=rounds {
        let baseline = load(&mut few, slice);
        let sample = load(&mut many, slice);
        samples.push((sample, baseline));
    }
    for [client] in [&few, &many] {
        let result = &client.call.reply()["result"]["structuredContent"];
        let listed = result["projects"].as_array().map_or(0, Vec::len);
        assert_eq!(listed, FEW_PROJECTS, "the page is incomplete");
    }
    let compared = Compared::from_rounds(&samples[1..]);
    let mut table = Table::new([
        "project_list, limit 10",
        "p50",
        "p99",
        "per second",
        "p50 ratio",
    ]);
    for (count, sample, ratio) in [
        (FEW_PROJECTS, compared.baseline, String::new()),
        (MANY_PROJECTS, compared.sample, format_ratio(compared.ratio)),
    ] {
        table.row([
            format!("of {count} projects"),
            format_time(sample.p50),
            format_time(sample.p99),
            format!("{:.0}", sample.rate),
            ratio,
        ]);
    }
    table.print();
    let mut targets = Targets::default();
    let what = format!("p50 with {MANY_PROJECTS} projects, relative to {FEW_PROJECTS}");
    targets.at_most(&what, compared.ratio, MAX_P50_RATIO, "×");
    targets.print();
}
