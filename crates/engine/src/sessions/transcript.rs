//! What was said in a session, for an agent that does not remember it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet, VecDeque};

use oubliette_model::{Event, Status};
use oubliette_store::Session;
use serde_json::Value;

use super::Sessions;
use crate::Result;

/// A longer transcript might not fit into the agent's context: the oldest uses of tools are left out, then the
/// oldest words.
const MAX_TRANSCRIPT_BYTES: usize = 100 << 10;
/// How much of the input and of the output of a tool is kept, from its start and from its end.
const MAX_TOOL_TEXT_BYTES: usize = 1000;
const PAGE_EVENTS: u32 = 1000;
const PAGE_BYTES: usize = 4 << 20;

impl Sessions<'_> {
    /// The conversation of a session as it is now; empty if there is none.
    pub(crate) async fn transcript(self, session: &Session) -> Result<String> {
        self.transcript_of(session, None).await
    }

    /// The conversation as it was after a turn.
    pub(crate) async fn transcript_until(self, session: &Session, turn: u32) -> Result<String> {
        self.transcript_of(session, Some(turn)).await
    }

    async fn transcript_of(self, session: &Session, until: Option<u32>) -> Result<String> {
        // Only a session that was set back has turns that its agent must not hear of.
        let is_whole = until.is_none() && !session.choices.starts_from_transcript;
        let wanted = if is_whole {
            None
        } else {
            Some(self.turns_of_conversation(session, until).await?)
        };
        let mut turn = self.first_turn(session).await?;
        let mut transcript = Transcript::default();
        self.for_each_event(session, |event| {
            let is_wanted = wanted.as_ref().is_none_or(|wanted| wanted.contains(&turn));
            match event {
                Event::Completion { .. } => turn += 1,
                Event::Forked { .. } => transcript.add(&event),
                _ if is_wanted => transcript.add(&event),
                _ => {}
            }
        })
        .await?;
        Ok(transcript.into_text())
    }

    /// The turns that led to the state after a turn, or to the state now: each turn continues the one
    /// before it, or the one to which the session was set back.
    async fn turns_of_conversation(
        self,
        session: &Session,
        until: Option<u32>,
    ) -> Result<HashSet<u32>> {
        let mut turn = self.first_turn(session).await?;
        let mut last = turn - 1;
        let mut before: BTreeMap<u32, u32> = BTreeMap::new();
        self.for_each_event(session, |event| match event {
            Event::Completion { .. } => {
                before.insert(turn, last);
                last = turn;
                turn += 1;
            }
            Event::Rewound { turn, what, .. } if what.has_conversation() => last = turn,
            _ => {}
        })
        .await?;
        let mut wanted = HashSet::new();
        let mut current = match until {
            Some(until) => until,
            None => {
                // What was said in a turn that has not ended.
                wanted.insert(turn);
                last
            }
        };
        while let Some(previous) = before.get(&current) {
            wanted.insert(current);
            current = *previous;
        }
        Ok(wanted)
    }

    /// The number of the first turn of which the log has something: it may be trimmed. Each turn has one
    /// completion.
    async fn first_turn(self, session: &Session) -> Result<u32> {
        if session.trimmed_before == 0 {
            return Ok(1);
        }
        let mut ended = 0;
        self.for_each_event(session, |event| {
            ended += u32::from(matches!(event, Event::Completion { .. }));
        })
        .await?;
        let in_turn = matches!(session.status, Status::Running | Status::Waiting);
        let all = session.turns.saturating_sub(u32::from(in_turn));
        Ok(all.saturating_sub(ended) + 1)
    }

    async fn for_each_event(self, session: &Session, mut handle: impl FnMut(Event)) -> Result<()> {
        let mut since = -1;
        loop {
            let store = self.engine.store();
            let page = store
                .events(session.id, since, PAGE_EVENTS, PAGE_BYTES)
                .await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            since = last.index;
            for event in page {
                if let Ok(event) = serde_json::from_str(&event.body) {
                    handle(event);
                }
            }
        }
    }
}

/// What was said and done, within [`MAX_TRANSCRIPT_BYTES`] or a little more while it is made.
#[derive(Debug, Default)]
struct Transcript {
    parts: VecDeque<Part>,
    bytes: usize,
}

#[derive(Debug)]
struct Part {
    text: String,
    is_tool: bool,
}

impl Transcript {
    fn add(&mut self, event: &Event) {
        let (text, is_tool) = match event {
            Event::Forked { transcript, .. } => (transcript.clone(), false),
            Event::Prompt { text, .. } => (format!("User: {text}\n\n"), false),
            Event::Message { text } => (format!("You: {text}\n\n"), false),
            Event::ToolCall { title, input, .. } => {
                let input = match input {
                    Value::Null => String::new(),
                    input => format!(" {}", shortened(&input.to_string())),
                };
                (format!("You used a tool: {title}{input}\n\n"), true)
            }
            Event::ToolResult { status, output, .. } => {
                let output = shortened(output.trim_end());
                (format!("Output of the tool ({status}): {output}\n\n"), true)
            }
            _ => return,
        };
        self.bytes += text.len();
        self.parts.push_back(Part { text, is_tool });
        if self.bytes > 2 * MAX_TRANSCRIPT_BYTES {
            self.trim();
        }
    }

    /// Leaves out the oldest parts until the rest fits.
    fn trim(&mut self) {
        let mut excess = self.bytes.saturating_sub(MAX_TRANSCRIPT_BYTES);
        self.parts.retain(|part| {
            let is_kept = !part.is_tool || excess == 0;
            if !is_kept {
                excess = excess.saturating_sub(part.text.len());
            }
            is_kept
        });
        self.bytes = self.parts.iter().map(|part| part.text.len()).sum();
        while self.bytes > MAX_TRANSCRIPT_BYTES
            && let Some(mut part) = self.parts.pop_front()
        {
            self.bytes -= part.text.len();
            let room = MAX_TRANSCRIPT_BYTES.saturating_sub(self.bytes);
            if room > 0 {
                let start = part.text.len().saturating_sub(room);
                part.text.drain(..part.text.ceil_char_boundary(start));
                self.bytes += part.text.len();
                self.parts.push_front(part);
            }
        }
    }

    fn into_text(mut self) -> String {
        self.trim();
        self.parts.into_iter().map(|part| part.text).collect()
    }
}

/// The start and the end of a text that is too long.
fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= 2 * MAX_TOOL_TEXT_BYTES {
        return text.into();
    }
    let start = &text[..text.floor_char_boundary(MAX_TOOL_TEXT_BYTES)];
    let end = &text[text.ceil_char_boundary(text.len() - MAX_TOOL_TEXT_BYTES)..];
    let left_out = text.len() - start.len() - end.len();
    format!("{start} […{left_out} bytes left out…] {end}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Event {
        Event::Message {
            text: text.to_owned(),
        }
    }

    fn result(output: String) -> Event {
        Event::ToolResult {
            tool_call_id: "1".to_owned(),
            status: "completed".to_owned(),
            output,
            truncated: false,
        }
    }

    #[test]
    fn output_of_tools_is_shortened_and_left_out_before_words_are() {
        let mut transcript = Transcript::default();
        transcript.add(&message("the first word"));
        transcript.add(&result(format!("begin{}end", "é".repeat(100_000))));
        let text = transcript.into_text();
        assert!(text.starts_with("You: the first word\n\nOutput of the tool (completed): begin"));
        assert!(text.ends_with("end\n\n") && text.len() < 3000, "{text}");

        let mut transcript = Transcript::default();
        transcript.add(&message("the first word"));
        for number in 0..1000 {
            transcript.add(&result(format!("{number} {}", "x".repeat(1500))));
        }
        let text = transcript.into_text();
        assert!(text.starts_with("You: the first word\n\n"));
        assert!(text.contains("999 xx") && !text.contains(": 0 xx"));
        assert!(text.len() <= MAX_TRANSCRIPT_BYTES);
        assert!(text.len() > MAX_TRANSCRIPT_BYTES - 2000);

        let mut transcript = Transcript::default();
        for number in 0..1000 {
            transcript.add(&message(&format!("é{number} {}", "é".repeat(1000))));
        }
        let text = transcript.into_text();
        assert!(text.contains("é999 ") && !text.contains("é1 "));
        assert!(text.len() <= MAX_TRANSCRIPT_BYTES);
    }
}
