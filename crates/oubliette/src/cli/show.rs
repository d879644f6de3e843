//! `oubliette session show` and `session events`: a session as a transcript.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::access::Access;
use super::client::{CallError, Client};
use super::event_printer::EventPrinter;
use super::session_tail::{Tail, describe_awaited};
use super::transcript::Transcript;
use super::{last_session, names, session_table};
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::style::Style;
use crate::terminal::{self, printable, width};

const FOLLOW: &str = "follow";
const FULL: &str = "full";
pub(super) const RAW: &str = "raw";
const TURNS: &str = "turns";
/// The maximum that `session_events` returns.
const PAGE_EVENTS: u32 = 1000;
/// The length of one long poll.
const EVENTS_WAIT_SECONDS: f64 = 20.0;
/// How long to wait before a server that does not answer is asked again.
const RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);
/// Sessions in these states get no more events.
const ENDED_STATES: [&str; 3] = ["completed", "interrupted", "failed"];

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
    !matches.get_flag("json") && !matches.get_flag(RAW) && !given("include_children")
}

/// `oubliette session show`.
pub(super) fn run(matches: &ArgMatches, home: &Home, access: &Access) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    runtime.block_on(show(matches, home, access))
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
    let mut log = Log::new(&client, &session, -1);
    let mut events = log.read_all(None).await?;
    if let Some(turns) = matches.get_one::<u64>(TURNS) {
        events = last_turns(events, *turns);
    }
    if matches.get_flag("json") {
        let mut shown = found;
        shown.insert("events".to_owned(), events.into());
        terminal::print_line(&terminal::json_text(&shown));
        return Ok(());
    }
    terminal::print_line(&format!("{}\n", describe(&client, &found).await));
    print(log, &events, matches).await
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
    let mut log = Log::new(&client, session.unwrap_or_default(), since.unwrap_or(-1));
    let wait = given.get("wait_seconds").and_then(Value::as_f64);
    log.wait_seconds = wait.unwrap_or(0.0);
    let max_events = given.get("max_events").and_then(Value::as_u64);
    let events = log.read_all(max_events).await?;
    last_session::remember(&log.session, home, access);
    print(log, &events, matches).await
}

async fn print(mut log: Log<'_>, events: &[Value], matches: &ArgMatches) -> Result<(), Failure> {
    let folds = width::stdout_columns().is_some() && !matches.get_flag(FULL);
    let mut transcript = Transcript::new(Style::of_stdout(), folds);
    let columns = width::stdout_columns();
    let mut text: String = events
        .iter()
        .map(|event| transcript.format(event, columns))
        .collect();
    if log.trimmed_before > 0 {
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
    log.follow(EventPrinter::of_transcript(transcript)).await
}

/// What a session is and does, in a few lines.
async fn describe(client: &Client, found: &Map<String, Value>) -> String {
    let style = Style::of_stdout();
    let text = |name: &str| found.get(name).and_then(Value::as_str).unwrap_or_default();
    let project = names::project_name(text("project_id"), client).await;
    let mut parts = vec![project];
    if text("workspace_id") != "default" {
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
    let request_id = printable(waiting["request_id"].as_str()?);
    let session = printable(found.get("session_id")?.as_str()?);
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

/// Reads the log of a session from an index on.
struct Log<'a> {
    client: &'a Client,
    session: String,
    since: i64,
    wait_seconds: f64,
    trimmed_before: i64,
    status: String,
}

impl<'a> Log<'a> {
    fn new(client: &'a Client, session: &str, since: i64) -> Self {
        Self {
            client,
            session: session.to_owned(),
            since,
            wait_seconds: 0.0,
            trimmed_before: 0,
            status: String::new(),
        }
    }

    async fn read_page(&mut self, max_events: u64) -> Result<Vec<Value>, CallError> {
        let page = Map::from_iter([
            ("session_id".to_owned(), json!(self.session)),
            ("since_index".to_owned(), json!(self.since)),
            ("max_events".to_owned(), json!(max_events)),
            ("wait_seconds".to_owned(), json!(self.wait_seconds)),
            ("types".to_owned(), json!(["all"])),
            ("full".to_owned(), json!(true)),
        ]);
        let mut page = self.client.call("session_events", page).await?;
        let number = |name: &str| page.get(name).and_then(Value::as_i64);
        self.since = number("last_index").unwrap_or(self.since);
        self.trimmed_before = number("trimmed_before").unwrap_or(0);
        for (name, field) in [
            ("status", &mut self.status),
            ("session_id", &mut self.session),
        ] {
            if let Some(text) = page.get(name).and_then(Value::as_str) {
                text.clone_into(field);
            }
        }
        Ok(match page.remove("events") {
            Some(Value::Array(events)) => events,
            _ => Vec::new(),
        })
    }

    /// Reads to the end of the log, or the given number of events.
    async fn read_all(&mut self, max_events: Option<u64>) -> Result<Vec<Value>, CallError> {
        let mut events = Vec::new();
        loop {
            let left = max_events.map(|max| max.saturating_sub(events.len() as u64));
            let wanted = left.map_or(u64::from(PAGE_EVENTS), |left| {
                left.min(u64::from(PAGE_EVENTS))
            });
            if wanted == 0 && !events.is_empty() {
                return Ok(events);
            }
            let page = self.read_page(wanted).await?;
            // Only the first page may wait.
            self.wait_seconds = 0.0;
            if page.is_empty() {
                return Ok(events);
            }
            events.extend(page);
        }
    }

    /// Prints new events until the session has ended or the user presses Ctrl-C.
    async fn follow(&mut self, mut printer: EventPrinter) -> Result<(), Failure> {
        let mut interrupts = signal(SignalKind::interrupt())
            .map_err(|error| Failure::with_cause("cannot wait for signals", &error))?;
        self.wait_seconds = EVENTS_WAIT_SECONDS;
        let mut was_lost = false;
        loop {
            let page = tokio::select! {
                page = self.read_page(u64::from(PAGE_EVENTS)) => page,
                _ = interrupts.recv() => {
                    printer.finish_line();
                    // The terminal has shown ^C.
                    eprintln!();
                    return Ok(());
                }
            };
            match page {
                Ok(events) => {
                    was_lost = false;
                    for event in &events {
                        printer.print(event);
                    }
                    if events.is_empty() && ENDED_STATES.contains(&self.status.as_str()) {
                        return Ok(());
                    }
                    if ENDED_STATES.contains(&self.status.as_str()) {
                        self.wait_seconds = 0.0;
                    }
                }
                Err(CallError::Unreachable(_)) => {
                    if !std::mem::replace(&mut was_lost, true) {
                        printer.print_notice(
                            "the server does not answer; waiting for it (Ctrl-C to leave)",
                        );
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(rejected) => return Err(rejected.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
