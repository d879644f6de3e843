//! The diff of a session's checkpoints, which the server makes.

use std::io::IsTerminal;
use std::path::Path;

use clap::ArgMatches;
use serde_json::{Map, Value, json};

use super::stat;
use crate::cli::client::{CallError, Client};
use crate::failure::Failure;
use crate::terminal::{output, print_json, printable};

/// Shows the diff that the server makes of the checkpoints of a session.
pub(super) async fn diff_of_server(
    client: &Client,
    session: &str,
    prefix: &Path,
    matches: &ArgMatches,
) -> Result<(), Failure> {
    let mut common = Map::from_iter([("session_id".to_owned(), json!(session))]);
    if let Some(turn) = matches.get_one::<u64>("turn") {
        common.insert("turn".to_owned(), json!(turn));
    }
    let (is_stat, is_json) = (matches.get_flag("stat"), output::is_json());
    if is_stat {
        common.insert("stat".to_owned(), json!(true));
    }
    let paths = matches.get_many::<String>("PATH").into_iter().flatten();
    let paths = paths.map(|path| Some(prefix.join(path).display().to_string()));
    let mut paths: Vec<Option<String>> = paths.collect();
    if paths.is_empty() {
        paths.push(None);
    }
    let mut whole: Option<Map<String, Value>> = None;
    for path in paths {
        let mut call = common.clone();
        if let Some(path) = path {
            call.insert("path".to_owned(), json!(path));
        }
        loop {
            let mut page = diff_page(client, &call).await?;
            let cursor = page.remove("next_cursor");
            if is_json || is_stat {
                add_page(&mut whole, page);
            } else {
                // Exactly as it is: a page may end anywhere in the patch.
                let diff = page.get("diff").and_then(Value::as_str);
                print_patch(diff.unwrap_or_default())?;
            }
            match cursor {
                Some(cursor) => call.insert("cursor".to_owned(), cursor),
                None => break,
            };
        }
    }
    if let Some(whole) = whole {
        if is_json {
            print_json(&whole);
        } else {
            stat::print(&stat::from_server(&whole));
        }
    }
    Ok(())
}

async fn diff_page(
    client: &Client,
    call: &Map<String, Value>,
) -> Result<Map<String, Value>, Failure> {
    client.call("session_diff", call.clone()).await.map_err(|error| match error {
        CallError::Rejected(Failure::Failed(text)) if text.contains("unknown tool") => Failure::new(
            "this server cannot show the changes of a session that did not work on a copy of this \
             directory, nor those of one turn",
        ),
        other => other.into(),
    })
}

/// Puts the pages of a diff together.
fn add_page(whole: &mut Option<Map<String, Value>>, mut page: Map<String, Value>) {
    for name in ["truncated", "rest_uri"] {
        page.remove(name);
    }
    let Some(whole) = whole else {
        *whole = Some(page);
        return;
    };
    if let (Some(Value::Array(files)), Some(Value::Array(more))) =
        (whole.get_mut("files"), page.remove("files"))
    {
        files.extend(more);
    }
    if let (Some(Value::String(diff)), Some(Value::String(more))) =
        (whole.get_mut("diff"), page.remove("diff"))
    {
        diff.push_str(&more);
    }
}

fn print_patch(patch: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let written = if out.is_terminal() {
        let lines = patch.split('\n').map(printable);
        out.write_all(lines.collect::<Vec<_>>().join("\n").as_bytes())
    } else {
        out.write_all(patch.as_bytes())
    };
    match written.and_then(|()| out.flush()) {
        // As of `oubliette diff | head`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::with_cause("cannot write the output", &error)),
    }
}
