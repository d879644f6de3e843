//! What was said in a session, for an agent that does not remember it.

use std::collections::{BTreeMap, HashSet};

use oubliette_model::{Event, Status};
use oubliette_store::Session;

use super::Sessions;
use crate::Result;

/// A longer transcript might not fit into the agent's context; its start is cut off.
const MAX_TRANSCRIPT_BYTES: usize = 100 << 10;
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
        let first = self.first_turn(session).await?;
        let mut turn = first;
        let mut text = String::new();
        self.for_each_event(session, |event| {
            let is_wanted = wanted.as_ref().is_none_or(|wanted| wanted.contains(&turn));
            match event {
                Event::Forked { transcript, .. } => text.push_str(&transcript),
                Event::Prompt { text: said, .. } if is_wanted => {
                    text.push_str(&format!("User: {said}\n\n"));
                }
                Event::Message { text: said } if is_wanted => {
                    text.push_str(&format!("You: {said}\n\n"));
                }
                Event::Completion { .. } => turn += 1,
                _ => {}
            }
            if text.len() > 2 * MAX_TRANSCRIPT_BYTES {
                text = end_of(&text).to_owned();
            }
        })
        .await?;
        Ok(end_of(&text).to_owned())
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

fn end_of(text: &str) -> &str {
    let start = text.len().saturating_sub(MAX_TRANSCRIPT_BYTES);
    &text[text.floor_char_boundary(start)..]
}
