//! Projects to measure with.

use std::ops::Range;

use serde_json::json;
use support::Server;

use crate::{Client, Era};

/// Makes projects through the API, a few at a time so that they share commits. Their names are
/// `p0000`, `p0001` and so on.
pub fn make_projects(server: &Server, count: usize) {
    const AT_ONCE: usize = 16;
    std::thread::scope(|scope| {
        for maker in 0..AT_ONCE {
            scope.spawn(move || make(server, (maker..count).step_by(AT_ONCE)));
        }
    });
}

fn make(server: &Server, numbers: std::iter::StepBy<Range<usize>>) {
    for number in numbers {
        let arguments = json!({ "name": format!("p{number:04}"), "init_git": false });
        Client::of_tool(server, Era::Modern, "project_create", &arguments).run();
    }
}

/// Makes one project; its id.
pub fn make_project(server: &Server, name: &str) -> String {
    let arguments = json!({ "name": name, "description": "A project to measure with." });
    let mut client = Client::of_tool(server, Era::Modern, "project_create", &arguments);
    client.run();
    let reply = client.call.reply();
    let id = reply["result"]["structuredContent"]["project_id"].as_str();
    id.unwrap().to_owned()
}
