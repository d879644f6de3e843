//! The runs of schedules.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Modern, eventually};

/// A schedule that runs each minute takes up to two minutes to run twice.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// The runs of a schedule, oldest first.
pub async fn history(caller: &Modern, schedule: &str) -> Vec<Value> {
    let parameters = json!({ "schedule_id": schedule, "limit": 1000 });
    let call = json!({ "name": "schedule_history", "arguments": parameters });
    // A server may die meanwhile.
    let Some(reply) = caller.try_send("tools/call", call).await else {
        return Vec::new();
    };
    let runs = reply.body["result"]["structuredContent"]["runs"].as_array();
    let mut runs = runs.cloned().unwrap_or_default();
    runs.reverse();
    runs
}

/// Waits until the history is as wanted.
///
/// # Panics
/// If it does not become so.
pub async fn until(
    caller: &Modern,
    schedule: &str,
    wanted: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    let mut seen = Vec::new();
    let is_as_wanted = eventually(WAIT_TIMEOUT, async || {
        seen = history(caller, schedule).await;
        wanted(&seen)
    });
    let is_as_wanted = is_as_wanted.await;
    assert!(
        is_as_wanted,
        "the history did not become as wanted: {seen:#?}"
    );
    seen
}
