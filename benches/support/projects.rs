//! Projects for benchmarks.

use std::ops::Range;

use serde_json::json;
use support::Server;

use crate::{Client, Protocol};

/// Creates projects named `p0000`, `p0001` and so on, concurrently so that they share commits.
pub fn create_projects(server: &Server, count: usize) {
    const CONCURRENCY: usize = 16;
    std::thread::scope(|scope| {
        for worker in 0..CONCURRENCY {
            scope.spawn(move || create_numbered(server, (worker..count).step_by(CONCURRENCY)));
        }
    });
}

fn create_numbered(server: &Server, numbers: std::iter::StepBy<Range<usize>>) {
    for number in numbers {
        let arguments = json!({ "name": format!("p{number:04}"), "init_git": false });
        Client::calling_tool(server, Protocol::Modern, "project_create", &arguments).run();
    }
}

/// Creates a project and returns its id.
pub fn create_project(server: &Server, name: &str) -> String {
    let arguments = json!({ "name": name, "description": "A project to measure with." });
    let mut client = Client::calling_tool(server, Protocol::Modern, "project_create", &arguments);
    client.run();
    let reply = client.call.reply();
    let id = reply["result"]["structuredContent"]["project_id"].as_str();
    id.unwrap().to_owned()
}
