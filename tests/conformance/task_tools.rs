//! The tools that the suite's scenarios about tasks call, as calls of the product's own: a proxy translates them,
//! because the product ships no fixture.

use serde_json::{Value, json};

/// The project in which the agents of the calls work.
pub(crate) const PROJECT: &str = "tasks";

/// Translates a call of a fixture; the name of the tool that it calls instead. Other messages stay as they
/// are.
pub(crate) fn translate(message: &mut Value) -> Option<&'static str> {
    if message["method"] != "tools/call" {
        return None;
    }
    let params = &mut message["params"];
    let (tool, arguments) = match params["name"].as_str()? {
        "greet" => ("session_list", json!({})),
        "slow_compute" => {
            let prompt = format!("/sleep {}\n/say done", params["arguments"]["seconds"]);
            let arguments = json!({
                "project_id": PROJECT, "prompt": prompt, "wait_seconds": 50, "new_session": true,
            });
            ("session_spawn", arguments)
        }
        _ => return None,
    };
    params["name"] = json!(tool);
    params["arguments"] = arguments;
    Some(tool)
}
