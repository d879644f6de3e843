//! From what an agent says to events.
//!
//! A pure function of lines and of when they are flushed: what a crash cuts off is read again from
//! the agent's output and comes to the same events.

use oubliette_agent::{AgentUpdate, TextChunk, ToolCall};
use oubliette_model::Event;

use super::live::{Block, Live};

/// A text that is longer becomes two messages.
const LONGEST_TEXT: usize = 1 << 20;
/// Streamed text that waits longer than this many bytes is not kept waiting.
const PENDING: usize = 32 << 10;
/// Tools that an agent begins and never ends are forgotten beyond this number.
const OPEN_TOOLS: usize = 256;

/// So many tools that have ended are known.
const ENDED_TOOLS: usize = 64;
/// An input that is larger is not kept until more is known.
const LARGE: usize = 16 << 10;
/// Most bytes that are kept of what open tools have streamed.
const STREAMED: usize = 256 << 10;

/// What stands between two messages in the text of a turn.
const BETWEEN: &str = "\n\n";

/// The text of a turn that said these messages.
pub(super) fn joined(messages: &[String]) -> String {
    let messages: Vec<&str> = messages
        .iter()
        .map(|text| text.trim_matches('\n'))
        .collect();
    messages.join(BETWEEN)
}

/// Writes down what an agent says.
#[derive(Debug, Default)]
pub(super) struct Scribe {
    /// Events that are not committed yet.
    pub(super) events: Vec<Event>,
    /// The text of the block that is in the log already, or among `events`.
    told: String,
    /// The rest of it.
    pending: String,
    /// Everything the agent said in this turn.
    turn: String,
}

impl Scribe {
    /// Goes on with a block whose beginning is in the log, in a turn that said `turn` before.
    pub(super) fn resume(told: String, turn: String) -> Self {
        Self {
            told,
            turn,
            ..Self::default()
        }
    }

    /// `log_end` is where the log ends without the events that are waiting.
    pub(super) fn hear(&mut self, live: &mut Live, said: AgentUpdate, log_end: i64) {
        match said {
            AgentUpdate::Text(chunk) => self.text(live, chunk, false, log_end),
            AgentUpdate::Thought(chunk) => self.text(live, chunk, true, log_end),
            AgentUpdate::Plan(entries) => {
                self.close(live);
                self.events.push(Event::Plan { entries });
            }
            AgentUpdate::Tool(tool) => self.tool(live, tool),
            AgentUpdate::Unknown(kind) => {
                self.log(format!("the agent sent an unknown update `{kind}`"))
            }
            AgentUpdate::Usage(_) | AgentUpdate::Ignored => {}
        }
    }

    pub(super) fn log(&mut self, message: impl Into<String>) {
        self.events.push(Event::log(message));
    }

    fn text(&mut self, live: &mut Live, chunk: TextChunk, thought: bool, log_end: i64) {
        let TextChunk {
            text,
            message_id: message,
        } = chunk;
        let other = live.block.as_ref();
        let other = other.is_some_and(|block| block.thought != thought || block.message != message);
        if other || self.told.len() + self.pending.len() + text.len() > LONGEST_TEXT {
            self.close(live);
        }
        if live.block.is_none() {
            live.block = Some(Block {
                thought,
                message,
                start: log_end,
            });
        }
        self.pending.push_str(&text);
    }

    /// A tool is told of once: when it begins or ends, or when its input is known from more than its
    /// announcement, which some agents send before the model has said all of it.
    fn tool(&mut self, live: &mut Live, tool: ToolCall) {
        if live.ended.contains(&tool.id) {
            return;
        }
        self.close(live);
        let said: usize = live.tools.values().map(|tool| tool.output.len()).sum();
        let known = live.tools.entry(tool.id.clone()).or_default();
        if let Some(title) = tool.title {
            known.title = title;
        }
        if let Some(kind) = tool.kind {
            known.kind = kind;
        }
        let mut is_large = false;
        if let Some(input) = tool.input.filter(|_| !known.told) {
            is_large = input.to_string().len() > LARGE;
            known.input = input;
        }
        let room = STREAMED.saturating_sub(said);
        known
            .output
            .push_str(&tool.output_delta[..floor(&tool.output_delta, room)]);
        known.truncated |= tool.output_delta.len() > room;
        let is_known = !tool.is_first && !known.input.is_null();
        if tool.started || is_known || is_large {
            self.tell(live, &tool.id);
        }
        if let Some(mut end) = tool.outcome {
            let known = live.tools.remove(&tool.id).unwrap_or_default();
            if end.output.is_empty() {
                end.output = known.output;
                end.truncated |= known.truncated;
            }
            live.ended.push_back(tool.id.clone());
            if live.ended.len() > ENDED_TOOLS {
                live.ended.pop_front();
            }
            self.events.push(Event::ToolResult {
                tool_call_id: tool.id,
                status: if end.failed { "failed" } else { "completed" }.to_owned(),
                output: end.output,
                truncated: end.truncated,
            });
        }
        while live.tools.len() > OPEN_TOOLS {
            live.tools.pop_first();
        }
    }

    /// Puts a tool that has been announced among the events, unless it is there.
    pub(super) fn tell(&mut self, live: &mut Live, id: &str) {
        let Some(known) = live.tools.get_mut(id).filter(|known| !known.told) else {
            return;
        };
        known.told = true;
        self.events.push(Event::ToolCall {
            tool_call_id: id.to_owned(),
            title: known.title.clone(),
            kind: known.kind.clone(),
            input: std::mem::take(&mut known.input),
        });
    }

    /// Whether text waits that is not among the events.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether it has waited enough.
    pub(super) fn is_full(&self) -> bool {
        self.pending.len() > PENDING
    }

    /// Puts the text that waits among the events, as a part of its block.
    pub(super) fn flush(&mut self, live: &Live) {
        let Some(block) = live.block.as_ref().filter(|_| self.is_pending()) else {
            return;
        };
        let text = std::mem::take(&mut self.pending);
        self.told.push_str(&text);
        let thought = block.thought;
        self.events.push(Event::Delta { text, thought });
    }

    /// Ends the block of text, if there is one.
    pub(super) fn close(&mut self, live: &mut Live) {
        let Some(block) = live.block.take() else {
            return;
        };
        let mut text = std::mem::take(&mut self.told);
        text.push_str(&std::mem::take(&mut self.pending));
        if text.is_empty() {
            return;
        }
        self.events.push(match block.thought {
            true => Event::Thought { text },
            false => {
                if !self.turn.is_empty() {
                    self.turn.push_str(BETWEEN);
                }
                self.turn.push_str(text.trim_matches('\n'));
                self.turn.truncate(floor(&self.turn, LONGEST_TEXT));
                Event::Message { text }
            }
        });
    }

    /// Ends everything that a turn left open; what it said in all.
    pub(super) fn end_turn(&mut self, live: &mut Live) -> String {
        self.close(live);
        live.tools.clear();
        live.ended.clear();
        std::mem::take(&mut self.turn)
    }
}

/// The last boundary between characters at or before `at`.
pub(super) fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
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

    fn tool(id: &str, input: bool, begun: bool, output: Option<&str>) -> AgentUpdate {
        AgentUpdate::Tool(ToolCall {
            id: id.to_owned(),
            title: Some("sh".to_owned()),
            kind: Some("execute".to_owned()),
            input: input.then(|| Value::from("ls")),
            is_first: false,
            started: begun,
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
    fn a_tool_is_told_once_with_its_input() {
        let (mut scribe, mut live) = (Scribe::default(), Live::default());
        scribe.hear(&mut live, tool("1", false, false, None), 0);
        assert!(scribe.events.is_empty(), "its input is not known yet");
        scribe.hear(&mut live, tool("1", true, true, None), 0);
        scribe.hear(&mut live, tool("1", true, true, None), 0);
        scribe.hear(&mut live, tool("1", true, true, Some("out")), 0);
        assert_eq!(kinds(&scribe.events), ["tool_call", "tool_result"]);
        assert!(live.tools.is_empty());
    }

    fn update(update: Value) -> AgentUpdate {
        AgentUpdate::parse(&json!({ "update": update }))
    }

    #[test]
    fn an_announcement_waits_for_what_is_known_later() {
        let (mut scribe, mut live) = (Scribe::default(), Live::default());
        let announced = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "bash",
            "status": "pending", "rawInput": { "cwd": "/w" } });
        scribe.hear(&mut live, update(announced.clone()), 0);
        assert!(scribe.events.is_empty(), "{:?}", scribe.events);
        let begun = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "title": "ls",
            "status": "in_progress", "rawInput": { "cwd": "/w", "command": "ls" } });
        scribe.hear(&mut live, update(begun), 0);
        let told = Event::ToolCall {
            tool_call_id: "1".to_owned(),
            title: "ls".to_owned(),
            kind: String::new(),
            input: json!({ "cwd": "/w", "command": "ls" }),
        };
        assert_eq!(scribe.events, [told]);

        // One that begins without saying what with, and one that is asked about first.
        for asked in [false, true] {
            let (mut scribe, mut live) = (Scribe::default(), Live::default());
            scribe.hear(&mut live, update(announced.clone()), 0);
            match asked {
                true => scribe.tell(&mut live, "1"),
                false => scribe.hear(&mut live, tool("1", false, true, None), 0),
            }
            scribe.hear(&mut live, tool("1", true, true, Some("out")), 0);
            assert_eq!(kinds(&scribe.events), ["tool_call", "tool_result"]);
            let Event::ToolCall { input, .. } = &scribe.events[0] else {
                panic!()
            };
            assert_eq!(*input, json!({ "cwd": "/w" }));
        }
    }

    #[test]
    fn a_tool_ends_once_in_a_turn() {
        let (mut scribe, mut live) = (Scribe::default(), Live::default());
        for _ in 0..2 {
            scribe.hear(&mut live, tool("1", true, false, None), 0);
            scribe.hear(&mut live, tool("1", true, true, Some("out")), 0);
        }
        assert_eq!(kinds(&scribe.events), ["tool_call", "tool_result"]);
        scribe.end_turn(&mut live);
        scribe.hear(&mut live, tool("1", true, true, Some("out")), 0);
        assert_eq!(scribe.events.len(), 4, "the next turn may count anew");
    }

    #[test]
    fn what_a_tool_streamed_is_its_result_where_it_has_no_other() {
        let (mut scribe, mut live) = (Scribe::default(), Live::default());
        for (id, data) in [("1", "one "), ("2", "x"), ("1", "two")] {
            let more = json!({ "sessionUpdate": "tool_call_update", "toolCallId": id,
                "_meta": { "terminal_output": { "data": data } } });
            scribe.hear(&mut live, update(more), 0);
        }
        scribe.hear(&mut live, tool("1", true, true, Some("")), 0);
        scribe.hear(&mut live, tool("2", true, true, Some("whole")), 0);
        let outputs: Vec<&str> = scribe.events.iter().filter_map(output).collect();
        assert_eq!(outputs, ["one two", "whole"]);
        let flood = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "3",
            "_meta": { "terminal_output": { "data": "y".repeat(100 << 10) } } });
        for _ in 0..10 {
            scribe.hear(&mut live, update(flood.clone()), 0);
        }
        let kept = &live.tools["3"];
        assert!(kept.output.len() == STREAMED && kept.truncated);
    }

    fn output(event: &Event) -> Option<&str> {
        match event {
            Event::ToolResult { output, .. } => Some(output),
            _ => None,
        }
    }

    #[test]
    fn a_message_holds_what_was_streamed_and_the_rest() {
        let (mut scribe, mut live) = (Scribe::default(), Live::default());
        scribe.hear(&mut live, text("one "), 3);
        scribe.flush(&live);
        scribe.hear(&mut live, text("two"), 4);
        scribe.hear(&mut live, AgentUpdate::Thought(chunk("hm", None)), 4);
        assert_eq!(scribe.end_turn(&mut live), "one two");
        assert_eq!(kinds(&scribe.events), ["delta", "message", "thought"]);
        assert_eq!(
            scribe.events[1],
            Event::Message {
                text: "one two".to_owned()
            }
        );
    }

    #[test]
    fn another_message_of_the_agent_is_another_message() {
        let (mut scribe, mut live) = (Scribe::default(), Live::default());
        for (text, message) in [
            ("a", Some("1")),
            ("b", Some("1")),
            ("c", Some("2")),
            ("d", None),
        ] {
            scribe.hear(&mut live, AgentUpdate::Text(chunk(text, message)), 0);
        }
        assert_eq!(scribe.end_turn(&mut live), "ab\n\nc\n\nd");
        assert_eq!(kinds(&scribe.events), ["message"; 3]);
    }

    proptest! {
        /// Wherever the server dies between two flushes, the messages come to the same.
        #[test]
        fn a_crash_changes_no_message(
            lines in proptest::collection::vec("[a-c]{1,3}|T|t|M", 1..40),
            flushes in proptest::collection::vec(any::<bool>(), 40),
            crash in 0usize..40,
        ) {
            let say = |scribe: &mut Scribe, live: &mut Live, line: &str, n: usize, end: i64| match line {
                "T" => scribe.hear(live, tool(&n.to_string(), true, true, Some("o")), end),
                "t" => scribe.hear(live, AgentUpdate::Thought(chunk("q", None)), end),
                "M" => scribe.hear(live, AgentUpdate::Text(chunk("m", Some(&n.to_string()))), end),
                other => scribe.hear(live, text(other), end),
            };
            let whole = |events: &[Event]| -> Vec<Event> {
                events.iter().filter(|e| e.kind() != "delta").cloned().collect()
            };
            let (mut scribe, mut live) = (Scribe::default(), Live::default());
            for (n, line) in lines.iter().enumerate() {
                say(&mut scribe, &mut live, line, n, 0);
            }
            let undisturbed = scribe.end_turn(&mut live);
            let expected = whole(&scribe.events);

            // The same with commits: what is not committed at the crash is forgotten and read again.
            let (mut scribe, mut live) = (Scribe::default(), Live::default());
            let (mut log, mut committed) = (Vec::<Event>::new(), 0);
            let mut saved = live.clone();
            let mut n = 0;
            let mut crashed = false;
            while n < lines.len() {
                say(&mut scribe, &mut live, &lines[n], n, log.len() as i64);
                n += 1;
                if flushes[n - 1] || !scribe.events.is_empty() {
                    scribe.flush(&live);
                    log.append(&mut scribe.events);
                    saved = live.clone();
                    committed = n;
                }
                if n > crash && !crashed {
                    crashed = true;
                    live = saved.clone();
                    let told = live.block.as_ref().map_or(String::new(), |block| {
                        let deltas = log.iter().skip(usize::try_from(block.start).unwrap());
                        deltas.filter_map(|event| match event {
                            Event::Delta { text, .. } => Some(text.as_str()),
                            _ => None,
                        }).collect()
                    });
                    let said: Vec<String> = log.iter().filter_map(|event| match event {
                        Event::Message { text } => Some(text.clone()),
                        _ => None,
                    }).collect();
                    scribe = Scribe::resume(told, joined(&said));
                    n = committed;
                }
            }
            let text = scribe.end_turn(&mut live);
            log.append(&mut scribe.events);
            prop_assert_eq!(whole(&log), expected);
            prop_assert_eq!(text, undisturbed);
        }
    }
}
