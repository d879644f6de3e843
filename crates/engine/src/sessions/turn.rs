//! One turn: a prompt, what comes of it, and the decisions on the way.

use oubliette_agent::{AgentUpdate, TranscriptFile, UsageReport};
use oubliette_model::{Event, Happening, Status, StopReason};
use oubliette_store::Message;
use oubliette_wire::RpcError;
use serde_json::Value;
use tokio::time::Instant;

use super::live::{Cancelled, Turn};
use super::owner::{HOME, Owner, Stop, container_id};
use crate::containers::exec::Inside;

impl Owner<'_> {
    /// Gives the agent a prompt.
    pub(super) async fn begin_turn(&mut self, message: Message) -> Result<(), Stop> {
        let attached = match self.attach_files(&message).await? {
            Ok(attached) => attached,
            Err(why) => {
                self.note_prompt(&message);
                self.scribe.events.push(Event::Completion {
                    text: String::new(),
                    stop_reason: StopReason::Error,
                    error: Some(why),
                });
                self.become_status(Happening::TurnEnded);
                return self.commit().await;
            }
        };
        // The tools that came with a message are known when its prompt comes.
        self.engine.tools_told(self.session.id).await?;
        let before = self.transcript().await?;
        let start = self.session.log_end;
        let session = self.session.agent_session_id.clone().unwrap_or_default();
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        let request = live.next_id;
        live.next_id += 1;
        let mut texts: Vec<&str> = before.iter().map(String::as_str).collect();
        texts.push(&message.text);
        let line = oubliette_agent::prompt_request(request, &session, &texts, &attached);
        live.forgetful = false;
        live.turn = Some(Turn {
            request,
            request_end: live.stdin + line.len() as u64,
            start,
            cancelled: None,
        });
        self.send(line);
        self.note_prompt(&message);
        self.become_status(Happening::Prompted);
        self.last_sign = Instant::now();
        self.commit().await
    }

    /// What the agent says while it works.
    pub(super) async fn hear_update(&mut self, params: &Value) -> Result<(), Stop> {
        let mut said = AgentUpdate::parse(params);
        if let AgentUpdate::Tool(tool) = &mut said
            && let Some(end) = tool.outcome.as_mut().filter(|end| end.output.is_empty())
            && let Some(file) = self.agent.transcript_file
        {
            end.output = self.read_output(file, &tool.id).await.unwrap_or_default();
        }
        if let AgentUpdate::Usage(reported) = said {
            if self.take_usage(reported) {
                self.commit().await?;
                self.mind_the_budget().await?;
            }
            return Ok(());
        }
        let log_end = self.session.log_end;
        if let Some(live) = &mut self.live {
            self.scribe.hear(live, said, log_end);
        }
        Ok(())
    }

    /// What a tool said, from the file that the agent keeps of its conversation.
    async fn read_output(&self, file: TranscriptFile, call: &str) -> Option<String> {
        let path = file
            .file
            .glob(HOME, self.session.agent_session_id.as_deref()?)?;
        let mark = (file.output_marker)(call)?;
        // The agent may say that the tool has ended before it writes that down.
        let script = format!(
            "for n in 1 2 3 4 5 6 7 8 9 10; do grep -h -F '{mark}' {path} && exit; sleep 0.1; done"
        );
        let lines = self.shell(&script).await?;
        let output = (file.parse_output)(lines.lines().last()?, call)?;
        Some(self.redact.text(output))
    }

    /// What a command says that looks at something in the container for us.
    pub(super) async fn shell(&self, script: &str) -> Option<String> {
        let live = self.live.as_ref()?;
        let argv = ["/bin/sh", "-c", script].map(str::to_owned);
        let container = container_id(&live.container, &self.project);
        let link = self.link().await?;
        let ran = self
            .engine
            .run_inside(&container, link, argv.into(), Vec::new());
        match ran.await {
            Ok(Inside::Done(text)) => Some(text),
            _ => None,
        }
    }

    /// The agent has answered the prompt.
    pub(super) async fn end_turn(&mut self, outcome: Result<Value, RpcError>) -> Result<(), Stop> {
        let mut reported = outcome
            .as_ref()
            .map(UsageReport::from_response)
            .unwrap_or_default();
        if let Some(file) = self.agent.usage_file.filter(|_| reported.turn.is_none()) {
            reported.turn = self.read_usage(file).await;
        }
        let Some(turn) = self.live.as_mut().and_then(|live| live.turn.take()) else {
            return Ok(());
        };
        let text = match &mut self.live {
            Some(live) => self.scribe.end_turn(live),
            None => String::new(),
        };
        self.take_usage(reported);
        let (stop_reason, error) = match (&outcome, turn.cancelled) {
            (Ok(result), None) => (self.stop_reason(result), None),
            (_, Some(Cancelled::Wanted)) => (StopReason::Cancelled, None),
            (_, Some(Cancelled::Budget)) => (StopReason::Limit, Some(self.budget_sentence())),
            (Err(error), None) => (StopReason::Error, Some(error.to_string())),
        };
        self.withdraw_decisions("interrupt").await?;
        self.scribe.events.push(Event::Completion {
            text,
            stop_reason,
            error,
        });
        self.become_status(Happening::TurnEnded);
        self.step.input_taken = Some(turn.request_end);
        self.cancel_by = None;
        self.last_sign = Instant::now();
        self.commit().await?;
        self.mind_the_budget().await
    }

    fn stop_reason(&mut self, result: &Value) -> StopReason {
        match result["stopReason"].as_str().unwrap_or_default() {
            "end_turn" => StopReason::EndTurn,
            "cancelled" => StopReason::Cancelled,
            "refusal" => StopReason::Refused,
            "max_tokens" | "max_turn_requests" => StopReason::Limit,
            other => {
                let other: String = other.chars().take(60).collect();
                self.scribe
                    .log(format!("the agent stopped for an unknown reason `{other}`"));
                StopReason::EndTurn
            }
        }
    }

    /// Stops the turn, as somebody wanted; the session stays.
    pub(super) async fn interrupt(&mut self) -> Result<(), Stop> {
        self.step.wanted_done = true;
        let in_turn = self.live.as_ref().and_then(|live| live.turn.as_ref());
        match in_turn.map(|turn| turn.cancelled) {
            Some(None) => self.cancel_turn(Cancelled::Wanted).await?,
            Some(Some(_)) => {}
            None => {
                // A turn that has not begun never will.
                let next = self.engine.store().next_message(self.session.id).await?;
                if let Some(message) = next.filter(|_| !self.session.status.is_ended()) {
                    self.note_prompt(&message);
                    self.scribe.events.push(Event::Completion {
                        text: String::new(),
                        stop_reason: StopReason::Cancelled,
                        error: None,
                    });
                    self.become_status(Happening::TurnEnded);
                }
            }
        }
        self.session.wanted = None;
        self.commit().await
    }

    pub(super) async fn cancel_turn(&mut self, why: Cancelled) -> Result<(), Stop> {
        self.withdraw_decisions("interrupt").await?;
        if self.session.status == Status::Waiting {
            self.become_status(Happening::Settled);
        }
        let session = self.session.agent_session_id.clone().unwrap_or_default();
        self.send(oubliette_agent::cancel_notification(&session));
        if let Some(turn) = self.live.as_mut().and_then(|live| live.turn.as_mut()) {
            turn.cancelled = Some(why);
        }
        self.cancel_by = Some(Instant::now() + self.cancel_patience());
        Ok(())
    }
}
