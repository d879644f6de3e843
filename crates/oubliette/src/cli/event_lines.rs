//! `session attach --json`: the events of a session, one JSON document per line, until no turn is running.

use serde_json::{Map, Value, json};

use super::client::Client;
use crate::failure::Failure;
use crate::terminal;

/// The maximum that the server waits in one call.
const WAIT_SECONDS: u64 = 50;
/// In these states a session does nothing until it gets a message.
const RESTING_STATES: [&str; 4] = ["idle", "completed", "interrupted", "failed"];

pub(super) async fn print(client: &Client, session: &str) -> Result<(), Failure> {
    let mut since = -1;
    loop {
        // Asked before the events, so that none of the last turn is left out.
        let is_over = is_resting(client, session).await?;
        let wait = if is_over { 0 } else { WAIT_SECONDS };
        let call = json!({ "session_id": session, "since_index": since, "wait_seconds": wait, "types": ["all"], "full": true });
        let page = client.call("session_events", object(call)).await?;
        let events = page.get("events").and_then(Value::as_array);
        let events = events.map_or(&[][..], Vec::as_slice);
        for event in events {
            terminal::print_line(&terminal::escape_json(&event.to_string()));
            since = event["index"].as_i64().unwrap_or(since);
        }
        if is_over && events.is_empty() {
            return Ok(());
        }
    }
}

async fn is_resting(client: &Client, session: &str) -> Result<bool, Failure> {
    let found = client
        .call("session_get", object(json!({ "session_id": session })))
        .await?;
    let status = found.get("status").and_then(Value::as_str);
    Ok(RESTING_STATES.contains(&status.unwrap_or_default()))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
