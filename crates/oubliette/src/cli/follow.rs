//! Follows a session live: prints its events, interrupts its turn on Ctrl-C, answers permission requests.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use oubliette_engine::operations;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::arguments::in_command_words;
use super::client::{CallError, Client, parameters};
use super::event_log::{EVENTS_WAIT_SECONDS, EventLog, EventPage, LostServer};
use super::event_printer::{Completion, EventPrinter};
use super::local_tools::{LocalTools, ToolResponse};
use super::permission::{Answer, Question, Questions, dollars};
use crate::failure::Failure;
use crate::terminal::printable;

/// How long to look for the request that follows a turn which the cost limit has stopped.
const BUDGET_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const SPINNER_INTERVAL: Duration = Duration::from_millis(100);
/// How often a tool response is sent to a server that is not reachable.
const MAX_RESPONSE_ATTEMPTS: usize = 600;
/// The exit code of a program that was ended by SIGINT, as a shell reports it.
const INTERRUPTED_EXIT_CODE: u8 = 130;

/// Follows one session on the terminal.
pub(super) struct Follower<'a> {
    log: EventLog<'a>,
    printer: EventPrinter,
    interrupts: Signal,
    /// The call that interrupts the turn.
    interrupting: Option<InterruptCall<'a>>,
    /// Whether Ctrl-C was already pressed in this turn.
    interrupted: bool,
    /// When the turn is interrupted.
    deadline: Option<tokio::time::Instant>,
    /// Whether it was.
    timed_out: bool,
    /// Whether it ends only when no message waits for its turn.
    until_idle: bool,
    /// The end of the last turn then.
    last_completion: Option<Completion>,
    /// The permission requests that keys answer.
    questions: Questions,
    lost_server: LostServer,
    /// Why the session does not go on, as the server said last.
    stalled: Option<String>,
    /// The tools on this machine that the agent can call.
    tools: LocalTools,
}

/// Why following stopped.
pub(super) enum FollowEnd {
    TurnEnded(Completion),
    /// The user detached; the session keeps running.
    Detached,
}

impl<'a> Follower<'a> {
    pub(super) fn new(client: &'a Client, session: &str, since: i64) -> Result<Self, Failure> {
        let interrupts = signal(SignalKind::interrupt())
            .map_err(|error| Failure::with_cause("cannot wait for signals", &error))?;
        Ok(Self {
            log: EventLog::new(client, session, since),
            printer: EventPrinter::default(),
            interrupts,
            interrupting: None,
            interrupted: false,
            deadline: None,
            timed_out: false,
            until_idle: false,
            last_completion: None,
            questions: Questions::default(),
            lost_server: LostServer::default(),
            stalled: None,
            tools: LocalTools::default(),
        })
    }

    /// Also runs these tools when the agent calls them.
    pub(super) fn with_tools(self, tools: LocalTools) -> Self {
        Self { tools, ..self }
    }

    /// Interrupts the turn after this time.
    pub(super) fn with_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.deadline = timeout.map(|timeout| tokio::time::Instant::now() + timeout);
        self
    }

    /// Prints no texts of the agent.
    pub(super) fn quiet(mut self) -> Self {
        self.printer.is_quiet = true;
        self
    }

    /// Whether the turn was interrupted because its time was over.
    pub(super) fn has_timed_out(&self) -> bool {
        self.timed_out
    }

    /// Goes on until every message has had its turn, not only the first one.
    pub(super) fn until_idle(mut self) -> Self {
        self.until_idle = true;
        self
    }

    /// Follows to the end of the current or next turn.
    pub(super) async fn follow(&mut self) -> Result<FollowEnd, Failure> {
        loop {
            let client = self.log.client();
            let mut polling = std::pin::pin!(self.log.poll(EVENTS_WAIT_SECONDS));
            let page = loop {
                tokio::select! {
                    page = &mut polling => break page,
                    () = tokio::time::sleep(SPINNER_INTERVAL) => {
                        if self.questions.is_empty() {
                            self.printer.advance_spinner();
                        }
                    }
                    _ = self.interrupts.recv() => {
                        if self.interrupted || self.lost_server.is_lost() {
                            self.printer.clear();
                            return Ok(FollowEnd::Detached);
                        }
                        self.interrupt();
                    }
                    () = wait_until(self.deadline), if !self.timed_out => {
                        self.timed_out = true;
                        self.printer.print_notice("the time of --timeout is over; interrupting the turn");
                        self.send_interrupt();
                    }
                    () = finish_interrupt(&mut self.interrupting) => {}
                    answer = self.tools.next_response() => send_tool_response(client, answer).await?,
                    answer = self.questions.next_answer() => match answer {
                        Answer::Decision { request_id, decision } => {
                            send_decision(client, self.log.session(), &request_id, decision).await?;
                        }
                        Answer::End => {
                            eprintln!();
                            self.printer.clear();
                            return Ok(FollowEnd::Detached);
                        }
                    },
                }
            };
            let page = match page {
                Ok(page) => page,
                // A restarted server continues where it was.
                Err(CallError::Unreachable(_)) => {
                    if let Some(notice) = self.lost_server.lose() {
                        self.printer.print_notice(notice);
                    }
                    tokio::time::sleep(SPINNER_INTERVAL).await;
                    continue;
                }
                Err(rejected) => return Err(rejected.into()),
            };
            self.log.advance(&page);
            if let Some(notice) = self.lost_server.find() {
                self.printer.print_notice(notice);
            }
            self.note_stall(page.stalled.as_deref());
            if let Some(stopped) = self.show_page(&page) {
                return Ok(stopped);
            }
        }
    }

    /// Interrupts the turn. A question is withdrawn with it.
    fn interrupt(&mut self) {
        self.interrupted = true;
        self.questions.clear();
        self.printer.print_notice(
            "interrupting the turn; press Ctrl-C again to detach; the session keeps running",
        );
        self.send_interrupt();
    }

    /// Sends the interrupt. An agent may take long to stop, and the user may want to leave meanwhile.
    fn send_interrupt(&mut self) {
        self.interrupting = Some(interrupt(self.log.client(), self.log.session()));
    }

    /// Says once why nothing happens, if the server knows it.
    fn note_stall(&mut self, stalled: Option<&str>) {
        if stalled != self.stalled.as_deref() {
            self.stalled = stalled.map(str::to_owned);
            if let Some(reason) = stalled {
                let entry = operations::find("session_events");
                let reason =
                    entry.map_or(reason.to_owned(), |entry| in_command_words(entry, reason));
                let notice = format!("{} (Ctrl-C to stop)", printable(&reason));
                self.printer.print_notice(&notice);
            }
        }
    }

    fn show_page(&mut self, page: &EventPage) -> Option<FollowEnd> {
        for event in &page.events {
            self.tools.handle_event(event);
            if event["type"] == "permission_answer" {
                let answered = event["request_id"].as_str().unwrap_or_default();
                self.questions.withdraw(answered);
            }
            let completion = self.printer.print(event);
            if event["type"] == "permission_request" {
                self.ask_permission(event);
            }
            let Some(completion) = completion else {
                continue;
            };
            self.questions.clear();
            if !completion.is_background && !self.until_idle {
                return Some(FollowEnd::TurnEnded(completion));
            }
            if !completion.is_background {
                self.last_completion = Some(completion);
            } else if let Some(error) = &completion.error {
                eprintln!("  {}", printable(error));
            }
        }
        let ended = self.last_completion.take_if(|_| page.is_idle);
        ended.map(FollowEnd::TurnEnded)
    }

    /// Asks on a terminal; otherwise prints the command that answers the request.
    fn ask_permission(&mut self, event: &Value) {
        let question = Question::new(event);
        if std::io::stdin().is_terminal() {
            self.questions.add(question);
            return;
        }
        let session = self.log.session();
        let request = printable(question.request_id());
        let others = question.alternatives();
        eprintln!("  oubliette session permit {session} {request} allow    (or {others})");
    }

    /// What stopped a turn that has reached its cost limit, and the command that raises the limit.
    pub(super) async fn budget_notice(&mut self) -> Option<String> {
        let deadline = Instant::now() + BUDGET_REQUEST_TIMEOUT;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let wait_seconds = left.as_secs_f64().min(EVENTS_WAIT_SECONDS);
            let page = self.log.read(wait_seconds).await.ok()?;
            for event in &page.events {
                if event["type"] == "permission_request" && event["kind"] == "budget" {
                    return budget_notice(self.log.session(), event);
                }
            }
        }
        None
    }
}

fn budget_notice(session: &str, event: &Value) -> Option<String> {
    let input = &event["input"];
    let amount = |name: &str| input[name].as_f64().map(dollars);
    Some(format!(
        "stopped: this session has cost {} of {}. To allow up to {} in all and go on:\n  \
         oubliette session permit {session} {} allow\n  oubliette session message {session} 'go on'",
        amount("cost_usd")?,
        amount("max_cost_usd")?,
        amount("raised_max_cost_usd")?,
        printable(event["request_id"].as_str()?),
    ))
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

/// A call of `session_interrupt`.
pub(super) type InterruptCall<'a> = LocalBoxFuture<'a, Result<Map<String, Value>, CallError>>;

/// Interrupts the turn of a session.
pub(super) fn interrupt<'a>(client: &'a Client, session: &str) -> InterruptCall<'a> {
    let stop = parameters(json!({ "session_id": session }));
    client.call("session_interrupt", stop).boxed_local()
}

/// Waits for the end of the call, if there is one. Cancel-safe.
pub(super) async fn finish_interrupt(interrupting: &mut Option<InterruptCall<'_>>) {
    let Some(call) = interrupting else {
        return std::future::pending().await;
    };
    let result = call.await;
    *interrupting = None;
    if let Err(error) = result {
        Failure::from(error).print();
    }
}

async fn wait_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

pub(super) async fn send_decision(
    client: &Client,
    session: &str,
    request: &str,
    decision: &str,
) -> Result<(), Failure> {
    let answer = parameters(json!({
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
