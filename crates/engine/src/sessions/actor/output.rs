//! Handles what the agent writes.

use oubliette_agent::{AgentMessage, AgentUpdate, Signal, ToolCall, TranscriptFile};
use oubliette_wire::{ExitStatus, LineTooLong};
use serde_json::Value;
use tokio::time::Instant;

use super::{ActorError, SessionActor};
use crate::sessions::connection::{AgentConnection, ProcessEvent};

impl SessionActor<'_> {
    pub(super) async fn handle_process_event(
        &mut self,
        event: ProcessEvent,
    ) -> Result<(), ActorError> {
        match event {
            ProcessEvent::Nothing => Ok(()),
            ProcessEvent::Output => self.handle_output().await,
            ProcessEvent::ConnectionLost => {
                self.process.connection = None;
                Ok(())
            }
            ProcessEvent::StdoutClosed => {
                let reason = "the agent closed its output".to_owned();
                self.on_agent_exit(reason).await
            }
            ProcessEvent::Exited => {
                self.handle_output().await?;
                let reason = self.exit_reason();
                self.on_agent_exit(reason).await
            }
        }
    }

    pub(super) fn exit_reason(&self) -> String {
        let connection = self.process.connection.as_ref();
        if connection.is_some_and(|connection| connection.process.link().is_stopping()) {
            return "the container ended".to_owned();
        }
        match connection.and_then(AgentConnection::ended) {
            Some(ExitStatus::Code(code)) => format!("the agent ended with exit code {code}"),
            Some(ExitStatus::Signal(signal)) => format!("the agent was killed by signal {signal}"),
            None => "the agent is gone".to_owned(),
        }
    }

    /// Handles all lines that have arrived.
    pub(super) async fn handle_output(&mut self) -> Result<(), ActorError> {
        self.update_redactor().await;
        self.deadlines.last_activity = Instant::now();
        if let Some(live) = &mut self.process.live {
            live.silence_logged = false;
        }
        while let Some(connection) = &mut self.process.connection
            && let Some((line, end)) = connection.lines.next_piece()
        {
            let inside_long_line = connection.lines.is_inside_long_line();
            self.process.read_offset = end;
            match line {
                Ok(line) => {
                    self.handle_line(&line).await?;
                }
                Err(LineTooLong) => {
                    if !inside_long_line {
                        let text = "the agent wrote a line of more than 16 MiB; it was skipped";
                        self.step.events.log(text);
                    }
                }
            }
        }
        self.commit_if_due().await
    }

    async fn handle_line(&mut self, line: &[u8]) -> Result<(), ActorError> {
        match AgentMessage::parse(line) {
            AgentMessage::Response { id, mut outcome } => {
                if let Ok(result) = &mut outcome {
                    self.redactor.redact_value(result);
                }
                let turn = self.process.turn();
                self.deadlines.record_progress();
                if turn.is_some_and(|turn| turn.request_id == id) {
                    self.end_turn(outcome).await?;
                }
            }
            AgentMessage::Notification { method, params } => {
                self.handle_notification(&method, params).await?;
            }
            AgentMessage::Request {
                id,
                method,
                mut params,
            } => {
                self.redactor.redact_value(&mut params);
                self.deadlines.record_progress();
                if method == "session/request_permission" {
                    self.handle_permission_request(&id, &params).await?;
                } else {
                    self.send(oubliette_agent::method_not_found(&id, &method));
                }
            }
            AgentMessage::Invalid(_) => {
                self.deadlines.record_progress();
                self.step.invalid_lines += 1;
                // Redacted before it is shortened.
                let line = String::from_utf8_lossy(line).into_owned();
                let line = self.redactor.redact_text(line);
                if self.step.invalid_lines == 1
                    && let AgentMessage::Invalid(text) = AgentMessage::parse(line.as_bytes())
                {
                    let text = format!("the agent wrote a line that is not a message: {text}");
                    self.step.events.log(text);
                }
            }
            AgentMessage::Blank => {}
        }
        Ok(())
    }

    async fn handle_notification(&mut self, method: &str, params: Value) -> Result<(), ActorError> {
        let update = self.parse_notification(method, params);
        if !matches!(update, Some(AgentUpdate::Signal(_))) {
            self.deadlines.record_progress();
        }
        let Some(mut update) = update else {
            return Ok(());
        };
        if let AgentUpdate::Signal(signal) = update {
            return self.handle_signal(signal).await;
        }
        if update.is_work() && !self.process.in_turn() {
            if let (AgentUpdate::Tool(tool), Some(live)) = (&update, &self.process.live)
                && live.ended_tools.contains(&tool.id)
            {
                // The end of a call of the last turn, which had to be reported before.
                return Ok(());
            }
            self.ensure_turn();
        }
        if let AgentUpdate::Tool(tool) = &mut update
            && let Some(end) = tool.outcome.as_mut().filter(|end| end.output.is_empty())
            && let Some(file) = self.agent.transcript_file
        {
            let output = self.read_tool_output(file, &tool.id).await;
            end.output = output.unwrap_or_default();
        }
        if let AgentUpdate::Usage(reported) = update {
            if self.add_usage(reported) {
                self.commit().await?;
                self.enforce_budget().await?;
            }
            return Ok(());
        }
        if let (AgentUpdate::Text(chunk), Some(own)) = (&update, self.agent.own_texts) {
            if let Some(notice) = chunk.text.strip_prefix(own.notice) {
                let notice = Signal::agent_notice(&self.redactor.redact_text(notice.to_owned()));
                return self.handle_signal(notice).await;
            }
            self.note_own_failure(chunk.text.starts_with(own.failure));
        } else if update.is_work() && self.agent.own_texts.is_some() {
            self.note_own_failure(false);
        }
        let log_end = self.session.log_end;
        if let Some(live) = &mut self.process.live {
            let plan = match &update {
                AgentUpdate::Tool(tool) if self.agent.plans_by_tool => tool.plan(),
                _ => None,
            };
            self.step.events.handle_update(live, update, log_end);
            if let Some(entries) = plan {
                self.step.events.add_plan(live, entries);
            }
        }
        Ok(())
    }

    /// Records whether the last that an agent wrote is why its turn has failed.
    fn note_own_failure(&mut self, has_failed: bool) {
        let Some(live) = &mut self.process.live else {
            return;
        };
        if has_failed {
            // The reason is a text of its own.
            self.step.events.end_text(live);
        }
        if let Some(turn) = &mut live.turn {
            turn.failed = has_failed;
        }
    }

    /// An update, redacted except for texts that arrive in pieces, which are redacted when they are put
    /// together.
    fn parse_notification(&self, method: &str, mut params: Value) -> Option<AgentUpdate> {
        let update = AgentUpdate::from_notification(method, &params)?;
        let is_text = matches!(update, AgentUpdate::Text(_) | AgentUpdate::Thought(_));
        if is_text || !self.redactor.redact_value(&mut params) {
            return Some(update);
        }
        match (update, AgentUpdate::from_notification(method, &params)?) {
            (AgentUpdate::Tool(raw), AgentUpdate::Tool(redacted)) => {
                Some(AgentUpdate::Tool(ToolCall {
                    output_delta: raw.output_delta,
                    ..redacted
                }))
            }
            (_, redacted) => Some(redacted),
        }
    }

    /// The output of a tool call, from the file in which the agent keeps its conversation.
    async fn read_tool_output(&self, file: TranscriptFile, call: &str) -> Option<String> {
        let path = file
            .file
            .glob(self.agent_home(), self.session.agent_session_id.as_deref()?)?;
        let mark = (file.output_marker)(call)?;
        // Some agents report the end of a tool call before they write it to the file.
        let script = format!(
            "for n in 1 2 3 4 5 6 7 8 9 10; do grep -h -F '{mark}' {path} && exit; sleep 0.1; done"
        );
        let lines = self.run_script(&script).await?;
        let output = (file.parse_output)(lines.lines().last()?, call)?;
        Some(self.redactor.redact_text(output))
    }
}
