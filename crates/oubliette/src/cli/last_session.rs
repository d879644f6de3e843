//! Sessions without their ids: `latest` is the newest one, of this directory if one has worked on it, and `-`
//! the one that a command used last.
//!
//! The last one is a file in the data directory of this machine, with one entry per server. A command that
//! cannot write it works all the same, and one that uses the directory of another user writes none.

use std::collections::BTreeMap;
use std::path::PathBuf;

use oubliette_model::SessionId;
use serde_json::{Map, Value};

use super::access::Access;
use super::checkout::{self, Checkout};
use super::client::Client;
use crate::failure::Failure;
use crate::home::{CLI_DIRECTORY, Home};

pub(super) const LATEST: &str = "latest";
pub(super) const LAST_USED: &str = "-";
/// What is told about an argument that names a session.
pub(super) const HELP: &str =
    "The session: its id or the beginning of it, `latest`, or `-` for the one used last";

const FILE: &str = "last-session.json";

fn file(home: &Home) -> PathBuf {
    home.cli_dir().join(FILE)
}

/// Replaces `latest` and `-` in the parameters of an operation.
pub(super) async fn resolve_parameters(
    mut given: Map<String, Value>,
    home: &Home,
    access: &Access,
    client: &Client,
) -> Result<Map<String, Value>, Failure> {
    for name in ["session_id", "parent_id"] {
        if let Some(Value::String(text)) = given.get(name) {
            let resolved = resolve(text, home, access, client).await?;
            given.insert(name.to_owned(), resolved.into());
        }
    }
    Ok(given)
}

/// The session that a word names; other words are left to the server.
pub(super) async fn resolve(
    text: &str,
    home: &Home,
    access: &Access,
    client: &Client,
) -> Result<String, Failure> {
    match text {
        LAST_USED => last_used(home, access),
        LATEST => match latest_here(home, access)? {
            Some(session) => Ok(session),
            None => newest(client).await,
        },
        other => Ok(other.to_owned()),
    }
}

/// The session that a command used last.
pub(super) fn last_used(home: &Home, access: &Access) -> Result<String, Failure> {
    let session = read(home).remove(&access.server_key());
    session.ok_or_else(|| {
        Failure::new(
            "`-` is the session that a command used last, and none has used one yet; see `oubliette session list`",
        )
    })
}

/// Remembers the session of a result, or of the parameters that led to it.
pub(super) fn remember_result(
    result: &Map<String, Value>,
    given: Option<&Value>,
    home: &Home,
    access: &Access,
) {
    let session = result.get("session_id").or(given).and_then(Value::as_str);
    if let Some(session) = session {
        remember(session, home, access);
    }
}

pub(super) fn remember(session: &str, home: &Home, access: &Access) {
    if session.parse::<SessionId>().is_err() || home.is_foreign() {
        return;
    }
    let mut sessions = read(home);
    if sessions.get(&access.server_key()).map(String::as_str) == Some(session) {
        return;
    }
    sessions.insert(access.server_key(), session.to_owned());
    let _ = write(home, &sessions);
}

fn read(home: &Home) -> BTreeMap<String, String> {
    let text = home.read_owned(&file(home));
    serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default()
}

fn write(home: &Home, sessions: &BTreeMap<String, String>) -> std::io::Result<()> {
    let text = serde_json::to_string_pretty(sessions)?;
    home.write_owned(CLI_DIRECTORY, FILE, text.as_bytes())
}

/// The newest session that has worked on this directory.
fn latest_here(home: &Home, access: &Access) -> Result<Option<String>, Failure> {
    let Ok(directory) = checkout::directory(None) else {
        return Ok(None);
    };
    match Checkout::find(home, access, &directory, true) {
        Ok(Some(checkout)) => Ok(checkout.latest_session(false)?.map(|(session, _)| session)),
        // For example without git.
        Ok(None) | Err(_) => Ok(None),
    }
}

async fn newest(client: &Client) -> Result<String, Failure> {
    let one = Map::from_iter([("limit".to_owned(), Value::from(1))]);
    let listed = client.call("session_list", one).await?;
    let newest = listed.get("sessions").and_then(|rows| rows.get(0));
    let session = newest.and_then(|row| row["session_id"].as_str());
    session
        .map(str::to_owned)
        .ok_or_else(|| Failure::new("there is no session yet; `oubliette run` starts one"))
}
