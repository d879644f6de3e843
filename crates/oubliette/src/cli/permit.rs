//! `oubliette session permit`: which request an answer is for. One that is open alone needs no id, and of an id
//! the beginning is enough.

use clap::Command;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::transcript::first_line;
use crate::failure::Failure;
use crate::terminal::output::note;
use crate::terminal::printable;

/// The maximum that `session_events` returns.
const PAGE_EVENTS: u32 = 1000;
/// How many sessions that wait are named.
const MAX_NAMED_SESSIONS: u32 = 5;
/// The length of a whole request id.
const REQUEST_ID_CHARS: usize = 36;
const SHORT_REQUEST_CHARS: usize = 8;
/// `gogol_` and eight digits.
const SHORT_SESSION_CHARS: usize = 14;

/// Lets the request be left out.
pub(super) fn add_flags(command: Command) -> Command {
    // An argument that is changed becomes the last one.
    command
        .allow_missing_positional(true)
        .mut_arg("request_id", |argument| {
            argument.required(false).help(
                "The request, or the beginning of its id; may be left out if the session has one open request",
            )
        })
        .mut_arg("decision", |argument| argument)
}

/// The beginning of a request id, for a command that a person types.
pub(super) fn short_request(id: &str) -> &str {
    id.get(..SHORT_REQUEST_CHARS).unwrap_or(id)
}

/// The beginning of a session id, for a command that a person types.
pub(super) fn short_session(id: &str) -> &str {
    id.get(..SHORT_SESSION_CHARS).unwrap_or(id)
}

/// Completes the parameters of `session_permit` with the id of the request.
pub(super) async fn with_request(
    mut given: Map<String, Value>,
    client: &Client,
) -> Result<Map<String, Value>, Failure> {
    let wanted = given.get("request_id").and_then(Value::as_str);
    let wanted = wanted.unwrap_or_default().to_owned();
    if wanted.len() >= REQUEST_ID_CHARS {
        return Ok(given);
    }
    let session = given.get("session_id").cloned().unwrap_or_default();
    let get = Map::from_iter([("session_id".to_owned(), session)]);
    let found = client.call("session_get", get).await?;
    let session = found.get("session_id").and_then(Value::as_str);
    let session = session.unwrap_or_default().to_owned();
    let open = open_requests(client, &session).await?;
    let fitting: Vec<&Value> = open
        .iter()
        .filter(|request| id(request).starts_with(&wanted))
        .collect();
    match fitting.as_slice() {
        [request] => {
            if wanted.is_empty() {
                note!("The request: {}", title(request));
            }
            given.insert("session_id".to_owned(), session.into());
            given.insert("request_id".to_owned(), id(request).into());
            Ok(given)
        }
        [] if open.is_empty() => Err(waits_for_nothing(&session, client).await),
        [] => Err(Failure::new(format!(
            "no open request of {} begins with `{}`; open: {}",
            short_session(&session),
            printable(&wanted),
            describe(&open.iter().collect::<Vec<_>>())
        ))),
        several => Err(Failure::new(format!(
            "{} has several open requests; name one by the beginning of its id: {}",
            short_session(&session),
            describe(several)
        ))),
    }
}

/// The permission requests of a session that have no answer yet.
async fn open_requests(client: &Client, session: &str) -> Result<Vec<Value>, Failure> {
    let mut since = -1;
    let mut open: Vec<Value> = Vec::new();
    loop {
        let page = Map::from_iter([
            ("session_id".to_owned(), json!(session)),
            ("since_index".to_owned(), json!(since)),
            ("max_events".to_owned(), json!(PAGE_EVENTS)),
            (
                "types".to_owned(),
                json!(["permission_request", "permission_answer", "completion"]),
            ),
        ]);
        let page = client.call("session_events", page).await?;
        let events = page.get("events").and_then(Value::as_array);
        let events = events.map_or(&[][..], Vec::as_slice);
        for event in events {
            match event["type"].as_str() {
                Some("permission_request") => open.push(event.clone()),
                Some("permission_answer") => open.retain(|request| id(request) != id(event)),
                _ => open.clear(),
            }
        }
        since = page
            .get("last_index")
            .and_then(Value::as_i64)
            .unwrap_or(since);
        if events.is_empty() {
            return Ok(open);
        }
    }
}

fn id(event: &Value) -> &str {
    event["request_id"].as_str().unwrap_or_default()
}

fn title(request: &Value) -> String {
    let title = request["title"].as_str().unwrap_or_default();
    printable(first_line(title))
}

fn describe(requests: &[&Value]) -> String {
    let described = requests
        .iter()
        .map(|request| format!("{} ({})", short_request(id(request)), title(request)));
    described.collect::<Vec<_>>().join(", ")
}

/// The failure of an answer to a session that has asked nothing, with those that have.
async fn waits_for_nothing(session: &str, client: &Client) -> Failure {
    let waiting = Map::from_iter([
        ("status".to_owned(), json!("waiting")),
        ("limit".to_owned(), json!(MAX_NAMED_SESSIONS)),
    ]);
    let listed = client.call("session_list", waiting).await;
    let listed = listed.unwrap_or_default();
    let rows = listed.get("sessions").and_then(Value::as_array);
    let others: Vec<&str> = rows
        .into_iter()
        .flatten()
        .filter_map(|row| row["session_id"].as_str())
        .map(short_session)
        .collect();
    let others = match others.as_slice() {
        [] => "no session does".to_owned(),
        [one] => format!("{one} does"),
        several => format!("{} do", several.join(", ")),
    };
    Failure::new(format!(
        "{} waits for nothing; {others}",
        short_session(session)
    ))
}
