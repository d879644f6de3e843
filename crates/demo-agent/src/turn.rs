//! One turn: executes the lines of a prompt one after the other and reports them.

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

use crate::script::{Action, ScriptLine, Usage};
use crate::session::Session;
use crate::{shell, workspace};

/// The context size in usage reports.
const CONTEXT_TOKENS: u64 = 200_000;
/// How long an answer waits for MCP servers that are still starting.
const LIST_TOOLS_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_LISTED_TOOLS: usize = 12;

/// A running turn.
pub(crate) struct Turn<'a> {
    session: &'a Arc<Session>,
    files: SentFiles,
    has_text: bool,
    /// The text of the last shell command or tool call, which ends the turn's text.
    result: Option<String>,
    usage: Option<Usage>,
    /// The tool call that is not finished.
    open_call: Option<ToolCallId>,
    /// Whether a cancel is ignored, because the next line is `/hang`.
    ignores_cancel: Arc<AtomicBool>,
}

/// How many files came with a prompt.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SentFiles {
    pub(crate) attachments: usize,
    /// Pictures that are part of the prompt.
    pub(crate) images: usize,
}

/// Why a turn ends before its last line.
enum TurnError {
    Cancelled,
    Failed(String),
    /// The journal could not be written.
    Journal(io::Error),
}

impl From<io::Error> for TurnError {
    fn from(error: io::Error) -> Self {
        Self::Journal(error)
    }
}

enum PermissionAnswer {
    Once,
    Always,
    Rejected,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(session: &'a Arc<Session>, files: SentFiles) -> Self {
        Self {
            session,
            files,
            has_text: false,
            result: None,
            usage: None,
            open_call: None,
            ignores_cancel: Arc::default(),
        }
    }

    /// Executes the lines until their end or until `cancelled` completes.
    pub(crate) async fn run(
        mut self,
        lines: &[ScriptLine],
        cancelled: impl Future<Output = ()>,
    ) -> Result<PromptResponse, Error> {
        let ignores_cancel = self.ignores_cancel.clone();
        let not_ignored = async {
            cancelled.await;
            if ignores_cancel.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let executed = tokio::select! {
            biased;
            () = not_ignored => Err(TurnError::Cancelled),
            executed = self.execute_all(lines) => executed,
        };
        let reason = match &executed {
            Err(TurnError::Failed(reason)) => reason,
            _ => "cancelled",
        };
        let closed = self.fail_open_call(reason).await;
        let stop_reason = match executed {
            Ok(()) => Ok(StopReason::EndTurn),
            Err(TurnError::Cancelled) => Ok(StopReason::Cancelled),
            Err(TurnError::Failed(reason)) => Err(Error::new(ErrorCode::INTERNAL_ERROR, reason)),
            Err(TurnError::Journal(error)) => Err(journal_error(&error)),
        };
        closed
            .map_err(|error| journal_error(&error))
            .and(stop_reason)
            .map(|reason| PromptResponse::new(reason).usage(self.usage.map(usage_report)))
    }

    async fn execute_all(&mut self, lines: &[ScriptLine]) -> Result<(), TurnError> {
        for (index, line) in lines.iter().enumerate() {
            // One line early: a cancel that follows the last text must not precede the hang.
            let mut upcoming = lines.iter().skip(index).take(2);
            if upcoming.any(|line| line.action == Action::Hang) {
                self.ignores_cancel.store(true, Ordering::Relaxed);
            }
            for _ in 0..line.times {
                self.execute(&line.action).await?;
                // Lets a cancel be read during a script of quick lines.
                tokio::task::yield_now().await;
            }
        }
        if let Some(result) = self.result.take() {
            self.stream_text(&result).await?;
        }
        Ok(())
    }

    async fn execute(&mut self, action: &Action) -> Result<(), TurnError> {
        match action {
            Action::Shell(command) => self.run_shell(command).await?,
            Action::Tool { name, arguments } => self.call_tool(name, arguments).await?,
            Action::Say(text) => self.stream_text(text).await?,
            Action::Sleep(time) => tokio::time::sleep(*time).await,
            Action::Later(time, text) => self.send_later(*time, text.clone()),
            Action::Ask(question) => self.ask_permission(question).await?,
            Action::Usage(usage) => self.report_usage(*usage).await?,
            Action::Fail(reason) => return Err(TurnError::Failed(reason.clone())),
            Action::Exit(code) => {
                self.session.output().flush().await;
                std::process::exit(*code);
            }
            Action::Hang => {
                self.session.output().flush().await;
                // This is the only thread: the process reads and answers nothing from now on.
                loop {
                    std::thread::park();
                }
            }
            Action::Flood(count) => self.flood(*count).await?,
            Action::Garbage(line) => self.session.output().write_garbage(line.clone()).await,
            Action::Stderr(text) => eprintln!("{text}"),
            Action::Text(_) => self.describe_workspace().await?,
        }
        Ok(())
    }

    /// Streams a text when the time is over, whether a turn runs then or not.
    fn send_later(&self, time: Duration, text: String) {
        let session = self.session.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            // The text of a session that cannot be written is lost.
            let _ = session.update(text_chunk(&text)).await;
        });
    }

    async fn run_shell(&mut self, command: &str) -> Result<(), TurnError> {
        let input = json!({ "command": command });
        let id = self
            .start_call("sh", command, ToolKind::Execute, &input)
            .await?;
        if self.session.calls_need_permission()
            && !self
                .is_permitted(id, "sh", command, ToolKind::Execute, input)
                .await?
        {
            return Ok(());
        }
        self.report_progress(None).await?;
        let (succeeded, text, output) = match shell::run(command, self.session.directory()).await {
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
        self.finish_call(succeeded, &text, output).await?;
        self.result = Some(text);
        Ok(())
    }

    async fn call_tool(
        &mut self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<(), TurnError> {
        let input = Value::Object(arguments.clone());
        let id = self.start_call(name, name, ToolKind::Other, &input).await?;
        let tool = self.session.servers().find(name).await;
        if let Ok(tool) = &tool
            && self.session.calls_need_permission()
        {
            // By its full name, also if the script has only the end of it.
            let name = tool.name().to_owned();
            let permitted = self.is_permitted(id, &name, &name, ToolKind::Other, input);
            if !permitted.await? {
                return Ok(());
            }
        }
        self.report_progress(None).await?;
        let called = match tool {
            Ok(tool) => {
                let (sender, mut progress) = mpsc::channel(16);
                let call = tool.call(arguments.clone(), sender);
                tokio::pin!(call);
                let called = loop {
                    tokio::select! {
                        called = &mut call => break called,
                        Some(text) = progress.recv() => self.report_progress(Some(text)).await?,
                    }
                };
                called.map_err(|reason| format!("{}: {reason}", tool.name()))
            }
            Err(reason) => Err(reason),
        };
        let (succeeded, text, output) = match called {
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
        self.finish_call(succeeded, &text, output).await?;
        self.result = Some(text);
        Ok(())
    }

    /// Requests permission for the open call; if it is rejected, the call is finished.
    async fn is_permitted(
        &mut self,
        id: ToolCallId,
        name: &str,
        title: &str,
        kind: ToolKind,
        input: Value,
    ) -> Result<bool, TurnError> {
        let fields = ToolCallUpdateFields::new()
            .name(name.to_owned())
            .title(title.to_owned())
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .raw_input(input);
        match self
            .request_permission(ToolCallUpdate::new(id, fields))
            .await?
        {
            PermissionAnswer::Once => Ok(true),
            PermissionAnswer::Always => {
                self.session.allow_always();
                Ok(true)
            }
            PermissionAnswer::Rejected => {
                let text = format!("not permitted: {title}");
                self.finish_call(false, &text, json!({ "permitted": false }))
                    .await?;
                self.result = Some(text);
                Ok(false)
            }
        }
    }

    async fn ask_permission(&mut self, question: &str) -> Result<(), TurnError> {
        let input = json!({ "question": question });
        let id = self
            .start_call("ask", question, ToolKind::Other, &input)
            .await?;
        let fields = ToolCallUpdateFields::new()
            .name("ask".to_owned())
            .title(question.to_owned())
            .kind(ToolKind::Other)
            .status(ToolCallStatus::Pending)
            .raw_input(input);
        let (succeeded, answer) = match self
            .request_permission(ToolCallUpdate::new(id, fields))
            .await?
        {
            PermissionAnswer::Once => (true, "allow_once"),
            PermissionAnswer::Always => (true, "allow_always"),
            PermissionAnswer::Rejected => (false, "reject_once"),
        };
        self.finish_call(succeeded, answer, json!({ "answer": answer }))
            .await?;
        self.stream_text(&format!("{question}: {answer}")).await?;
        Ok(())
    }

    async fn request_permission(
        &self,
        call: ToolCallUpdate,
    ) -> Result<PermissionAnswer, TurnError> {
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
        let response = self.session.connection().send_request(request).block_task();
        match response.await {
            Ok(response) => match response.outcome {
                RequestPermissionOutcome::Selected(selected) => Ok(match &*selected.option_id.0 {
                    "allow_once" => PermissionAnswer::Once,
                    "allow_always" => PermissionAnswer::Always,
                    _ => PermissionAnswer::Rejected,
                }),
                // The client has cancelled the turn.
                _ => Err(TurnError::Cancelled),
            },
            Err(error) => Err(TurnError::Failed(format!(
                "the client did not answer a request for permission: {error}"
            ))),
        }
    }

    async fn report_usage(&mut self, usage: Usage) -> Result<(), TurnError> {
        let sum = self.usage.get_or_insert_default();
        sum.input += usage.input;
        sum.output += usage.output;
        let cost = self.session.add_cost(usage.usd)?;
        let update = UsageUpdate::new(usage.input + usage.output, CONTEXT_TOKENS)
            .cost(Cost::new(cost, "USD"));
        self.session
            .update(SessionUpdate::UsageUpdate(update))
            .await?;
        Ok(())
    }

    async fn flood(&mut self, count: u32) -> Result<(), TurnError> {
        for _ in 0..count {
            self.session.send(text_chunk(".")).await;
        }
        let dots = ".".repeat(usize::try_from(count).unwrap_or_default());
        self.session.record(&text_chunk(&dots))?;
        self.has_text |= count > 0;
        Ok(())
    }

    async fn describe_workspace(&mut self) -> Result<(), TurnError> {
        let session = self.session;
        let mut sentences = vec![
            "Hello! I am the demo agent: there is no model behind me, but my shell and my tools \
             are real."
                .to_owned(),
            workspace::describe(session.directory()),
        ];
        for (number, what) in [
            (self.files.attachments, "attachment"),
            (self.files.images, "image"),
        ] {
            if number > 0 {
                let files = workspace::count(number, what);
                sentences.push(format!("You sent {files} with this prompt."));
            }
        }
        match tokio::time::timeout(LIST_TOOLS_TIMEOUT, session.servers().tools()).await {
            Ok((tools, problems)) => {
                if !tools.is_empty() {
                    let named = tools[..tools.len().min(MAX_LISTED_TOOLS)].join(", ");
                    let more = match tools.len().saturating_sub(MAX_LISTED_TOOLS) {
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
        Ok(self.stream_text(&sentences.join(" ")).await?)
    }

    /// Streams text, on a new line after earlier text.
    async fn stream_text(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if std::mem::replace(&mut self.has_text, true) {
            self.session.update(text_chunk("\n")).await?;
        }
        for piece in pieces(text) {
            self.session.update(text_chunk(piece)).await?;
        }
        Ok(())
    }

    async fn start_call(
        &mut self,
        name: &str,
        title: &str,
        kind: ToolKind,
        input: &Value,
    ) -> io::Result<ToolCallId> {
        let id = self.session.next_tool_call_id();
        let call = ToolCall::new(id.clone(), title)
            .name(name.to_owned())
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .raw_input(input.clone());
        self.session.update(SessionUpdate::ToolCall(call)).await?;
        self.open_call = Some(id.clone());
        Ok(id)
    }

    /// Reports that the open call is in progress, with its progress message.
    async fn report_progress(&self, text: Option<String>) -> io::Result<()> {
        let content = text.map(|text| vec![text.into()]);
        self.update_call(
            ToolCallUpdateFields::new()
                .status(ToolCallStatus::InProgress)
                .content(content),
        )
        .await
    }

    async fn finish_call(&mut self, succeeded: bool, text: &str, output: Value) -> io::Result<()> {
        let status = if succeeded {
            ToolCallStatus::Completed
        } else {
            ToolCallStatus::Failed
        };
        let fields = ToolCallUpdateFields::new()
            .status(status)
            .content(vec![text.to_owned().into()])
            .raw_output(output);
        self.update_call(fields).await?;
        self.open_call = None;
        Ok(())
    }

    /// Finishes the open call as failed, if there is one.
    async fn fail_open_call(&mut self, reason: &str) -> io::Result<()> {
        if self.open_call.is_none() {
            return Ok(());
        }
        self.finish_call(false, reason, json!({ "error": reason }))
            .await
    }

    async fn update_call(&self, fields: ToolCallUpdateFields) -> io::Result<()> {
        let Some(id) = self.open_call.clone() else {
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

/// Splits a text at spaces into pieces, of which a long text has no more than about 64.
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

fn usage_report(usage: Usage) -> agent_client_protocol::v1::schema::Usage {
    let total = usage.input + usage.output;
    agent_client_protocol::v1::schema::Usage::new(total, usage.input, usage.output)
}

fn journal_error(error: &io::Error) -> Error {
    let reason = format!("cannot write the conversation to disk: {error}");
    Error::new(ErrorCode::INTERNAL_ERROR, reason)
}
