//! `session attach --json`: the events of a session, one JSON document per line, until no turn is running.

use oubliette_model::Status;
use serde_json::{Value, json};

use super::client::{Client, parameters};
use super::event_log::{EVENTS_WAIT_SECONDS, EventLog};
use crate::failure::Failure;
use crate::terminal;

pub(super) async fn print(client: &Client, session: &str) -> Result<(), Failure> {
    let mut log = EventLog::new(client, session, -1);
    loop {
        // Asked before the events, so that none of the last turn is left out.
        let is_over = is_resting(client, session).await?;
        let wait_seconds = if is_over { 0.0 } else { EVENTS_WAIT_SECONDS };
        let page = log.read(wait_seconds).await?;
        for event in &page.events {
            terminal::print_line(&terminal::escape_json(&event.to_string()));
        }
        if is_over && page.events.is_empty() {
            return Ok(());
        }
    }
}

async fn is_resting(client: &Client, session: &str) -> Result<bool, Failure> {
    let get = parameters(json!({ "session_id": session }));
    let found = client.call("session_get", get).await?;
    let status = found.get("status").and_then(Value::as_str);
    let status: Option<Status> = status.and_then(|status| status.parse().ok());
    Ok(status.is_some_and(Status::is_resting))
}
