//! Builds events from what an agent writes.
//!
//! A pure function of updates and flushes: output that was not committed before a crash is read again
//! and produces the same events.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use oubliette_agent::{AgentUpdate, PermissionRequest, TextChunk, ToolCall};
use oubliette_model::Event;
use serde_json::Value;

use crate::sessions::live_agent::{LiveAgent, OpenText};
use crate::sessions::redactor::{HeldText, Redactor};

/// A longer text is split into two messages.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// More streamed text than this is flushed at once.
const MAX_UNFLUSHED_BYTES: usize = 32 << 10;
/// Tool calls that never end are dropped beyond this number.
const MAX_OPEN_TOOLS: usize = 256;
/// How many tool calls that have ended are remembered.
const MAX_ENDED_TOOLS: usize = 64;
/// A larger tool input is put into the log at once, and not kept until more is known.
const MAX_KEPT_INPUT_BYTES: usize = 16 << 10;
/// How much streamed output of all open tool calls is kept.
const MAX_STREAMED_OUTPUT_BYTES: usize = 256 << 10;

/// How many notices of an agent are logged in one turn.
const MAX_NOTICES: u32 = 50;
/// How much of the last message is remembered.
const MAX_LAST_MESSAGE_BYTES: usize = 2000;

/// Between two messages in the text of a turn.
const MESSAGE_SEPARATOR: &str = "\n\n";

/// The text of a turn that consists of these messages.
fn join_messages(messages: &[String]) -> String {
    let trimmed: Vec<&str> = messages
        .iter()
        .map(|text| text.trim_matches('\n'))
        .collect();
    trimmed.join(MESSAGE_SEPARATOR)
}

#[derive(Debug, Default)]
pub(super) struct EventBuilder {
    /// Events that are not committed yet.
    events: Vec<Event>,
    redactor: Arc<Redactor>,
    /// The part of the open text that is in the log or in `events`, redacted.
    flushed: String,
    /// The rest of the open text, redacted, except what is held back.
    unflushed: String,
    /// All text that the agent wrote in this turn.
    turn_text: String,
    /// The start of the last message of this turn.
    last_message: String,
}

impl EventBuilder {
    /// Continues a turn after a restart: `flushed` is the part of the open text that is in the log, and
    /// `messages` are those of the turn before it.
    pub(super) fn resume(redactor: Arc<Redactor>, flushed: String, messages: &[String]) -> Self {
        let last = messages.last().map_or("", String::as_str);
        Self {
            redactor,
            flushed,
            turn_text: join_messages(messages),
            last_message: message_start(last),
            ..Self::default()
        }
    }

    /// Sets what is removed from the texts of a new agent.
    pub(super) fn set_redactor(&mut self, redactor: Arc<Redactor>) {
        self.redactor = redactor;
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    pub(super) fn log(&mut self, message: impl Into<String>) {
        self.events.push(Event::log(message));
    }

    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// `log_end` is the end of the committed log.
    pub(super) fn handle_update(
        &mut self,
        live: &mut LiveAgent,
        update: AgentUpdate,
        log_end: i64,
    ) {
        match update {
            AgentUpdate::Text(chunk) => self.add_text(live, chunk, false, log_end),
            AgentUpdate::Thought(chunk) => self.add_text(live, chunk, true, log_end),
            AgentUpdate::Plan(entries) => {
                self.end_text(live);
                self.events.push(Event::Plan { entries });
            }
            AgentUpdate::Tool(tool) => self.update_tool(live, tool),
            AgentUpdate::Unknown(kind) => {
                self.log(format!("the agent sent an unknown update `{kind}`"));
            }
            AgentUpdate::Mode(mode) => {
                if live.mode != mode {
                    live.mode.clone_from(&mode);
                    self.events.push(Event::Mode { mode });
                }
            }
            AgentUpdate::Commands(commands) => {
                let hash = hash_of(&commands);
                if live.commands_hash != hash {
                    live.commands_hash = hash;
                    self.events.push(Event::Commands { commands });
                }
            }
            AgentUpdate::Usage(_) | AgentUpdate::Signal(_) | AgentUpdate::Ignored => {}
        }
    }

    /// Logs the plan of an agent that writes it by a tool, of which there are several updates.
    pub(super) fn add_plan(&mut self, live: &mut LiveAgent, entries: Value) {
        let hash = hash_of(&entries);
        if live.plan_hash != hash {
            live.plan_hash = hash;
            self.events.push(Event::Plan { entries });
        }
    }

    /// Logs what the agent says about itself.
    pub(super) fn add_notice(&mut self, live: &mut LiveAgent, notice: String) {
        live.notices = live.notices.saturating_add(1);
        live.last_notice.clone_from(&notice);
        if live.notices <= MAX_NOTICES {
            self.log(notice);
        }
    }

    fn add_text(&mut self, live: &mut LiveAgent, chunk: TextChunk, is_thought: bool, log_end: i64) {
        let TextChunk { text, message_id } = chunk;
        let is_other = live
            .open_text
            .as_ref()
            .is_some_and(|open| open.is_thought != is_thought || open.message_id != message_id);
        let bytes = self.flushed.len() + self.unflushed.len() + text.len();
        let mut held = HeldText::default();
        if is_other {
            self.end_text(live);
        } else if bytes > MAX_MESSAGE_BYTES {
            held = self.split_text(live);
        }
        let open = live.open_text.get_or_insert(OpenText {
            is_thought,
            message_id,
            start_index: log_end,
            held,
        });
        let shown = self.redactor.push(&mut open.held, &text);
        self.unflushed.push_str(&shown);
    }

    /// Adds one `tool_call` event per call: when the call starts or ends, or when more of its input is
    /// known than its announcement said, which some agents send before the model has finished.
    fn update_tool(&mut self, live: &mut LiveAgent, tool: ToolCall) {
        if live.ended_tools.contains(&tool.id) {
            return;
        }
        self.end_text(live);
        let open_tools = live.open_tools.values();
        let streamed_bytes: usize = open_tools.map(|open| open.output.len()).sum();
        let open = live.open_tools.entry(tool.id.clone()).or_default();
        if let Some(title) = tool.title {
            open.title = title;
        }
        if let Some(kind) = tool.kind {
            open.kind = kind;
        }
        let changes = tool.input.as_ref().and_then(changes_text);
        let mut is_large = false;
        if let Some(input) = tool.input.filter(|_| !open.logged) {
            is_large = input.to_string().len() > MAX_KEPT_INPUT_BYTES;
            open.input = input;
        }
        let room = MAX_STREAMED_OUTPUT_BYTES.saturating_sub(streamed_bytes);
        let output = self.redactor.push(&mut open.held, &tool.output_delta);
        let end = output.floor_char_boundary(room);
        open.output.push_str(&output[..end]);
        open.truncated |= output.len() > room;
        let is_input_known = !tool.is_first && !open.input.is_null();
        if tool.started || is_input_known || is_large {
            self.add_tool_call(live, &tool.id);
        }
        if let Some(mut end) = tool.outcome {
            let mut open = live.open_tools.remove(&tool.id).unwrap_or_default();
            if let Some(changes) = changes.filter(|_| open.shows_only_paths) {
                end.output = changes;
            }
            if end.output.is_empty() {
                end.output = open.output;
                end.truncated |= open.truncated;
                // What is held back comes after what was cut off.
                if !open.truncated {
                    end.output.push_str(&self.redactor.finish(&mut open.held));
                }
            }
            let status = if end.failed { "failed" } else { "completed" };
            self.add_tool_result(live, tool.id, status, end.output, end.truncated);
        }
        while live.open_tools.len() > MAX_OPEN_TOOLS {
            live.open_tools.pop_first();
        }
    }

    /// Adds the `tool_call` event of an open tool call, unless the log has it.
    pub(super) fn add_tool_call(&mut self, live: &mut LiveAgent, id: &str) {
        let Some(open) = live.open_tools.get_mut(id).filter(|open| !open.logged) else {
            return;
        };
        open.logged = true;
        open.shows_only_paths = !open.input.is_null() && names_only_paths(&open.input);
        self.events.push(Event::ToolCall {
            tool_call_id: id.to_owned(),
            title: open.title.clone(),
            kind: open.kind.clone(),
            input: std::mem::take(&mut open.input),
        });
    }

    /// Completes a permission request by what the agent said about its tool call before. Returns whether the
    /// log, and only the log, knows the input of the call.
    pub(super) fn complete_request(
        &self,
        live: &LiveAgent,
        request: &mut PermissionRequest,
    ) -> bool {
        let id = request.tool_call_id.as_deref().unwrap_or_default();
        let Some(open) = live.open_tools.get(id) else {
            return false;
        };
        for (own, other) in [
            (&open.title, &mut request.title),
            (&open.kind, &mut request.kind),
        ] {
            if other.is_empty() {
                other.clone_from(own);
            }
        }
        // Some agents name the server of a tool only when they announce the call.
        let announced = open.title.strip_suffix(&request.title);
        if announced.is_some_and(|server| server.ends_with('-')) && request.tool.is_none() {
            request.tool = Some(open.title.clone());
        }
        // Some repeat only the files of a change that they have shown before.
        if names_only_paths(&request.input) {
            let mut events = self.events.iter();
            let logged = events.find_map(|event| input_of(event, id));
            let known = logged.unwrap_or_else(|| open.input.clone());
            if !known.is_null() {
                request.input = known;
                return false;
            }
            return open.logged;
        }
        false
    }

    /// Logs the tool call that permission is requested for, also if the agent has not announced it.
    pub(super) fn add_requested_call(&mut self, live: &mut LiveAgent, request: &PermissionRequest) {
        let Some(id) = &request.tool_call_id else {
            return;
        };
        let open = live.open_tools.entry(id.clone()).or_default();
        if !open.logged {
            open.title.clone_from(&request.title);
            open.kind.clone_from(&request.kind);
            open.input.clone_from(&request.input);
        }
        self.add_tool_call(live, id);
    }

    pub(super) fn has_unflushed_text(&self) -> bool {
        !self.unflushed.is_empty()
    }

    /// Whether there is so much unflushed text that it should be flushed at once.
    pub(super) fn is_full(&self) -> bool {
        self.unflushed.len() > MAX_UNFLUSHED_BYTES
    }

    /// Adds the unflushed text as a `delta` event.
    pub(super) fn flush(&mut self, live: &LiveAgent) {
        let Some(open) = live
            .open_text
            .as_ref()
            .filter(|_| self.has_unflushed_text())
        else {
            return;
        };
        let text = std::mem::take(&mut self.unflushed);
        self.flushed.push_str(&text);
        self.events.push(Event::Delta {
            text,
            thought: open.is_thought,
        });
    }

    /// Adds the open text, if there is one, as a `message` or `thought` event.
    pub(super) fn end_text(&mut self, live: &mut LiveAgent) {
        let Some(mut open) = live.open_text.take() else {
            return;
        };
        let rest = self.redactor.finish(&mut open.held);
        self.unflushed.push_str(&rest);
        self.add_message(open.is_thought);
    }

    /// Ends the open text in the middle. Returns what is held back, for the text that continues it.
    fn split_text(&mut self, live: &mut LiveAgent) -> HeldText {
        let Some(open) = live.open_text.take() else {
            return HeldText::default();
        };
        self.add_message(open.is_thought);
        open.held
    }

    fn add_message(&mut self, is_thought: bool) {
        let mut text = std::mem::take(&mut self.flushed);
        text.push_str(&std::mem::take(&mut self.unflushed));
        if text.is_empty() {
            return;
        }
        if is_thought {
            self.events.push(Event::Thought { text });
            return;
        }
        if !self.turn_text.is_empty() {
            self.turn_text.push_str(MESSAGE_SEPARATOR);
        }
        self.turn_text.push_str(text.trim_matches('\n'));
        let end = self.turn_text.floor_char_boundary(MAX_MESSAGE_BYTES);
        self.turn_text.truncate(end);
        self.last_message = message_start(&text);
        self.events.push(Event::Message { text });
    }

    /// The start of the last message of the turn, complete or not.
    pub(super) fn last_message(&self, live: &LiveAgent) -> String {
        let open = live.open_text.as_ref();
        if open.is_some_and(|open| !open.is_thought) {
            let shown = format!("{}{}", self.flushed, self.unflushed);
            if !shown.trim().is_empty() {
                return message_start(&shown);
            }
        }
        self.last_message.clone()
    }

    /// Forgets the tool calls of the last turn: the next one may use their ids again.
    pub(super) fn start_turn(&mut self, live: &mut LiveAgent) {
        live.ended_tools.clear();
        live.notices = 0;
        live.last_notice.clear();
    }

    /// Ends the text and the tool calls of a turn; returns all text of the turn.
    pub(super) fn end_turn(&mut self, live: &mut LiveAgent) -> String {
        self.end_text(live);
        for (id, mut open) in std::mem::take(&mut live.open_tools) {
            if open.logged {
                let rest = self.redactor.finish(&mut open.held);
                if !open.truncated {
                    open.output.push_str(&rest);
                }
                self.add_tool_result(live, id, "failed", open.output, open.truncated);
            }
        }
        self.last_message.clear();
        std::mem::take(&mut self.turn_text)
    }

    fn add_tool_result(
        &mut self,
        live: &mut LiveAgent,
        tool_call_id: String,
        status: &str,
        output: String,
        truncated: bool,
    ) {
        live.ended_tools.push_back(tool_call_id.clone());
        if live.ended_tools.len() > MAX_ENDED_TOOLS {
            live.ended_tools.pop_front();
        }
        self.events.push(Event::ToolResult {
            tool_call_id,
            status: status.to_owned(),
            output,
            truncated,
        });
    }
}

/// The input of a tool call, if this is the event of that call.
pub(super) fn input_of(event: &Event, id: &str) -> Option<Value> {
    match event {
        Event::ToolCall {
            tool_call_id,
            input,
            ..
        } if tool_call_id == id => Some(input.clone()),
        _ => None,
    }
}

/// Whether an input says at most which files a call is about.
fn names_only_paths(input: &Value) -> bool {
    let fields = input.as_object();
    input.is_null() || fields.is_some_and(|fields| fields.keys().eq(["paths"]))
}

/// The edits in the input of a tool call, as text.
fn changes_text(input: &Value) -> Option<String> {
    let changes = input["changes"].as_array()?.iter();
    let change = |change: &Value| {
        let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
        format!("changed {}:\n{}", text("path"), text("new_text"))
    };
    Some(changes.map(change).collect::<Vec<_>>().join("\n"))
}

fn message_start(text: &str) -> String {
    let text = text.trim();
    text[..text.floor_char_boundary(MAX_LAST_MESSAGE_BYTES)].to_owned()
}

fn hash_of(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.to_string().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
