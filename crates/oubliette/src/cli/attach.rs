//! `oubliette session attach`: a conversation with an agent at the terminal.
//!
//! While the agent works, its text is streamed; otherwise there is a prompt, and what other clients cause is
//! printed above it. Without a terminal, the standard input is one message.

mod editor;

use std::io::{IsTerminal, Read};

use clap::{Arg, ArgMatches, Command};
use oubliette_model::Status;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::editor::{Input, LineEditor, SlashCommand};
use super::access::Access;
use super::client::{CallError, Client, parameters};
use super::event_lines;
use super::event_log::{EVENTS_WAIT_SECONDS, EventLog, EventPage, LostServer};
use super::event_printer::EventPrinter;
use super::follow::{
    Follower, InterruptCall, SPINNER_INTERVAL, exit_result, finish_interrupt, interrupt,
    send_decision,
};
use super::last_session;
use super::names;
use super::permission::{Answer, Question, Questions};
use super::transcript::Transcript;
use crate::executor::block_on;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::style::Style;
use crate::terminal::{self, output, printable};
use crate::tty::{ModesGuard, QuietInput};

/// How many turns before the current one are shown.
const MAX_EARLIER_TURNS: usize = 3;
/// How many events are looked through for them.
const MAX_EARLIER_EVENTS: i64 = 1000;
/// A longer message is refused by the server anyway.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// What is not sent, unless the agent has a command of that name.
const LEAVE_COMMANDS: [&str; 2] = ["quit", "exit"];
const HELP_COMMAND: &str = "help";
const HELP: &str = "Enter sends; Alt-Enter, or \\ at the end of a line, goes on with the next line; Tab after / lists the \
                    agent's commands; Ctrl-C interrupts a turn; Ctrl-D or /quit detaches, and the session stays.";
const IDLE_HINT: &str = "(Ctrl-D detaches; the session stays)";

pub(super) fn command() -> Command {
    Command::new("attach")
        .about("Talk with the agent of a session: see its turns live, send messages, answer its questions")
        .long_about(
            "Talk with the agent of a session: see its turns live, send messages, answer its questions. Enter sends; \
             a line that ends with \\, or Alt-Enter, goes on with the next line; Tab completes the agent's slash \
             commands. Ctrl-C interrupts a turn, and pressed again detaches; Ctrl-D detaches. The session keeps \
             running. Without a terminal, the standard input is one message, and the exit code is 0 if its turn \
             succeeded.",
        )
        .after_help(
            "Examples:\n  oubliette session attach latest\n  oubliette session attach gogol_8a73\n  echo 'go on' | oubliette \
             session attach -",
        )
        .arg(Arg::new("SESSION").help(format!("{} [default: latest]", last_session::HELP)))
}

pub(super) fn run(matches: &ArgMatches, home: &Home, access: &Access) -> Result<(), Failure> {
    let given = matches.get_one::<String>("SESSION").map(String::as_str);
    let given = given.unwrap_or(last_session::LATEST);
    block_on(async {
        let client = Client::connect(access).await?;
        let session = last_session::resolve(given, home, access, &client).await?;
        let get = parameters(json!({ "session_id": session }));
        let found = client.call("session_get", get).await?;
        last_session::remember_result(&found, None, home, access);
        let result = if output::is_json() {
            event_lines::print(&client, &session).await
        } else if std::io::stdin().is_terminal() {
            Box::pin(converse(&client, &found, home)).await
        } else {
            send_input(&client, &found).await
        };
        client.close().await;
        result
    })?
}

fn text<'a>(found: &'a Map<String, Value>, name: &str) -> &'a str {
    found.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Sends the standard input as one message and waits for the answer.
async fn send_input(client: &Client, found: &Map<String, Value>) -> Result<(), Failure> {
    let mut message = String::new();
    std::io::stdin()
        .take(MAX_MESSAGE_BYTES + 1)
        .read_to_string(&mut message)
        .map_err(|error| {
            Failure::with_cause("cannot read the message from the standard input", &error)
        })?;
    let session = text(found, "session_id");
    let status: Option<Status> = text(found, "status").parse().ok();
    if message.trim().is_empty() && status.is_none_or(Status::is_resting) {
        return Err(Failure::new("there is no message in the standard input"));
    }
    let mut since = found.get("last_index").and_then(Value::as_i64);
    if !message.trim().is_empty() {
        let prompt = message.trim_end_matches('\n');
        let call = parameters(json!({ "session_id": session, "prompt": prompt }));
        let sent = client.call("session_message", call).await?;
        since = sent
            .get("last_event_index")
            .and_then(Value::as_i64)
            .or(since);
    }
    let mut follower = Follower::new(client, session, since.unwrap_or(-1))?.until_idle();
    let stopped = follower.follow().await?;
    exit_result(stopped, session)
}

/// Talks with the agent until the user detaches.
async fn converse(client: &Client, found: &Map<String, Value>, home: &Home) -> Result<(), Failure> {
    let session = text(found, "session_id").to_owned();
    // Also if the editor's thread is left reading.
    let _modes = ModesGuard::new();
    let mut conversation = Conversation::start(client, &session, home)?;
    conversation.show_start(found).await?;
    let result = conversation.run().await;
    conversation.leave();
    result?;
    eprintln!("The session keeps running; reattach with `oubliette session attach {session}`.");
    Ok(())
}

struct Conversation<'a> {
    client: &'a Client,
    session: String,
    log: EventLog<'a>,
    printer: EventPrinter,
    editor: LineEditor,
    questions: Questions,
    /// A question that came while the prompt was shown: the next line answers it.
    asked_above: Option<Question>,
    /// Messages of this terminal, whose prompts are on the screen already.
    sent: Vec<String>,
    /// Keeps keys from being shown while the agent works.
    input: Option<QuietInput>,
    /// Whether no turn runs and no message waits.
    is_idle: bool,
    /// Whether Ctrl-C was already pressed in this turn.
    interrupted: bool,
    lost_server: LostServer,
    interrupts: Signal,
    /// The call that interrupts the turn.
    interrupting: Option<InterruptCall<'a>>,
    terminations: Signal,
    /// Ctrl-D while the agent works.
    quits: Signal,
}

/// What goes on after an event of the terminal.
enum Step {
    /// The log is asked again, because what is known about it is old.
    AskAgain,
    Wait,
    Detach,
}

impl<'a> Conversation<'a> {
    fn start(client: &'a Client, session: &str, home: &Home) -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::with_cause("cannot wait for signals", &error))
        };
        // No file is written for root in the directory of another user.
        let history = Some(home.cli_dir().join("history")).filter(|_| !home.is_foreign());
        let transcript = Transcript::new(Style::of_stdout(), true);
        Ok(Self {
            client,
            session: session.to_owned(),
            log: EventLog::new(client, session, -1),
            printer: EventPrinter::of_transcript(transcript),
            editor: LineEditor::start(history)?,
            questions: Questions::default(),
            asked_above: None,
            sent: Vec::new(),
            input: None,
            is_idle: false,
            interrupted: false,
            lost_server: LostServer::default(),
            interrupts: listen(SignalKind::interrupt())?,
            interrupting: None,
            terminations: listen(SignalKind::terminate())?,
            quits: listen(SignalKind::quit())?,
        })
    }

    /// Says which session it is, and shows its last turns.
    async fn show_start(&mut self, found: &Map<String, Value>) -> Result<(), Failure> {
        let style = Style::of_stdout();
        let project = names::project_name(text(found, "project_id"), self.client).await;
        let parts = [&project, text(found, "agent"), text(found, "model")];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let what = printable(&parts.join(" · "));
        terminal::print_line(&format!(
            "{} {}",
            style.bold(&self.session),
            style.dim(&what)
        ));
        terminal::print_line(
            &style.dim("Enter sends · Alt-Enter goes on · Tab completes / · Ctrl-D detaches"),
        );
        terminal::print("\n");
        let last = found
            .get("last_index")
            .and_then(Value::as_i64)
            .unwrap_or(-1);
        for event in &self.log.read(0.0).await?.events {
            self.note_commands(event);
        }
        let before = (last - MAX_EARLIER_EVENTS).max(-1);
        self.log = EventLog::new(self.client, &self.session, before);
        let page = self.log.read_all(None, 0.0).await?;
        self.is_idle = page.is_idle;
        let earlier = page.events;
        let prompts = earlier
            .iter()
            .enumerate()
            .filter(|(_, event)| event["type"] == "prompt");
        let prompts: Vec<usize> = prompts.map(|(at, _)| at).collect();
        let turns = found.get("turns").and_then(Value::as_u64).unwrap_or(0);
        let shown = prompts.len().min(MAX_EARLIER_TURNS);
        let hidden = turns.saturating_sub(shown as u64);
        if hidden > 0 {
            let turns = if hidden == 1 { "turn" } else { "turns" };
            let line = format!(
                "… {hidden} earlier {turns}: oubliette session show {}",
                self.session
            );
            terminal::print_line(&format!("{}\n", style.dim(&line)));
        }
        let from = prompts
            .len()
            .checked_sub(shown)
            .and_then(|at| prompts.get(at));
        let mut open: Vec<Question> = Vec::new();
        for (at, event) in earlier.iter().enumerate() {
            self.note_commands(event);
            if from.is_none_or(|from| at >= *from) {
                self.printer.print(event);
            } else {
                // For the cost of the turns before.
                self.printer.format(event);
            }
            match event["type"].as_str() {
                Some("permission_request") => open.push(Question::new(event)),
                Some("permission_answer") => {
                    let answered = event["request_id"].as_str().unwrap_or_default();
                    open.retain(|question| question.request_id() != answered);
                }
                Some("completion") => open.clear(),
                _ => {}
            }
        }
        for question in open {
            self.ask(question);
        }
        Ok(())
    }

    async fn run(&mut self) -> Result<(), Failure> {
        loop {
            self.show_prompt_if_idle();
            let client = self.client;
            let mut polling = std::pin::pin!(self.log.poll(EVENTS_WAIT_SECONDS));
            let page = loop {
                let step = tokio::select! {
                    page = &mut polling => break Some(page),
                    () = tokio::time::sleep(SPINNER_INTERVAL) => {
                        if !self.editor.is_reading() && self.questions.is_empty() {
                            self.printer.advance_spinner();
                        }
                        Step::Wait
                    }
                    _ = self.interrupts.recv() => self.handle_interrupt(),
                    _ = self.terminations.recv() => Step::Detach,
                    _ = self.quits.recv() => {
                        self.printer.finish_line();
                        Step::Detach
                    }
                    answer = self.questions.next_answer() => match answer {
                        Answer::Decision { request_id, decision } => {
                            self.keep_quiet();
                            send_decision(client, &self.session, &request_id, decision).await?;
                            Step::Wait
                        }
                        Answer::End => Step::Detach,
                    },
                    () = finish_interrupt(&mut self.interrupting) => Step::Wait,
                    input = self.editor.next() => self.handle_input(input).await?,
                };
                match step {
                    Step::Wait => {}
                    Step::AskAgain => break None,
                    Step::Detach => return Ok(()),
                }
            };
            match page {
                None => {}
                Some(Ok(page)) => self.show_page(&page),
                // A restarted server continues where it was.
                Some(Err(CallError::Unreachable(_))) => {
                    if let Some(notice) = self.lost_server.lose() {
                        self.notify(notice);
                    }
                    tokio::time::sleep(SPINNER_INTERVAL).await;
                }
                Some(Err(rejected)) => return Err(rejected.into()),
            }
        }
    }

    fn show_prompt_if_idle(&mut self) {
        if self.is_idle && !self.editor.is_reading() {
            self.printer.finish_line();
            self.questions.clear();
            self.interrupted = false;
            self.keep_quiet();
            terminal::print("\n");
            self.editor.read();
        } else {
            self.keep_quiet();
        }
    }

    /// Keeps the terminal from showing keys, except those of an answer. The editor sets its own modes while it
    /// reads and comes back to these, so that no key is lost between them.
    fn keep_quiet(&mut self) {
        let is_free = !self.editor.is_reading() && self.questions.is_empty();
        if is_free && self.editor.edits_lines() && self.input.is_none() {
            self.input = QuietInput::enter();
        }
    }

    fn show_page(&mut self, page: &EventPage) {
        self.log.advance(page);
        if let Some(notice) = self.lost_server.find() {
            self.notify(notice);
        }
        for event in &page.events {
            self.note_commands(event);
            self.show(event);
        }
        self.is_idle = page.is_idle;
    }

    fn note_commands(&self, event: &Value) {
        if event["type"] == "commands" {
            self.editor.set_commands(SlashCommand::of_event(event));
        }
    }

    fn show(&mut self, event: &Value) {
        let field = |name: &str| event[name].as_str().unwrap_or_default();
        match field("type") {
            "prompt" => {
                let own = self.sent.iter().position(|sent| sent == field("text"));
                if let Some(own) = own {
                    self.sent.remove(own);
                    self.printer.format(event);
                    return;
                }
            }
            "permission_answer" => {
                self.questions.withdraw(field("request_id"));
                let answered = field("request_id");
                self.asked_above
                    .take_if(|asked| asked.request_id() == answered);
            }
            _ => {}
        }
        if self.editor.is_reading() {
            let shown = self.printer.format(event);
            if !shown.is_empty() {
                self.editor.print_above(&shown);
            }
        } else {
            self.printer.print(event);
        }
        match field("type") {
            "permission_request" => self.ask(Question::new(event)),
            "completion" => {
                self.interrupted = false;
                self.questions.clear();
                self.asked_above = None;
            }
            _ => {}
        }
    }

    fn ask(&mut self, question: Question) {
        if self.editor.is_reading() {
            self.editor
                .print_above(&format!("  {}and press Enter\n", question.text()));
            self.asked_above = Some(question);
        } else {
            // The answer is shown while it is typed.
            self.input = None;
            self.questions.add(question);
        }
    }

    async fn handle_input(&mut self, input: Input) -> Result<Step, Failure> {
        let line = match input {
            Input::End => return Ok(Step::Detach),
            Input::Failed(error) => {
                return Err(Failure::new(format!("cannot use the terminal: {error}")));
            }
            Input::Interrupt { had_text } => {
                if !self.is_idle {
                    self.send_interrupt();
                } else if !had_text {
                    eprintln!("{IDLE_HINT}");
                }
                self.editor.read();
                return Ok(Step::Wait);
            }
            Input::Message(line) => line,
        };
        if let Some(question) = &self.asked_above {
            let decision = question.decision(&line);
            let request = question.request_id().to_owned();
            match decision {
                Some(decision) => {
                    self.asked_above = None;
                    send_decision(self.client, &self.session, &request, decision).await?;
                }
                None => eprintln!("  {}and press Enter", question.text()),
            }
            self.editor.read();
            return Ok(Step::Wait);
        }
        if line.trim().is_empty() {
            self.editor.read();
            return Ok(Step::Wait);
        }
        let word = line.trim().strip_prefix('/').unwrap_or_default();
        if LEAVE_COMMANDS.contains(&word) && !self.editor.has_command(word) {
            return Ok(Step::Detach);
        }
        if word == HELP_COMMAND && !self.editor.has_command(word) {
            eprintln!("{HELP}");
            self.editor.read();
            return Ok(Step::Wait);
        }
        let message = parameters(json!({ "session_id": self.session, "prompt": line }));
        match self.client.call("session_message", message).await {
            Ok(_) => {
                self.sent.push(line);
                self.is_idle = false;
                Ok(Step::AskAgain)
            }
            Err(error) => {
                Failure::from(error).print();
                self.editor.read();
                Ok(Step::Wait)
            }
        }
    }

    /// Ctrl-C while the agent works, or on a terminal on which lines are not edited.
    fn handle_interrupt(&mut self) -> Step {
        if self.is_idle && self.editor.is_reading() {
            eprintln!("{IDLE_HINT}");
            return Step::Wait;
        }
        self.questions.clear();
        if self.interrupted || self.lost_server.is_lost() {
            self.printer.finish_line();
            return Step::Detach;
        }
        self.interrupted = true;
        self.printer
            .print_notice("interrupting the turn; press Ctrl-C again to detach");
        self.send_interrupt();
        Step::Wait
    }

    /// Sends the interrupt. An agent may take long to stop, and the user may want to leave meanwhile.
    fn send_interrupt(&mut self) {
        self.interrupting = Some(interrupt(self.client, &self.session));
    }

    fn notify(&mut self, text: &str) {
        if self.editor.is_reading() {
            self.editor.print_above(&format!("  {text}\n"));
        } else {
            self.printer.print_notice(text);
        }
    }

    /// Leaves the cursor at the start of a line.
    fn leave(&mut self) {
        self.questions.clear();
        self.printer.finish_line();
        if self.editor.is_reading() {
            eprintln!();
        }
        self.input = None;
    }
}
