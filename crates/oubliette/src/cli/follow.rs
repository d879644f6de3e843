//! Following a session live: its events on the terminal, ctrl-C to its turn, answers to its questions.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::client::{Client, NoResult};
use super::show::{Completion, Show};
use super::tools::{Answer, Tools};
use crate::failure::Failure;

/// One long poll. The server's own bound is longer; a shorter one notices a dead server sooner.
const WAIT: f64 = 20.0;
const SPIN: Duration = Duration::from_millis(100);
/// How often an answer is brought to a server that is not there.
const PATIENCE: usize = 600;
/// As a shell says it of a program that ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// A session as somebody at a terminal follows it.
pub(super) struct Follower<'a> {
    client: &'a Client,
    session: String,
    since: i64,
    show: Show,
    interrupts: Signal,
    /// Whether ctrl-C was pressed in this turn already.
    interrupted: bool,
    input: Option<Lines<BufReader<Stdin>>>,
    /// A question that waits for a yes or no from the terminal.
    question: Option<String>,
    /// What the agent may call here.
    tools: Tools,
}

/// Why following stopped.
pub(super) enum Stopped {
    TurnEnded(Completion),
    /// Whoever followed left; the session goes on.
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
            .map_err(|error| Failure::of("cannot wait for signals", &error))?;
        Ok(Self {
            client,
            session: session.to_owned(),
            since,
            show: Show::default(),
            interrupts,
            interrupted: false,
            input: None,
            question: None,
            tools: Tools::default(),
        })
    }

    /// Also runs these when the agent calls them.
    pub(super) fn with_tools(self, tools: Tools) -> Self {
        Self { tools, ..self }
    }

    /// Also takes lines from the terminal: messages, and answers to questions.
    pub(super) fn listen(mut self) -> Self {
        self.input = Some(BufReader::new(tokio::io::stdin()).lines());
        self
    }

    /// Follows to the end of the turn that runs or comes next, or for ever if lines are taken.
    pub(super) async fn follow(&mut self) -> Result<Stopped, Failure> {
        loop {
            let page = arguments(json!({
                "session_id": self.session, "since_index": self.since, "wait_seconds": WAIT,
            }));
            let client = self.client;
            let mut polling = std::pin::pin!(client.call("session_events", page));
            let page = loop {
                tokio::select! {
                    page = &mut polling => break page,
                    () = tokio::time::sleep(SPIN) => {
                        if self.input.is_none() {
                            self.show.wait();
                        }
                    }
                    _ = self.interrupts.recv() => {
                        self.show.clear();
                        if self.interrupted {
                            return Ok(Stopped::Detached);
                        }
                        self.interrupted = true;
                        eprintln!("  interrupting the turn; ctrl-C again leaves the session alone");
                        let stop = arguments(json!({ "session_id": self.session }));
                        client.call("session_interrupt", stop).await?;
                    }
                    answer = self.tools.next() => respond(client, answer).await?,
                    line = next_line(&mut self.input) => match line {
                        Some(line) => {
                            let session = self.session.clone();
                            let question = self.question.take();
                            say(client, &session, question, &line).await?;
                        }
                        None => return Ok(Stopped::Detached),
                    },
                }
            };
            let page = match page {
                Ok(page) => page,
                // A server that is started again goes on where it was.
                Err(NoResult::Lost(_)) => {
                    tokio::time::sleep(SPIN).await;
                    continue;
                }
                Err(told) => return Err(told.into()),
            };
            if let Some(stopped) = self.show_page(&page).await? {
                return Ok(stopped);
            }
        }
    }

    async fn show_page(&mut self, page: &Map<String, Value>) -> Result<Option<Stopped>, Failure> {
        let events = page.get("events").and_then(Value::as_array);
        for event in events.into_iter().flatten() {
            self.since = event["index"].as_i64().unwrap_or(self.since);
            self.tools.event(event);
            let completion = self.show.event(event);
            if event["type"] == "permission_request" {
                self.ask(event).await?;
            }
            let Some(completion) = completion else {
                continue;
            };
            self.interrupted = false;
            if self.input.is_none() {
                return Ok(Some(Stopped::TurnEnded(completion)));
            }
            if let Some(error) = &completion.error {
                eprintln!("  {error}");
            }
        }
        Ok(None)
    }

    /// Somebody at a terminal can answer at once; anybody else is told how.
    async fn ask(&mut self, event: &Value) -> Result<(), Failure> {
        let request = event["request_id"].as_str().unwrap_or_default().to_owned();
        if !std::io::stdin().is_terminal() {
            let session = &self.session;
            eprintln!("  oubliette session permit {session} {request} allow    (or deny)");
            return Ok(());
        }
        eprint!("  Allow it? [y]es, [a]lways, [N]o: ");
        let _ = std::io::stderr().flush();
        if self.input.is_some() {
            self.question = Some(request);
            return Ok(());
        }
        let mut input = BufReader::new(tokio::io::stdin()).lines();
        let answer = tokio::select! {
            line = input.next_line() => line.ok().flatten().unwrap_or_default(),
            _ = self.interrupts.recv() => String::new(),
        };
        say(self.client, &self.session.clone(), Some(request), &answer).await
    }
}

/// Answers a call of a tool of ours, also to a server that is started again meanwhile.
async fn respond(client: &Client, answer: Answer) -> Result<(), Failure> {
    for _ in 0..PATIENCE {
        match client.call("caller_tool_response", answer.clone()).await {
            Ok(_) => return Ok(()),
            // It was given up; the log shows it.
            Err(NoResult::Told(failure)) => {
                failure.print();
                return Ok(());
            }
            Err(NoResult::Lost(_)) => tokio::time::sleep(SPIN).await,
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

/// An answer to a question, or a message.
async fn say(
    client: &Client,
    session: &str,
    question: Option<String>,
    line: &str,
) -> Result<(), Failure> {
    let Some(request) = question else {
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
        // Somebody else was faster; the log shows it.
        Err(NoResult::Told(failure)) => {
            failure.print();
            Ok(())
        }
        Err(lost) => Err(lost.into()),
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
        "{agent}, {status}. Lines you type go to the agent; ctrl-C interrupts its turn, ctrl-D leaves."
    );
    let since = newest_prompt(client, session, &found).await?;
    let mut follower = Follower::new(client, session, since)?.listen();
    follower.follow().await?;
    eprintln!("The session goes on; `oubliette session attach {session}` comes back.");
    Ok(())
}

/// Where to begin: with the last prompt, if it is not long ago.
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

/// What a command comes to whose turn ended so.
pub(super) fn outcome(stopped: Stopped, session: &str) -> Result<(), Failure> {
    match stopped {
        Stopped::TurnEnded(completion) => match (completion.stop_reason.as_str(), completion.error)
        {
            ("end_turn", _) => Ok(()),
            ("cancelled", _) => Err(Failure::Exit(INTERRUPTED)),
            (_, Some(error)) => Err(Failure::new(error)),
            (reason, None) => Err(Failure::new(format!("the turn ended early: {reason}"))),
        },
        Stopped::Detached => {
            eprintln!("The session goes on; `oubliette session attach {session}` comes back.");
            Err(Failure::Exit(INTERRUPTED))
        }
    }
}
