//! Builds events from what an agent writes.
//!
//! A pure function of updates and flushes: output that was not committed before a crash is read again
//! and produces the same events.

use oubliette_agent::{AgentUpdate, TextChunk, ToolCall};
use oubliette_model::Event;

use crate::sessions::live_agent::{LiveAgent, OpenText};

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

/// Between two messages in the text of a turn.
const MESSAGE_SEPARATOR: &str = "\n\n";

/// The text of a turn that consists of these messages.
pub(super) fn join_messages(messages: &[String]) -> String {
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
    /// The part of the open text that is in the log or in `events`.
    flushed: String,
    /// The rest of the open text.
    unflushed: String,
    /// All text that the agent wrote in this turn.
    turn_text: String,
}

impl EventBuilder {
    /// Continues a turn after a restart: `flushed` is the part of the open text that is in the log, and
    /// `turn_text` the text of the turn before it.
    pub(super) fn resume(flushed: String, turn_text: String) -> Self {
        Self {
            flushed,
            turn_text,
            ..Self::default()
        }
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
            AgentUpdate::Usage(_) | AgentUpdate::Ignored => {}
        }
    }

    fn add_text(&mut self, live: &mut LiveAgent, chunk: TextChunk, is_thought: bool, log_end: i64) {
        let TextChunk { text, message_id } = chunk;
        let is_other = live
            .open_text
            .as_ref()
            .is_some_and(|open| open.is_thought != is_thought || open.message_id != message_id);
        let bytes = self.flushed.len() + self.unflushed.len() + text.len();
        if is_other || bytes > MAX_MESSAGE_BYTES {
            self.end_text(live);
        }
        live.open_text.get_or_insert(OpenText {
            is_thought,
            message_id,
            start_index: log_end,
        });
        self.unflushed.push_str(&text);
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
        let mut is_large = false;
        if let Some(input) = tool.input.filter(|_| !open.logged) {
            is_large = input.to_string().len() > MAX_KEPT_INPUT_BYTES;
            open.input = input;
        }
        let room = MAX_STREAMED_OUTPUT_BYTES.saturating_sub(streamed_bytes);
        let end = tool.output_delta.floor_char_boundary(room);
        open.output.push_str(&tool.output_delta[..end]);
        open.truncated |= tool.output_delta.len() > room;
        let is_input_known = !tool.is_first && !open.input.is_null();
        if tool.started || is_input_known || is_large {
            self.add_tool_call(live, &tool.id);
        }
        if let Some(mut end) = tool.outcome {
            let open = live.open_tools.remove(&tool.id).unwrap_or_default();
            if end.output.is_empty() {
                end.output = open.output;
                end.truncated |= open.truncated;
            }
            live.ended_tools.push_back(tool.id.clone());
            if live.ended_tools.len() > MAX_ENDED_TOOLS {
                live.ended_tools.pop_front();
            }
            self.events.push(Event::ToolResult {
                tool_call_id: tool.id,
                status: if end.failed { "failed" } else { "completed" }.to_owned(),
                output: end.output,
                truncated: end.truncated,
            });
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
        self.events.push(Event::ToolCall {
            tool_call_id: id.to_owned(),
            title: open.title.clone(),
            kind: open.kind.clone(),
            input: std::mem::take(&mut open.input),
        });
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
        let Some(open) = live.open_text.take() else {
            return;
        };
        let mut text = std::mem::take(&mut self.flushed);
        text.push_str(&std::mem::take(&mut self.unflushed));
        if text.is_empty() {
            return;
        }
        if open.is_thought {
            self.events.push(Event::Thought { text });
            return;
        }
        if !self.turn_text.is_empty() {
            self.turn_text.push_str(MESSAGE_SEPARATOR);
        }
        self.turn_text.push_str(text.trim_matches('\n'));
        let end = self.turn_text.floor_char_boundary(MAX_MESSAGE_BYTES);
        self.turn_text.truncate(end);
        self.events.push(Event::Message { text });
    }

    /// Ends the text and the tool calls of a turn; returns all text of the turn.
    pub(super) fn end_turn(&mut self, live: &mut LiveAgent) -> String {
        self.end_text(live);
        live.open_tools.clear();
        live.ended_tools.clear();
        std::mem::take(&mut self.turn_text)
    }
}

#[cfg(test)]
mod tests {
    use oubliette_agent::ToolOutcome;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn chunk(text: &str, message: Option<&str>) -> TextChunk {
        TextChunk {
            text: text.to_owned(),
            message_id: message.map(str::to_owned),
        }
    }

    fn text(text: &str) -> AgentUpdate {
        AgentUpdate::Text(chunk(text, None))
    }

    fn tool(id: &str, input: bool, started: bool, output: Option<&str>) -> AgentUpdate {
        AgentUpdate::Tool(ToolCall {
            id: id.to_owned(),
            title: Some("sh".to_owned()),
            kind: Some("execute".to_owned()),
            input: input.then(|| Value::from("ls")),
            is_first: false,
            started,
            output_delta: String::new(),
            outcome: output.map(|output| ToolOutcome {
                failed: false,
                output: output.to_owned(),
                truncated: false,
            }),
        })
    }

    fn kinds(events: &[Event]) -> Vec<&str> {
        events.iter().map(Event::kind).collect()
    }

    #[test]
    fn a_tool_call_is_logged_once_with_its_input() {
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        builder.handle_update(&mut live, tool("1", false, false, None), 0);
        assert!(builder.events.is_empty(), "its input is not known yet");
        builder.handle_update(&mut live, tool("1", true, true, None), 0);
        builder.handle_update(&mut live, tool("1", true, true, None), 0);
        builder.handle_update(&mut live, tool("1", true, true, Some("out")), 0);
        assert_eq!(kinds(&builder.events), ["tool_call", "tool_result"]);
        assert!(live.open_tools.is_empty());
    }

    fn parse_update(update: Value) -> AgentUpdate {
        AgentUpdate::parse(&json!({ "update": update }))
    }

    #[test]
    fn an_announced_tool_call_is_logged_when_its_input_is_known() {
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        let announced = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "bash",
            "status": "pending", "rawInput": { "cwd": "/w" } });
        builder.handle_update(&mut live, parse_update(announced.clone()), 0);
        assert!(builder.events.is_empty(), "{:?}", builder.events);
        let begun = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "title": "ls",
            "status": "in_progress", "rawInput": { "cwd": "/w", "command": "ls" } });
        builder.handle_update(&mut live, parse_update(begun), 0);
        let expected = Event::ToolCall {
            tool_call_id: "1".to_owned(),
            title: "ls".to_owned(),
            kind: String::new(),
            input: json!({ "cwd": "/w", "command": "ls" }),
        };
        assert_eq!(builder.events, [expected]);

        // A call that starts without more input, and a call that the agent asks permission for first.
        for asks_permission in [false, true] {
            let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
            builder.handle_update(&mut live, parse_update(announced.clone()), 0);
            if asks_permission {
                builder.add_tool_call(&mut live, "1");
            } else {
                builder.handle_update(&mut live, tool("1", false, true, None), 0);
            }
            builder.handle_update(&mut live, tool("1", true, true, Some("out")), 0);
            assert_eq!(kinds(&builder.events), ["tool_call", "tool_result"]);
            let Event::ToolCall { input, .. } = &builder.events[0] else {
                panic!()
            };
            assert_eq!(*input, json!({ "cwd": "/w" }));
        }
    }

    #[test]
    fn a_tool_call_ends_once_in_a_turn() {
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        for _ in 0..2 {
            builder.handle_update(&mut live, tool("1", true, false, None), 0);
            builder.handle_update(&mut live, tool("1", true, true, Some("out")), 0);
        }
        assert_eq!(kinds(&builder.events), ["tool_call", "tool_result"]);
        builder.end_turn(&mut live);
        builder.handle_update(&mut live, tool("1", true, true, Some("out")), 0);
        assert_eq!(builder.events.len(), 4, "the next turn may reuse ids");
    }

    #[test]
    fn streamed_output_is_the_result_of_a_tool_call_without_another() {
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        for (id, data) in [("1", "one "), ("2", "x"), ("1", "two")] {
            let more = json!({ "sessionUpdate": "tool_call_update", "toolCallId": id,
                "_meta": { "terminal_output": { "data": data } } });
            builder.handle_update(&mut live, parse_update(more), 0);
        }
        builder.handle_update(&mut live, tool("1", true, true, Some("")), 0);
        builder.handle_update(&mut live, tool("2", true, true, Some("whole")), 0);
        let outputs: Vec<&str> = builder.events.iter().filter_map(output).collect();
        assert_eq!(outputs, ["one two", "whole"]);
        let flood = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "3",
            "_meta": { "terminal_output": { "data": "y".repeat(100 << 10) } } });
        for _ in 0..10 {
            builder.handle_update(&mut live, parse_update(flood.clone()), 0);
        }
        let kept = &live.open_tools["3"];
        assert!(kept.output.len() == MAX_STREAMED_OUTPUT_BYTES && kept.truncated);
    }

    fn output(event: &Event) -> Option<&str> {
        match event {
            Event::ToolResult { output, .. } => Some(output),
            _ => None,
        }
    }

    #[test]
    fn a_message_has_its_deltas_and_the_rest() {
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        builder.handle_update(&mut live, text("one "), 3);
        builder.flush(&live);
        builder.handle_update(&mut live, text("two"), 4);
        builder.handle_update(&mut live, AgentUpdate::Thought(chunk("hm", None)), 4);
        assert_eq!(builder.end_turn(&mut live), "one two");
        assert_eq!(kinds(&builder.events), ["delta", "message", "thought"]);
        assert_eq!(
            builder.events[1],
            Event::Message {
                text: "one two".to_owned()
            }
        );
    }

    #[test]
    fn each_message_id_of_the_agent_is_a_message() {
        let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
        for (text, message) in [
            ("a", Some("1")),
            ("b", Some("1")),
            ("c", Some("2")),
            ("d", None),
        ] {
            builder.handle_update(&mut live, AgentUpdate::Text(chunk(text, message)), 0);
        }
        assert_eq!(builder.end_turn(&mut live), "ab\n\nc\n\nd");
        assert_eq!(kinds(&builder.events), ["message"; 3]);
    }

    proptest! {
        /// A crash between any two flushes does not change the messages.
        #[test]
        fn messages_are_the_same_after_a_crash(
            lines in proptest::collection::vec("[a-c]{1,3}|T|t|M", 1..40),
            flushes in proptest::collection::vec(any::<bool>(), 40),
            crash in 0usize..40,
        ) {
            let update = |builder: &mut EventBuilder, live: &mut LiveAgent, line: &str, n: usize, end: i64| match line {
                "T" => builder.handle_update(live, tool(&n.to_string(), true, true, Some("o")), end),
                "t" => builder.handle_update(live, AgentUpdate::Thought(chunk("q", None)), end),
                "M" => builder.handle_update(live, AgentUpdate::Text(chunk("m", Some(&n.to_string()))), end),
                other => builder.handle_update(live, text(other), end),
            };
            let without_deltas = |events: &[Event]| -> Vec<Event> {
                events.iter().filter(|e| e.kind() != "delta").cloned().collect()
            };
            let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
            for (n, line) in lines.iter().enumerate() {
                update(&mut builder, &mut live, line, n, 0);
            }
            let expected_text = builder.end_turn(&mut live);
            let expected = without_deltas(&builder.events);

            // With commits and a crash: what is not committed at the crash is read again.
            let (mut builder, mut live) = (EventBuilder::default(), LiveAgent::default());
            let (mut log, mut committed) = (Vec::<Event>::new(), 0);
            let mut saved = live.clone();
            let mut n = 0;
            let mut crashed = false;
            while n < lines.len() {
                update(&mut builder, &mut live, &lines[n], n, log.len() as i64);
                n += 1;
                if flushes[n - 1] || !builder.events.is_empty() {
                    builder.flush(&live);
                    log.append(&mut builder.events);
                    saved = live.clone();
                    committed = n;
                }
                if n > crash && !crashed {
                    crashed = true;
                    live = saved.clone();
                    let flushed = live.open_text.as_ref().map_or(String::new(), |open| {
                        let deltas = log.iter().skip(usize::try_from(open.start_index).unwrap());
                        deltas.filter_map(|event| match event {
                            Event::Delta { text, .. } => Some(text.as_str()),
                            _ => None,
                        }).collect()
                    });
                    let messages: Vec<String> = log.iter().filter_map(|event| match event {
                        Event::Message { text } => Some(text.clone()),
                        _ => None,
                    }).collect();
                    builder = EventBuilder::resume(flushed, join_messages(&messages));
                    n = committed;
                }
            }
            let text = builder.end_turn(&mut live);
            log.append(&mut builder.events);
            prop_assert_eq!(without_deltas(&log), expected);
            prop_assert_eq!(text, expected_text);
        }
    }
}
