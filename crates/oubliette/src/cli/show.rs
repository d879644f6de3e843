//! `oubliette session show` and `session events`: a session as a transcript.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use oubliette_model::{Status, WorkspaceId};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::access::Access;
use super::client::{CallError, Client};
use super::event_log::{EVENTS_WAIT_SECONDS, EventLog, EventPage, LostServer};
use super::event_printer::EventPrinter;
use super::permit::{short_request, short_session};
use super::session_tail::{Tail, describe_awaited};
use super::transcript::Transcript;
use super::{last_session, names, session_table};
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::style::Style;
use crate::terminal::{self, output, printable, width};

const FOLLOW: &str = "follow";
const FULL: &str = "full";
pub(super) const RAW: &str = "raw";
const TURNS: &str = "turns";
/// How long to wait before a server that does not answer is asked again.
const RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);

fn transcript_flags(command: Command) -> Command {
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    command
        .arg(
            switch(
                FOLLOW,
                "Go on with new events until the session ends or Ctrl-C",
            )
            .short('f'),
        )
        .arg(switch(
            FULL,
            "Show the whole output of tools on a terminal, too",
        ))
}

pub(super) fn command() -> Command {
    let command = Command::new("show")
        .about("Show a session: what it is and does, and its turns as a transcript")
        .after_help(
            "Examples:\n  oubliette session show latest\n  oubliette session show - --turns 1    only the last turn\n  \
             oubliette session show -f gogol_8a73",
        )
        .arg(
            Arg::new("SESSION")
                .help(format!("{} [default: latest]", last_session::HELP)),
        )
        .arg(
            Arg::new(TURNS)
                .long(TURNS)
                .short('n')
                .value_name("N")
                .value_parser(value_parser!(u64))
                .help("Show only the last N turns"),
        );
    transcript_flags(command)
}

/// Adds the flags of the transcript to `session events`.
pub(super) fn add_flags(command: Command) -> Command {
    transcript_flags(command).arg(
        Arg::new(RAW)
            .long(RAW)
            .action(ArgAction::SetTrue)
            .conflicts_with_all([FOLLOW, FULL])
            .help("Print a table of the events instead of a transcript"),
    )
}

/// Whether `session events` is to print a transcript.
pub(super) fn wants_transcript(matches: &ArgMatches) -> bool {
    let given = |name: &str| {
        matches.contains_id(name) && matches.get_one::<bool>(name).copied() == Some(true)
    };
    !output::is_json() && !matches.get_flag(RAW) && !given("include_children")
}

/// Events for a table: times as short as they can be, and no session id if all have the same.
pub(super) fn events_for_table(mut result: Map<String, Value>) -> Map<String, Value> {
    let Some(Value::Array(events)) = result.get_mut("events") else {
        return result;
    };
    let times: Vec<Option<(String, String)>> = events
        .iter()
        .map(|event| terminal::day_and_time(event["timestamp"].as_str()?))
        .collect();
    let mut days = times.iter().flatten().map(|(day, _)| day);
    let first_day = days.next();
    let is_one_day = days.all(|day| Some(day) == first_day);
    let first = events.first().map(|event| event["session_id"].clone());
    let is_one_session = events
        .iter()
        .all(|event| Some(&event["session_id"]) == first.as_ref());
    let rows = events.iter_mut().filter_map(Value::as_object_mut);
    for (row, time) in rows.zip(&times) {
        if is_one_session {
            row.remove("session_id");
        }
        if let Some((day, time)) = time {
            row.remove("timestamp");
            let at = if is_one_day {
                time.clone()
            } else {
                format!("{day} {time}")
            };
            row.insert("at".to_owned(), at.into());
        }
    }
    // So that only the list of the events is left.
    result.retain(|name, _| name == "events");
    result
}

/// `oubliette session show`.
pub(super) fn run(matches: &ArgMatches, home: &Home, access: &Access) -> Result<(), Failure> {
    block_on(show(matches, home, access))?
}

async fn show(matches: &ArgMatches, home: &Home, access: &Access) -> Result<(), Failure> {
    let client = Client::connect(access).await?;
    let given = matches.get_one::<String>("SESSION").map(String::as_str);
    let given = given.unwrap_or(last_session::LATEST);
    let session = last_session::resolve(given, home, access, &client).await?;
    let get = Map::from_iter([("session_id".to_owned(), json!(session))]);
    let found = client.call("session_get", get).await?;
    last_session::remember_result(&found, None, home, access);
    let session = found.get("session_id").and_then(Value::as_str);
    let session = session.unwrap_or_default().to_owned();
    let mut log = EventLog::new(&client, &session, -1);
    let mut page = log.read_all(None, 0.0).await?;
    if let Some(turns) = matches.get_one::<u64>(TURNS) {
        page.events = last_turns(page.events, *turns);
    }
    if output::is_json() {
        let mut shown = found;
        shown.insert("events".to_owned(), page.events.into());
        terminal::print_json(&shown);
        return Ok(());
    }
    terminal::print_line(&format!("{}\n", describe(&client, &found).await));
    print(log, &page, matches).await
}

/// Runs `session events` as a transcript.
pub(super) async fn events(
    matches: &ArgMatches,
    given: Map<String, Value>,
    home: &Home,
    access: &Access,
) -> Result<(), Failure> {
    let client = Client::connect(access).await?;
    let given = last_session::resolve_parameters(given, home, access, &client).await?;
    let session = given.get("session_id").and_then(Value::as_str);
    let since = given.get("since_index").and_then(Value::as_i64);
    let mut log = EventLog::new(&client, session.unwrap_or_default(), since.unwrap_or(-1));
    let wait = given.get("wait_seconds").and_then(Value::as_f64);
    let max_events = given.get("max_events").and_then(Value::as_u64);
    let page = log.read_all(max_events, wait.unwrap_or(0.0)).await?;
    last_session::remember(log.session(), home, access);
    print(log, &page, matches).await
}

async fn print(log: EventLog<'_>, page: &EventPage, matches: &ArgMatches) -> Result<(), Failure> {
    let folds = width::stdout_columns().is_some() && !matches.get_flag(FULL);
    let mut transcript = Transcript::new(Style::of_stdout(), folds);
    let columns = width::stdout_columns();
    let mut text: String = page
        .events
        .iter()
        .map(|event| transcript.format(event, columns))
        .collect();
    if page.trimmed_before > 0 {
        eprintln!("(older events were deleted; the transcript begins later)");
    }
    if !matches.get_flag(FOLLOW) {
        text.push_str(&transcript.unfinished(columns));
        if !text.is_empty() {
            terminal::print_line(text.trim_end_matches('\n'));
        }
        return Ok(());
    }
    terminal::print(&text);
    follow(log, EventPrinter::of_transcript(transcript)).await
}

/// What a session is and does, in a few lines.
async fn describe(client: &Client, found: &Map<String, Value>) -> String {
    let style = Style::of_stdout();
    let text = |name: &str| found.get(name).and_then(Value::as_str).unwrap_or_default();
    let project = names::project_name(text("project_id"), client).await;
    let mut parts = vec![project];
    if text("workspace_id") != WorkspaceId::DEFAULT {
        parts.push(format!("workspace {}", text("workspace_id")));
    }
    parts.push(text("agent").to_owned());
    parts.push(text("model").to_owned());
    parts.push(match found.get("turns").and_then(Value::as_u64) {
        Some(1) => "1 turn".to_owned(),
        turns => format!("{} turns", turns.unwrap_or_default()),
    });
    parts.push(format!("cost {}", session_table::cost(found)));
    parts.push(format!("started {} ago", session_table::age(found)));
    parts.retain(|part| !part.is_empty());
    let mut lines = vec![
        format!(
            "{} {}",
            style.bold(text("session_id")),
            status(text("status"), style)
        ),
        style.dim(&printable(&parts.join(" · "))),
    ];
    if let Some(waiting) = describe_waiting(client, found).await {
        lines.push(format!("{} {waiting}", style.yellow("waits for")));
    }
    if let Some(error) = found.get("error").and_then(Value::as_str) {
        lines.push(style.red(&printable(error)));
    }
    lines.join("\n")
}

fn status(status: &str, style: Style) -> String {
    match status {
        "waiting" => style.yellow(status),
        "running" | "created" => style.cyan(status),
        "failed" | "interrupted" => style.red(status),
        _ => style.dim(status),
    }
}

/// What a session waits for, with the command that answers it.
pub(super) async fn describe_waiting(
    client: &Client,
    found: &Map<String, Value>,
) -> Option<String> {
    let waiting = found.get("waiting_for")?;
    let request_id = printable(short_request(waiting["request_id"].as_str()?));
    let session = printable(short_session(found.get("session_id")?.as_str()?));
    let tail = Tail::read(client, found).await.ok()?;
    let request = tail.request?;
    let what = describe_awaited(&request);
    if request["type"] == "caller_tool_request" {
        return Some(what);
    }
    Some(format!(
        "permission: {what}\n  oubliette session permit {session} {request_id} allow    (or deny)"
    ))
}

/// The events of the last turns.
fn last_turns(events: Vec<Value>, turns: u64) -> Vec<Value> {
    let prompts: Vec<usize> = events
        .iter()
        .enumerate()
        .filter(|(_, event)| event["type"] == "prompt")
        .map(|(at, _)| at)
        .collect();
    let first = prompts
        .len()
        .saturating_sub(usize::try_from(turns).unwrap_or(usize::MAX));
    match prompts.get(first) {
        Some(at) => events[*at..].to_vec(),
        None if turns == 0 => Vec::new(),
        None => events,
    }
}

/// Prints new events until the session has ended or the user presses Ctrl-C.
async fn follow(mut log: EventLog<'_>, mut printer: EventPrinter) -> Result<(), Failure> {
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::with_cause("cannot wait for signals", &error))?;
    let mut wait_seconds = EVENTS_WAIT_SECONDS;
    let mut lost_server = LostServer::default();
    loop {
        let page = tokio::select! {
            page = log.read(wait_seconds) => page,
            _ = interrupts.recv() => {
                printer.finish_line();
                // The terminal has shown ^C.
                eprintln!();
                return Ok(());
            }
        };
        match page {
            Ok(page) => {
                if let Some(notice) = lost_server.find() {
                    printer.print_notice(notice);
                }
                for event in &page.events {
                    printer.print(event);
                }
                let is_ended = page.status.is_some_and(Status::is_ended);
                if is_ended && page.events.is_empty() {
                    return Ok(());
                }
                if is_ended {
                    wait_seconds = 0.0;
                }
            }
            Err(CallError::Unreachable(_)) => {
                if let Some(notice) = lost_server.lose() {
                    printer.print_notice(notice);
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Err(rejected) => return Err(rejected.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_events_has_short_times_and_no_session_that_is_always_the_same() {
        let event =
            |at: &str, session: &str| json!({ "index": 0, "session_id": session, "timestamp": at });
        let shown = |events: Vec<Value>| {
            let result = json!({ "events": events, "last_index": 1, "status": "idle" });
            Value::Object(events_for_table(result.as_object().unwrap().clone()))
        };
        let one = shown(vec![
            event("2027-01-04T12:00:01.123Z", "s"),
            event("2027-01-04T12:00:02Z", "s"),
        ]);
        let at = one["events"][0]["at"].as_str().unwrap();
        assert!(at.len() == 8 && at.ends_with(":01"), "{at}");
        assert_eq!(one["events"][0].get("session_id"), None);
        assert_eq!(one.as_object().unwrap().len(), 1);
        let several = shown(vec![
            event("2027-01-04T12:00:01Z", "s"),
            event("2027-01-06T12:00:01Z", "t"),
        ]);
        let at = several["events"][1]["at"].as_str().unwrap();
        assert!(at.starts_with("2027-01-0") && at.len() == 19, "{at}");
        assert_eq!(several["events"][1]["session_id"], "t");
    }

    #[test]
    fn the_last_turns_begin_with_their_prompts() {
        let events: Vec<Value> = ["status", "prompt", "completion", "prompt", "completion"]
            .iter()
            .map(|kind| json!({ "type": kind }))
            .collect();
        for (turns, expected) in [(0, 0), (1, 2), (2, 4), (9, 4)] {
            assert_eq!(last_turns(events.clone(), turns).len(), expected, "{turns}");
        }
        assert_eq!(last_turns(vec![json!({ "type": "status" })], 1).len(), 1);
    }
}
