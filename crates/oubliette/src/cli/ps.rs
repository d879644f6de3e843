//! `oubliette ps`: the sessions at work, what they wait for and what they do.

use std::collections::{BTreeSet, HashMap};
use std::io::IsTerminal;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::access::Access;
use super::client::{CallError, Client};
use super::names;
use super::session_table;
use super::session_tail::Tail;
use crate::failure::Failure;
use crate::terminal;
use crate::terminal::style::Style;

const WATCH: &str = "watch";
const ALL: &str = "all";
/// How often `--watch` asks the server.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How many logs are read at once: each call is a connection.
const MAX_PARALLEL_READS: usize = 8;
/// How many sessions that do nothing `--all` shows.
const MAX_RESTING_SESSIONS: u32 = 100;
/// The states of sessions at work, those that need a person first.
const WORKING_STATES: [&str; 3] = ["waiting", "running", "created"];
/// A new screen without a cursor, and back.
const ENTER_SCREEN: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE_SCREEN: &str = "\x1b[?25h\x1b[?1049l";
const TO_START: &str = "\x1b[H";
const CLEAR_LINE_END: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

pub(super) fn command() -> Command {
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    Command::new("ps")
        .about("Show the sessions at work, what they wait for and what they cost")
        .after_help("Examples:\n  oubliette ps\n  oubliette ps --watch    until Ctrl-C")
        .arg(
            switch(WATCH, "Show them until Ctrl-C, as they change")
                .short('w')
                .conflicts_with("json"),
        )
        .arg(switch(ALL, "Show the newest idle and ended sessions, too").short('a'))
}

pub(super) fn run(matches: &ArgMatches, access: &Access) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_cause("cannot start", &error))?;
    let all = matches.get_flag(ALL);
    runtime.block_on(async {
        let client = Client::connect(access).await?;
        let mut sessions = Sessions::new(&client, all);
        let result = if matches.get_flag(WATCH) {
            watch(&mut sessions).await
        } else {
            print(&mut sessions, matches.get_flag("json")).await
        };
        client.close().await;
        result
    })
}

async fn print(sessions: &mut Sessions<'_>, as_json: bool) -> Result<(), Failure> {
    sessions.update().await?;
    terminal::print_line(&if as_json {
        sessions.to_json()
    } else {
        sessions.format()
    });
    if !as_json && std::io::stdout().is_terminal() {
        for hint in sessions.hints() {
            eprintln!("{hint}");
        }
    }
    Ok(())
}

/// Redraws the sessions in place until Ctrl-C, and leaves the last state on the screen.
async fn watch(sessions: &mut Sessions<'_>) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        return Err(Failure::new(
            "--watch needs a terminal, and the standard output is none; leave it out",
        ));
    }
    let listen =
        |kind| signal(kind).map_err(|error| Failure::with_cause("cannot wait for signals", &error));
    let mut interrupts = listen(SignalKind::interrupt())?;
    let mut terminations = listen(SignalKind::terminate())?;
    let mut resizes = listen(SignalKind::window_change())?;
    // Before the screen changes: an error belongs to the user's own.
    sessions.update().await?;
    let screen = Screen::enter();
    let mut notice = None;
    loop {
        screen.draw(&sessions.format(), notice);
        tokio::select! {
            () = tokio::time::sleep(WATCH_INTERVAL) => {}
            _ = resizes.recv() => continue,
            _ = interrupts.recv() => break,
            _ = terminations.recv() => break,
        }
        tokio::select! {
            updated = sessions.update() => match updated {
                Ok(()) => notice = None,
                Err(CallError::Unreachable(_)) => {
                    notice = Some("the server does not answer; waiting for it (Ctrl-C to leave)");
                }
                Err(rejected) => {
                    drop(screen);
                    return Err(rejected.into());
                }
            },
            _ = interrupts.recv() => break,
            _ = terminations.recv() => break,
        }
    }
    drop(screen);
    terminal::print_line(&sessions.format());
    Ok(())
}

/// The sessions as they were when the server was asked last.
struct Sessions<'a> {
    client: &'a Client,
    all: bool,
    rows: Vec<Map<String, Value>>,
    /// What each of them did, and up to which event that is known.
    tails: HashMap<String, (i64, Tail)>,
    /// The names of projects by their ids.
    projects: HashMap<String, String>,
}

impl<'a> Sessions<'a> {
    fn new(client: &'a Client, all: bool) -> Self {
        Self {
            client,
            all,
            rows: Vec::new(),
            tails: HashMap::new(),
            projects: HashMap::new(),
        }
    }

    async fn update(&mut self) -> Result<(), CallError> {
        let client = self.client;
        let working =
            WORKING_STATES.map(|status| list(client, json!({ "status": status, "limit": 1000 })));
        let mut rows: Vec<Map<String, Value>> = try_join_all(working).await?.concat();
        if self.all {
            let newest = list(client, json!({ "limit": MAX_RESTING_SESSIONS })).await?;
            let is_resting = |row: &Map<String, Value>| {
                let status = row.get("status").and_then(Value::as_str);
                !status.is_some_and(|status| WORKING_STATES.contains(&status))
            };
            rows.extend(newest.into_iter().filter(is_resting));
        }
        // Of a session that has no new event everything is known.
        let known = |row: &Map<String, Value>| {
            let known = self.tails.get(id(row)).map(|(index, _)| *index);
            known.is_some() && known == row.get("last_index").and_then(Value::as_i64)
        };
        let changed: Vec<&Map<String, Value>> = rows.iter().filter(|row| !known(row)).collect();
        let reads = stream::iter(changed.iter().map(|row| Tail::read(client, row)));
        let tails: Vec<_> = reads.buffered(MAX_PARALLEL_READS).collect().await;
        for (row, tail) in changed.iter().zip(tails) {
            let index = row.get("last_index").and_then(Value::as_i64).unwrap_or(-1);
            match tail {
                Ok(tail) => drop(self.tails.insert(id(row).to_owned(), (index, tail))),
                // It was deleted meanwhile.
                Err(CallError::Rejected(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.tails
            .retain(|session, _| rows.iter().any(|row| id(row) == session));
        self.name_projects(&mut rows).await;
        self.rows = rows;
        Ok(())
    }

    /// Adds the names of projects. They are asked for when a new project appears.
    async fn name_projects(&mut self, rows: &mut [Map<String, Value>]) {
        let text = |row: &Map<String, Value>| row.get("project_id")?.as_str().map(str::to_owned);
        let ids: BTreeSet<String> = rows.iter().filter_map(text).collect();
        if ids.iter().any(|id| !self.projects.contains_key(id))
            && let Some(names) = names::names_by_id("project", ids, self.client).await
        {
            self.projects = names;
        }
        for row in rows {
            let id = text(row).unwrap_or_default();
            let name = self.projects.get(&id).unwrap_or(&id).clone();
            row.insert("project".to_owned(), name.into());
        }
    }

    fn tail(&self, row: &Map<String, Value>) -> Option<&Tail> {
        self.tails.get(id(row)).map(|(_, tail)| tail)
    }

    fn format(&self) -> String {
        if self.rows.is_empty() {
            return if self.all {
                "No sessions.".to_owned()
            } else {
                "No session is at work.".to_owned()
            };
        }
        let rows: Vec<Map<String, Value>> = self
            .rows
            .iter()
            .map(|row| {
                let mut shown = session_table::common_columns(row);
                let now = self.tail(row).map_or(String::new(), Tail::describe);
                shown.insert("now".to_owned(), now.into());
                shown
            })
            .collect();
        session_table::format_rows(&rows)
    }

    /// What the user can do about sessions that wait.
    fn hints(&self) -> Vec<String> {
        let waiting = self
            .rows
            .iter()
            .filter(|row| row.get("status") == Some(&json!("waiting")));
        let waiting = waiting.filter(|row| {
            let request = self.tail(row).and_then(|tail| tail.request.as_ref());
            request.is_some_and(|request| request["type"] == "permission_request")
        });
        let style = Style::of_stderr();
        waiting
            .map(|row| style.dim(&format!("Answer it: oubliette session attach {}", id(row))))
            .collect()
    }

    fn to_json(&self) -> String {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let mut row = row.clone();
                let tail = self.tail(&row);
                let request = tail.and_then(|tail| tail.request.clone());
                let now = tail.map_or(String::new(), Tail::describe);
                row.insert("request".to_owned(), request.unwrap_or_default());
                row.insert("now".to_owned(), now.into());
                Value::Object(row)
            })
            .collect();
        terminal::json_text(&json!({ "sessions": rows }))
    }
}

fn id(row: &Map<String, Value>) -> &str {
    let id = row.get("session_id").and_then(Value::as_str);
    id.unwrap_or_default()
}

async fn list(client: &Client, filter: Value) -> Result<Vec<Map<String, Value>>, CallError> {
    let Value::Object(filter) = filter else {
        return Ok(Vec::new());
    };
    let mut result = client.call("session_list", filter).await?;
    let rows = match result.remove("sessions") {
        Some(Value::Array(rows)) => rows,
        _ => Vec::new(),
    };
    let rows = rows.into_iter().filter_map(|row| match row {
        Value::Object(row) => Some(row),
        _ => None,
    });
    Ok(rows.collect())
}

/// The terminal's other screen, until dropped.
struct Screen(());

impl Screen {
    fn enter() -> Self {
        terminal::print(ENTER_SCREEN);
        Self(())
    }

    /// Draws over what was there, at most as many lines as the terminal has.
    fn draw(&self, table: &str, notice: Option<&str>) {
        let (rows, columns) = crate::tty::size().unwrap_or((24, 80));
        let (rows, columns) = (usize::from(rows), usize::from(columns));
        let mut lines: Vec<&str> = table.lines().collect();
        // The last two lines are for what is left out or wrong, and for the time.
        let more = lines.len().saturating_sub(rows.saturating_sub(2).max(1));
        lines.truncate(lines.len() - more);
        let mut text = TO_START.to_owned();
        for line in lines {
            text.push_str(line);
            text.push_str(CLEAR_LINE_END);
            text.push_str("\r\n");
        }
        let now = jiff::Zoned::now().strftime("%H:%M:%S").to_string();
        let end = match notice {
            Some(notice) => notice.to_owned(),
            None if more > 0 => format!("{now} · {more} more · Ctrl-C ends"),
            None => format!("{now} · Ctrl-C ends"),
        };
        let end = terminal::width::fit(&end, columns.saturating_sub(1));
        text.push_str(CLEAR_LINE_END);
        text.push_str("\r\n");
        text.push_str(&Style::of_stdout().dim(&end));
        text.push_str(CLEAR_LINE_END);
        text.push_str(CLEAR_BELOW);
        terminal::print(&text);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        terminal::print(LEAVE_SCREEN);
    }
}
