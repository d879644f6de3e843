//! One turn: the lines of a prompt, one after the other, and what is said about them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_client_protocol::v1::schema::{
    ContentBlock, ContentChunk, Cost, PermissionOption, PermissionOptionKind, PromptResponse,
    RequestPermissionOutcome, RequestPermissionRequest, SessionUpdate, StopReason, ToolCall,
    ToolCallId, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind, UsageUpdate,
};
use agent_client_protocol::{Error, ErrorCode};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::script::{Action, Line, Usage};
use crate::session::Session;
use crate::{shell, workspace};

/// The context that usage is reported against.
const CONTEXT: u64 = 200_000;
/// How long an answer waits for servers that are still starting.
const TOOLS_LIMIT: Duration = Duration::from_secs(5);
const MOST_TOOLS_NAMED: usize = 12;

/// A turn as it goes on.
pub(crate) struct Turn<'a> {
    session: &'a Session,
    attachments: usize,
    said: bool,
    result: Option<String>,
    usage: Option<Usage>,
    /// The tool call that is not finished.
    open: Option<ToolCallId>,
    /// Whether a cancel is ignored, because the next line hangs.
    deaf: Arc<AtomicBool>,
}

/// Why a turn ends before its last line.
enum Stop {
    Cancelled,
    Failed(String),
    Lost(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

enum Answer {
    Once,
    Always,
    Rejected,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(session: &'a Session, attachments: usize) -> Self {
        Self {
            session,
            attachments,
            said: false,
            result: None,
            usage: None,
            open: None,
            deaf: Arc::default(),
        }
    }

    /// Does the lines until they end or `cancelled` comes.
    pub(crate) async fn run(
        mut self,
        lines: &[Line],
        cancelled: impl Future<Output = ()>,
    ) -> Result<PromptResponse, Error> {
        let deaf = self.deaf.clone();
        let heard = async {
            cancelled.await;
            if deaf.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let done = tokio::select! {
            biased;
            () = heard => Err(Stop::Cancelled),
            done = self.perform_all(lines) => done,
        };
        let why = match &done {
            Err(Stop::Failed(reason)) => reason,
            _ => "cancelled",
        };
        let closed = self.close(why).await;
        let ended = match done {
            Ok(()) => Ok(StopReason::EndTurn),
            Err(Stop::Cancelled) => Ok(StopReason::Cancelled),
            Err(Stop::Failed(reason)) => Err(Error::new(ErrorCode::INTERNAL_ERROR, reason)),
            Err(Stop::Lost(error)) => Err(lost(&error)),
        };
        let ended = closed.map_err(|error| lost(&error)).and(ended);
        ended.map(|reason| PromptResponse::new(reason).usage(self.usage.map(total)))
    }

    async fn perform_all(&mut self, lines: &[Line]) -> Result<(), Stop> {
        for (index, line) in lines.iter().enumerate() {
            // From here on, or a cancel that follows the last words would come before the hang.
            let mut soon = lines.iter().skip(index).take(2);
            if soon.any(|line| line.action == Action::Hang) {
                self.deaf.store(true, Ordering::Relaxed);
            }
            for _ in 0..line.times {
                self.perform(&line.action).await?;
                // A script of nothing but quick lines must not keep a cancel from being read.
                tokio::task::yield_now().await;
            }
        }
        if let Some(result) = self.result.take() {
            self.say(&result).await?;
        }
        Ok(())
    }

    async fn perform(&mut self, action: &Action) -> Result<(), Stop> {
        match action {
            Action::Shell(command) => self.shell(command).await?,
            Action::Tool { name, arguments } => self.tool(name, arguments).await?,
            Action::Say(text) => self.say(text).await?,
            Action::Sleep(time) => tokio::time::sleep(*time).await,
            Action::Ask(question) => self.ask(question).await?,
            Action::Usage(usage) => self.spend(*usage).await?,
            Action::Fail(reason) => return Err(Stop::Failed(reason.clone())),
            Action::Exit(code) => {
                self.session.output().written().await;
                std::process::exit(*code);
            }
            Action::Hang => {
                self.session.output().written().await;
                // The only thread: nothing is read or answered from here on.
                loop {
                    std::thread::park();
                }
            }
            Action::Flood(count) => self.flood(*count).await?,
            Action::Garbage(line) => self.session.output().noise(line.clone()).await,
            Action::Stderr(text) => eprintln!("{text}"),
            Action::Text(_) => self.answer().await?,
        }
        Ok(())
    }

    async fn shell(&mut self, command: &str) -> Result<(), Stop> {
        let input = json!({ "command": command });
        let id = self.open("sh", command, ToolKind::Execute, &input).await?;
        if self.session.asks()
            && !self
                .is_permitted(id, "sh", command, ToolKind::Execute, input)
                .await?
        {
            return Ok(());
        }
        self.progress(None).await?;
        let (well, text, output) = match shell::run(command, self.session.directory()).await {
            Ok(outcome) => (
                outcome.status.success(),
                outcome.text(),
                json!({
                    "exitCode": outcome.status.code(),
                    "output": outcome.output,
                    "truncated": outcome.truncated,
                }),
            ),
            Err(error) => {
                let text = format!("the shell cannot be started: {error}");
                (false, text.clone(), json!({ "error": text }))
            }
        };
        self.finish(well, &text, output).await?;
        self.result = Some(text);
        Ok(())
    }

    async fn tool(&mut self, name: &str, arguments: &Map<String, Value>) -> Result<(), Stop> {
        let input = Value::Object(arguments.clone());
        let id = self.open(name, name, ToolKind::Other, &input).await?;
        let tool = self.session.servers().find(name).await;
        if let Ok(tool) = &tool
            && self.session.asks_for_each()
        {
            // By its whole name, however much of it was given.
            let name = tool.name().to_owned();
            let permitted = self.is_permitted(id, &name, &name, ToolKind::Other, input);
            if !permitted.await? {
                return Ok(());
            }
        }
        self.progress(None).await?;
        let called = match tool {
            Ok(tool) => {
                let (sender, mut news) = mpsc::channel(16);
                let call = tool.call(arguments.clone(), sender);
                tokio::pin!(call);
                let called = loop {
                    tokio::select! {
                        called = &mut call => break called,
                        Some(text) = news.recv() => self.progress(Some(text)).await?,
                    }
                };
                called.map_err(|reason| format!("{}: {reason}", tool.name()))
            }
            Err(reason) => Err(reason),
        };
        let (well, text, output) = match called {
            Ok(result) => {
                let texts = result.content.iter().filter_map(|block| block.as_text());
                let texts: Vec<&str> = texts.map(|text| text.text.as_str()).collect();
                let text = match (&texts[..], &result.structured_content) {
                    ([], Some(value)) => value.to_string(),
                    (texts, _) => texts.join("\n"),
                };
                let output = serde_json::to_value(&result).unwrap_or_default();
                (result.is_error != Some(true), text, output)
            }
            Err(reason) => (false, reason.clone(), json!({ "error": reason })),
        };
        self.finish(well, &text, output).await?;
        self.result = Some(text);
        Ok(())
    }

    /// Asks whether the open call may be done, and finishes it if not.
    async fn is_permitted(
        &mut self,
        id: ToolCallId,
        name: &str,
        title: &str,
        kind: ToolKind,
        input: Value,
    ) -> Result<bool, Stop> {
        let fields = ToolCallUpdateFields::new()
            .name(name.to_owned())
            .title(title.to_owned())
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .raw_input(input);
        match self.permit(ToolCallUpdate::new(id, fields)).await? {
            Answer::Once => Ok(true),
            Answer::Always => {
                self.session.allow_always();
                Ok(true)
            }
            Answer::Rejected => {
                let text = format!("not permitted: {title}");
                self.finish(false, &text, json!({ "permitted": false }))
                    .await?;
                self.result = Some(text);
                Ok(false)
            }
        }
    }

    async fn ask(&mut self, question: &str) -> Result<(), Stop> {
        let input = json!({ "question": question });
        let id = self.open("ask", question, ToolKind::Other, &input).await?;
        let fields = ToolCallUpdateFields::new()
            .name("ask".to_owned())
            .title(question.to_owned())
            .kind(ToolKind::Other)
            .status(ToolCallStatus::Pending)
            .raw_input(input);
        let (well, word) = match self.permit(ToolCallUpdate::new(id, fields)).await? {
            Answer::Once => (true, "allow_once"),
            Answer::Always => (true, "allow_always"),
            Answer::Rejected => (false, "reject_once"),
        };
        self.finish(well, word, json!({ "answer": word })).await?;
        self.say(&format!("{question}: {word}")).await?;
        Ok(())
    }

    async fn permit(&self, call: ToolCallUpdate) -> Result<Answer, Stop> {
        let option = |id: &str, name: &str, kind| {
            PermissionOption::new(id.to_owned(), name.to_owned(), kind)
        };
        let options = vec![
            option("allow_once", "Allow", PermissionOptionKind::AllowOnce),
            option(
                "allow_always",
                "Always allow",
                PermissionOptionKind::AllowAlways,
            ),
            option("reject_once", "Reject", PermissionOptionKind::RejectOnce),
        ];
        let request = RequestPermissionRequest::new(self.session.id().clone(), call, options);
        let answer = self.session.connection().send_request(request).block_task();
        match answer.await {
            Ok(response) => match response.outcome {
                RequestPermissionOutcome::Selected(selected) => Ok(match &*selected.option_id.0 {
                    "allow_once" => Answer::Once,
                    "allow_always" => Answer::Always,
                    _ => Answer::Rejected,
                }),
                // The client says this way that the turn was cancelled.
                _ => Err(Stop::Cancelled),
            },
            Err(error) => Err(Stop::Failed(format!(
                "the client did not answer a request for permission: {error}"
            ))),
        }
    }

    async fn spend(&mut self, usage: Usage) -> Result<(), Stop> {
        let sum = self.usage.get_or_insert_default();
        sum.input += usage.input;
        sum.output += usage.output;
        let cost = self.session.spend(usage.usd)?;
        let update =
            UsageUpdate::new(usage.input + usage.output, CONTEXT).cost(Cost::new(cost, "USD"));
        self.session
            .update(SessionUpdate::UsageUpdate(update))
            .await?;
        Ok(())
    }

    async fn flood(&mut self, count: u32) -> Result<(), Stop> {
        for _ in 0..count {
            self.session.send(text_chunk(".")).await;
        }
        let dots = ".".repeat(usize::try_from(count).unwrap_or_default());
        self.session.keep(&text_chunk(&dots))?;
        self.said |= count > 0;
        Ok(())
    }

    async fn answer(&mut self) -> Result<(), Stop> {
        let session = self.session;
        let mut sentences = vec![
            "Hello! I am the demo agent: there is no model behind me, but my shell and my tools \
             are real."
                .to_owned(),
            workspace::describe(session.directory()),
        ];
        if self.attachments > 0 {
            let attachments = workspace::count(self.attachments, "attachment");
            sentences.push(format!("You sent {attachments} with this prompt."));
        }
        match tokio::time::timeout(TOOLS_LIMIT, session.servers().tools()).await {
            Ok((tools, problems)) => {
                if !tools.is_empty() {
                    let named = tools[..tools.len().min(MOST_TOOLS_NAMED)].join(", ");
                    let more = match tools.len().saturating_sub(MOST_TOOLS_NAMED) {
                        0 => String::new(),
                        more => format!(" and {more} more"),
                    };
                    let tools = workspace::count(tools.len(), "tool");
                    sentences.push(format!("I can call {tools}: {named}{more}."));
                }
                sentences.extend(
                    problems
                        .into_iter()
                        .map(|problem| format!("Sadly, {problem}.")),
                );
            }
            Err(_) => sentences.push("My MCP servers are still starting.".to_owned()),
        }
        sentences.push(format!(
            "This is turn {} of our conversation. Give me lines like `/sh ls -l` or `/say hello`, \
             and I do them.",
            session.turns()
        ));
        Ok(self.say(&sentences.join(" ")).await?)
    }

    /// Streams text. What is said at different times is on different lines.
    async fn say(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if std::mem::replace(&mut self.said, true) {
            self.session.update(text_chunk("\n")).await?;
        }
        for piece in pieces(text) {
            self.session.update(text_chunk(piece)).await?;
        }
        Ok(())
    }

    async fn open(
        &mut self,
        name: &str,
        title: &str,
        kind: ToolKind,
        input: &Value,
    ) -> io::Result<ToolCallId> {
        let id = self.session.next_call();
        let call = ToolCall::new(id.clone(), title)
            .name(name.to_owned())
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .raw_input(input.clone());
        self.session.update(SessionUpdate::ToolCall(call)).await?;
        self.open = Some(id.clone());
        Ok(id)
    }

    /// Says that the open call is being done, and how far it is.
    async fn progress(&self, text: Option<String>) -> io::Result<()> {
        let content = text.map(|text| vec![text.into()]);
        self.change(
            ToolCallUpdateFields::new()
                .status(ToolCallStatus::InProgress)
                .content(content),
        )
        .await
    }

    async fn finish(&mut self, well: bool, text: &str, output: Value) -> io::Result<()> {
        let status = match well {
            true => ToolCallStatus::Completed,
            false => ToolCallStatus::Failed,
        };
        let fields = ToolCallUpdateFields::new()
            .status(status)
            .content(vec![text.to_owned().into()])
            .raw_output(output);
        self.change(fields).await?;
        self.open = None;
        Ok(())
    }

    /// Finishes the call that is open, if there is one.
    async fn close(&mut self, why: &str) -> io::Result<()> {
        match self.open {
            Some(_) => self.finish(false, why, json!({ "error": why })).await,
            None => Ok(()),
        }
    }

    async fn change(&self, fields: ToolCallUpdateFields) -> io::Result<()> {
        let Some(id) = self.open.clone() else {
            return Ok(());
        };
        let update = ToolCallUpdate::new(id, fields);
        self.session
            .update(SessionUpdate::ToolCallUpdate(update))
            .await
    }
}

fn text_chunk(text: &str) -> SessionUpdate {
    let block: ContentBlock = text.to_owned().into();
    SessionUpdate::AgentMessageChunk(ContentChunk::new(block))
}

/// A text in pieces of some words, not too many of them however long it is.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let size = (text.len() / 64).max(12);
    let mut rest = text;
    std::iter::from_fn(move || {
        let after = rest
            .char_indices()
            .find(|(at, c)| *at >= size && c.is_whitespace() || *at >= size * 4);
        let at = after.map_or(rest.len(), |(at, _)| at);
        let (piece, remaining) = rest.split_at(at);
        rest = remaining;
        (!piece.is_empty()).then_some(piece)
    })
}

fn total(usage: Usage) -> agent_client_protocol::v1::schema::Usage {
    let total = usage.input + usage.output;
    agent_client_protocol::v1::schema::Usage::new(total, usage.input, usage.output)
}

fn lost(error: &io::Error) -> Error {
    let reason = format!("the conversation cannot be kept on disk: {error}");
    Error::new(ErrorCode::INTERNAL_ERROR, reason)
}
