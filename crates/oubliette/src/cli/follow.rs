//! Follows a session live: prints its events, interrupts its turn on Ctrl-C, answers permission requests.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::client::{CallError, Client};
use super::event_printer::{Completion, EventPrinter};
use super::local_tools::{LocalTools, ToolResponse};
use crate::failure::Failure;

/// The length of one long poll. Shorter than the server's maximum, to notice a dead server sooner.
const EVENTS_WAIT_SECONDS: f64 = 20.0;
const SPINNER_INTERVAL: Duration = Duration::from_millis(100);
/// How often a tool response is sent to a server that is not reachable.
const MAX_RESPONSE_ATTEMPTS: usize = 600;
/// The exit code of a program that was ended by SIGINT, as a shell reports it.
const INTERRUPTED_EXIT_CODE: u8 = 130;

/// Follows one session on the terminal.
pub(super) struct Follower<'a> {
    client: &'a Client,
    session: String,
    since: i64,
    printer: EventPrinter,
    interrupts: Signal,
    /// Whether Ctrl-C was already pressed in this turn.
    interrupted: bool,
    input: Option<Lines<BufReader<Stdin>>>,
    /// The permission request that the next input line answers.
    pending_request: Option<String>,
    /// The tools on this machine that the agent can call.
    tools: LocalTools,
}

/// Why following stopped.
pub(super) enum FollowEnd {
    TurnEnded(Completion),
    /// The user detached; the session keeps running.
    Detached,
}

fn arguments(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

impl<'a> Follower<'a> {
    pub(super) fn new(client: &'a Client, session: &str, since: i64) -> Result<Self, Failure> {
        let interrupts = signal(SignalKind::interrupt())
            .map_err(|error| Failure::with_cause("cannot wait for signals", &error))?;
        Ok(Self {
            client,
            session: session.to_owned(),
            since,
            printer: EventPrinter::default(),
            interrupts,
            interrupted: false,
            input: None,
            pending_request: None,
            tools: LocalTools::default(),
        })
    }

    /// Also runs these tools when the agent calls them.
    pub(super) fn with_tools(self, tools: LocalTools) -> Self {
        Self { tools, ..self }
    }

    /// Also reads lines from the standard input: messages, and answers to permission requests.
    pub(super) fn with_input(mut self) -> Self {
        self.input = Some(BufReader::new(tokio::io::stdin()).lines());
        self
    }

    /// Follows to the end of the current or next turn; with input, until the user detaches.
    pub(super) async fn follow(&mut self) -> Result<FollowEnd, Failure> {
        loop {
            let page = arguments(json!({
                "session_id": self.session, "since_index": self.since, "wait_seconds": EVENTS_WAIT_SECONDS,
            }));
            let client = self.client;
            let mut polling = std::pin::pin!(client.call("session_events", page));
            let page = loop {
                tokio::select! {
                    page = &mut polling => break page,
                    () = tokio::time::sleep(SPINNER_INTERVAL) => {
                        if self.input.is_none() {
                            self.printer.advance_spinner();
                        }
                    }
                    _ = self.interrupts.recv() => {
                        self.printer.clear();
                        if self.interrupted {
                            return Ok(FollowEnd::Detached);
                        }
                        self.interrupted = true;
                        eprintln!("  interrupting the turn; press Ctrl-C again to detach; the session keeps running");
                        let stop = arguments(json!({ "session_id": self.session }));
                        client.call("session_interrupt", stop).await?;
                    }
                    answer = self.tools.next_response() => send_tool_response(client, answer).await?,
                    line = next_line(&mut self.input) => match line {
                        Some(line) => {
                            let session = self.session.clone();
                            let pending_request = self.pending_request.take();
                            send_line(client, &session, pending_request, &line).await?;
                        }
                        None => return Ok(FollowEnd::Detached),
                    },
                }
            };
            let page = match page {
                Ok(page) => page,
                // A restarted server continues where it was.
                Err(CallError::Unreachable(_)) => {
                    tokio::time::sleep(SPINNER_INTERVAL).await;
                    continue;
                }
                Err(rejected) => return Err(rejected.into()),
            };
            if let Some(stopped) = self.show_page(&page).await? {
                return Ok(stopped);
            }
        }
    }

    async fn show_page(&mut self, page: &Map<String, Value>) -> Result<Option<FollowEnd>, Failure> {
        let events = page.get("events").and_then(Value::as_array);
        for event in events.into_iter().flatten() {
            self.since = event["index"].as_i64().unwrap_or(self.since);
            self.tools.handle_event(event);
            let completion = self.printer.print(event);
            if event["type"] == "permission_request" {
                self.ask_permission(event).await?;
            }
            let Some(completion) = completion else {
                continue;
            };
            self.interrupted = false;
            if self.input.is_none() {
                return Ok(Some(FollowEnd::TurnEnded(completion)));
            }
            if let Some(error) = &completion.error {
                eprintln!("  {error}");
            }
        }
        Ok(None)
    }

    /// Asks on a terminal; otherwise prints the command that answers the request.
    async fn ask_permission(&mut self, event: &Value) -> Result<(), Failure> {
        let request = event["request_id"].as_str().unwrap_or_default().to_owned();
        if !std::io::stdin().is_terminal() {
            let session = &self.session;
            eprintln!("  oubliette session permit {session} {request} allow    (or deny)");
            return Ok(());
        }
        eprint!("  Allow it? [y]es, [a]lways, [N]o: ");
        let _ = std::io::stderr().flush();
        if self.input.is_some() {
            self.pending_request = Some(request);
            return Ok(());
        }
        let mut input = BufReader::new(tokio::io::stdin()).lines();
        let answer = tokio::select! {
            line = input.next_line() => line.ok().flatten().unwrap_or_default(),
            _ = self.interrupts.recv() => String::new(),
        };
        send_line(self.client, &self.session.clone(), Some(request), &answer).await
    }
}

/// Sends the response of a local tool, also if the server is restarted meanwhile.
async fn send_tool_response(client: &Client, answer: ToolResponse) -> Result<(), Failure> {
    for _ in 0..MAX_RESPONSE_ATTEMPTS {
        match client.call("caller_tool_response", answer.clone()).await {
            Ok(_) => return Ok(()),
            // The request was cancelled meanwhile.
            Err(CallError::Rejected(failure)) => {
                failure.print();
                return Ok(());
            }
            Err(CallError::Unreachable(_)) => tokio::time::sleep(SPINNER_INTERVAL).await,
        }
    }
    Ok(())
}

async fn next_line(input: &mut Option<Lines<BufReader<Stdin>>>) -> Option<String> {
    match input {
        Some(lines) => lines.next_line().await.ok().flatten(),
        None => std::future::pending().await,
    }
}

/// Sends a line as the answer to a permission request, or as a message.
async fn send_line(
    client: &Client,
    session: &str,
    pending_request: Option<String>,
    line: &str,
) -> Result<(), Failure> {
    let Some(request) = pending_request else {
        if !line.trim().is_empty() {
            let message = arguments(json!({ "session_id": session, "prompt": line }));
            client.call("session_message", message).await?;
        }
        return Ok(());
    };
    let decision = match line.trim().to_lowercase().chars().next() {
        Some('y') => "allow",
        Some('a') => "allow_always",
        _ => "deny",
    };
    let answer = arguments(json!({
        "session_id": session, "request_id": request, "decision": decision,
    }));
    match client.call("session_permit", answer).await {
        Ok(_) => Ok(()),
        // The request was already answered elsewhere.
        Err(CallError::Rejected(failure)) => {
            failure.print();
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// `oubliette session attach`.
pub(super) async fn attach(client: &Client, session: &str) -> Result<(), Failure> {
    let get = arguments(json!({ "session_id": session }));
    let found = client.call("session_get", get).await?;
    let status = found
        .get("status")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let agent = found
        .get("agent")
        .and_then(Value::as_str)
        .unwrap_or_default();
    eprintln!(
        "{agent}, {status}. Type a line to send it to the agent. Ctrl-C interrupts its turn, Ctrl-D detaches."
    );
    let since = newest_prompt(client, session, &found).await?;
    let mut follower = Follower::new(client, session, since)?.with_input();
    follower.follow().await?;
    eprintln!("The session keeps running; reattach with `oubliette session attach {session}`.");
    Ok(())
}

/// The index to follow from: just before the last prompt, if it is among the last 500 events.
async fn newest_prompt(
    client: &Client,
    session: &str,
    found: &Map<String, Value>,
) -> Result<i64, Failure> {
    let last = found
        .get("last_index")
        .and_then(Value::as_i64)
        .unwrap_or(-1);
    let from = (last - 500).max(-1);
    let page = arguments(json!({ "session_id": session, "since_index": from, "max_events": 1000 }));
    let page = client.call("session_events", page).await?;
    let events = page.get("events").and_then(Value::as_array);
    let prompts = events.into_iter().flatten().rev();
    let mut prompts = prompts.filter(|event| event["type"] == "prompt");
    Ok(prompts
        .next()
        .and_then(|event| event["index"].as_i64())
        .map_or(from, |index| index - 1))
}

/// The result of a command whose turn ended this way.
pub(super) fn exit_result(stopped: FollowEnd, session: &str) -> Result<(), Failure> {
    match stopped {
        FollowEnd::TurnEnded(completion) => {
            match (completion.stop_reason.as_str(), completion.error) {
                ("end_turn", _) => Ok(()),
                ("cancelled", _) => Err(Failure::Exit(INTERRUPTED_EXIT_CODE)),
                (_, Some(error)) => Err(Failure::new(error)),
                (reason, None) => Err(Failure::new(format!("the turn ended early: {reason}"))),
            }
        }
        FollowEnd::Detached => {
            eprintln!(
                "The session keeps running; reattach with `oubliette session attach {session}`."
            );
            Err(Failure::Exit(INTERRUPTED_EXIT_CODE))
        }
    }
}
