//! Whether the caller of a session is there: it listens, it has just asked, or it was given something to
//! answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oubliette_model::SessionId;
use oubliette_store::Session;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{Actor, CallerSettings, Engine};

/// Sessions and lines that are remembered; past it the longest unseen go.
const REMEMBERED: usize = 50_000;
/// Lines of one session; past it a closed one goes, or else the one named longest ago.
const LINES: usize = 16;

/// Whether somebody is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum There {
    Yes,
    /// For as long as nothing happens.
    Until(Instant),
    No,
}

#[derive(Debug, Clone)]
pub(crate) struct Presence {
    known: Arc<Mutex<Known>>,
    changed: Arc<watch::Sender<()>>,
}

#[derive(Debug)]
struct Known {
    /// A server start counts as a call of every caller.
    started: Instant,
    sessions: HashMap<SessionId, Seen>,
    lines: HashMap<String, Line>,
}

#[derive(Debug, Default)]
struct Seen {
    /// How often its caller waits for it or is subscribed to it.
    listening: usize,
    listened: Option<Instant>,
    called: Option<Instant>,
    /// What it has to answer, and until when.
    handed: HashMap<Uuid, Instant>,
    /// Where it is told of events, the one named last at the end.
    lines: Vec<String>,
}

/// A stream to a caller.
#[derive(Debug)]
struct Line {
    open: usize,
    closed: Instant,
}

impl Default for Presence {
    fn default() -> Self {
        Self {
            known: Arc::new(Mutex::new(Known {
                started: Instant::now(),
                sessions: HashMap::new(),
                lines: HashMap::new(),
            })),
            changed: Arc::new(watch::Sender::new(())),
        }
    }
}

impl Presence {
    /// Hears from now on whenever somebody may be there for less long than before. Who is there for
    /// longer is seen when its time would have been over.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn change(&self, id: SessionId, change: impl FnOnce(&mut Seen)) {
        self.change_by_lines(id, |seen, _| {
            change(seen);
            false
        });
    }

    /// `change` says whether something was taken away.
    fn change_by_lines(
        &self,
        id: SessionId,
        change: impl FnOnce(&mut Seen, &HashMap<String, Line>) -> bool,
    ) {
        let mut known = self.known.lock();
        if known.sessions.len() >= REMEMBERED && !known.sessions.contains_key(&id) {
            known.make_room();
        }
        let Known {
            sessions, lines, ..
        } = &mut *known;
        let less = change(sessions.entry(id).or_default(), lines);
        drop(known);
        if less {
            self.changed.send_replace(());
        }
    }

    /// The caller has named the session in a call.
    pub(crate) fn called(&self, id: SessionId) {
        self.change(id, |seen| seen.called = Some(Instant::now()));
    }

    /// The caller was given something to answer until then.
    pub(super) fn handed(&self, id: SessionId, request: Uuid, left: Duration) {
        let until = Instant::now() + left;
        self.change(id, |seen| {
            seen.handed.insert(request, until);
        });
    }

    /// There is nothing more to answer about it.
    pub(super) fn settled(&self, id: SessionId, request: Uuid) {
        self.change_by_lines(id, |seen, _| seen.handed.remove(&request).is_some());
    }

    /// From now on the session's events go there too.
    fn bind(&self, id: SessionId, line: &str) {
        self.change_by_lines(id, |seen, lines| {
            seen.lines.retain(|bound| bound != line);
            let full = seen.lines.len() >= LINES;
            if full {
                let is_closed = |bound: &String| lines.get(bound).is_none_or(|line| line.open == 0);
                let closed = seen.lines.iter().position(is_closed);
                seen.lines.remove(closed.unwrap_or(0));
            }
            seen.lines.push(line.to_owned());
            full
        });
    }

    fn listen(&self, id: SessionId) -> Listening {
        self.change(id, |seen| seen.listening += 1);
        Listening(Some((self.clone(), id)))
    }

    fn open(&self, line: &str) -> OpenLine {
        let now = Instant::now();
        let mut known = self.known.lock();
        known.lines.retain(|_, line| {
            line.open > 0 || now.duration_since(line.closed) < Duration::from_secs(3600)
        });
        let entry = known.lines.entry(line.to_owned()).or_insert(Line {
            open: 0,
            closed: now,
        });
        entry.open += 1;
        drop(known);
        OpenLine {
            presence: self.clone(),
            line: line.to_owned(),
        }
    }

    /// Whether the caller of a session is there.
    pub(super) fn of(&self, id: SessionId, settings: &CallerSettings) -> There {
        let now = Instant::now();
        let grace = Duration::from_secs(settings.grace_seconds);
        let presence = Duration::from_secs(settings.presence_seconds);
        let known = self.known.lock();
        let nobody = Seen::default();
        let seen = known.sessions.get(&id).unwrap_or(&nobody);
        let lines = || seen.lines.iter().filter_map(|line| known.lines.get(line));
        if seen.listening > 0 || lines().any(|line| line.open > 0) {
            return There::Yes;
        }
        let ends = [
            Some(seen.called.unwrap_or(known.started) + presence),
            seen.listened.map(|at| at + grace),
            lines().map(|line| line.closed + grace).max(),
            seen.handed.values().max().copied(),
        ];
        match ends.into_iter().flatten().max() {
            Some(end) if end > now => There::Until(end),
            _ => There::No,
        }
    }
}

impl Known {
    fn make_room(&mut self) {
        let hour_ago = Instant::now().checked_sub(Duration::from_secs(3600));
        self.sessions.retain(|_, seen| {
            let recent = [seen.called, seen.listened].into_iter().flatten().max();
            seen.listening > 0 || recent.is_some_and(|at| hour_ago.is_none_or(|then| at > then))
        });
    }
}

/// Held while a caller listens to a session.
#[derive(Debug, Default)]
pub struct Listening(Option<(Presence, SessionId)>);

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some((presence, id)) = &self.0 {
            presence.change_by_lines(*id, |seen, _| {
                seen.listening = seen.listening.saturating_sub(1);
                seen.listened = Some(Instant::now());
                true
            });
        }
    }
}

/// Held while a stream to a caller is open.
#[derive(Debug)]
pub struct OpenLine {
    presence: Presence,
    line: String,
}

impl Drop for OpenLine {
    fn drop(&mut self) {
        let mut known = self.presence.known.lock();
        if let Some(line) = known.lines.get_mut(&self.line) {
            line.open = line.open.saturating_sub(1);
            line.closed = Instant::now();
        }
        drop(known);
        self.presence.changed.send_replace(());
    }
}

impl Engine {
    /// Notes that somebody listens to a session, if it is the session's caller.
    pub async fn listen_to(&self, actor: &Actor, id: SessionId) -> Listening {
        match self.store().session(id).await {
            Ok(Some(session)) if session.owner_id == Some(actor.token_id) => {
                self.callers().presence.listen(id)
            }
            _ => Listening::default(),
        }
    }

    /// Notes that a stream is open on which callers are told of events.
    pub fn open_line(&self, line: &str) -> OpenLine {
        self.callers().presence.open(line)
    }

    /// Notes on which stream the caller of a session is told of its events.
    pub fn bind_line(&self, id: SessionId, line: &str) {
        self.callers().presence.bind(id, line);
    }

    /// Notes a call of a session's caller, if it is one.
    pub(crate) fn note_call(&self, actor: &Actor, session: &Session) {
        if session.owner_id == Some(actor.token_id) {
            self.callers().presence.called(session.id);
        }
    }

    /// How long until then.
    pub(super) fn left(&self, until: Timestamp) -> Duration {
        let left = until.duration_since(self.now());
        Duration::try_from(left).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_caller_is_there_while_it_listens_and_a_little_longer() {
        let settings = CallerSettings::default();
        let presence = Presence::default();
        let id = SessionId::new(Uuid::from_u128(1));
        let there = || presence.of(id, &settings);
        let after = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        // A server start counts as a call.
        assert!(matches!(there(), There::Until(_)));
        after(31).await;
        assert_eq!(there(), There::No);

        let (one, other) = (presence.listen(id), presence.listen(id));
        assert_eq!(there(), There::Yes);
        drop(one);
        after(100).await;
        assert_eq!(there(), There::Yes);
        drop(other);
        after(2).await;
        assert!(matches!(there(), There::Until(_)));
        after(2).await;
        assert_eq!(there(), There::No);

        let stream = presence.open("mcp");
        assert_eq!(there(), There::No);
        presence.bind(id, "mcp");
        assert_eq!(there(), There::Yes);
        drop(stream);
        after(2).await;
        let again = presence.open("mcp");
        after(60).await;
        assert_eq!(there(), There::Yes);
        drop(again);
        after(4).await;
        assert_eq!(there(), There::No);

        let (first, second) = (presence.open("mcp"), presence.open("other"));
        presence.bind(id, "other");
        drop(second);
        after(60).await;
        assert_eq!(there(), There::Yes, "its first stream is open");
        for number in 0..2 * LINES {
            presence.bind(id, &format!("closed {number}"));
        }
        assert_eq!(presence.known.lock().sessions[&id].lines.len(), LINES);
        assert_eq!(there(), There::Yes, "an open stream outlasts closed ones");
        drop(first);
        after(2).await;
        assert!(matches!(there(), There::Until(_)));
        after(2).await;
        assert_eq!(there(), There::No);

        presence.called(id);
        after(29).await;
        assert!(matches!(there(), There::Until(_)));
        let request = Uuid::from_u128(2);
        presence.handed(id, request, Duration::from_secs(50));
        after(40).await;
        assert!(matches!(there(), There::Until(_)));
        after(11).await;
        assert_eq!(there(), There::No);
        presence.handed(id, request, Duration::from_secs(50));
        assert!(matches!(there(), There::Until(_)));
        presence.settled(id, request);
        assert_eq!(there(), There::No);
    }
}
