//! Whether the caller of a session is connected: it listens, it has called recently, or it has a
//! request to respond to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oubliette_model::{SessionId, TokenId, owns_session};
use oubliette_store::Session;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::Callers;
use crate::{Actor, CallerSettings};

/// Sessions whose callers are no longer connected are forgotten when this many are tracked, and then each
/// time the number has doubled.
const MIN_PRUNED_SESSIONS: usize = 256;
/// Past this number a closed stream is forgotten, or else the one bound longest ago.
const MAX_STREAMS_PER_SESSION: usize = 16;
/// Closed streams are forgotten after this time.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// Whether a caller is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connected {
    Yes,
    /// Until then, unless the caller is seen again.
    Until(Instant),
    No,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Presence {
    tracked: Arc<Mutex<Tracked>>,
    changed: Arc<watch::Sender<()>>,
}

#[derive(Debug)]
struct Tracked {
    /// A server start counts as a call of every caller.
    started: Instant,
    sessions: HashMap<SessionId, CallerActivity>,
    streams: HashMap<String, StreamState>,
    /// How many tracked sessions are the next occasion to forget some.
    prune_at: usize,
}

impl Default for Tracked {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            sessions: HashMap::new(),
            streams: HashMap::new(),
            prune_at: MIN_PRUNED_SESSIONS,
        }
    }
}

#[derive(Debug, Default)]
struct CallerActivity {
    /// How many calls and subscriptions of the caller wait for events.
    listeners: usize,
    last_listened: Option<Instant>,
    last_called: Option<Instant>,
    /// The requests that the caller has received, with their deadlines.
    delivered: HashMap<Uuid, Instant>,
    /// The streams that the session's events go to, the one bound last at the end.
    streams: Vec<String>,
}

#[derive(Debug)]
struct StreamState {
    open: usize,
    closed_at: Instant,
}

impl Presence {
    /// Wakes the receiver whenever a caller may be connected for less long than before. A longer
    /// time is noticed when the shorter one would have ended.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn extend(&self, id: SessionId, change: impl FnOnce(&mut CallerActivity)) {
        self.change(id, |activity, _| {
            change(activity);
            false
        });
    }

    /// `change` returns whether it may have shortened the time that the caller is connected.
    fn change(
        &self,
        id: SessionId,
        change: impl FnOnce(&mut CallerActivity, &HashMap<String, StreamState>) -> bool,
    ) {
        let mut tracked = self.tracked.lock();
        let Tracked {
            sessions, streams, ..
        } = &mut *tracked;
        let shortened = change(sessions.entry(id).or_default(), streams);
        drop(tracked);
        if shortened {
            self.changed.send_replace(());
        }
    }

    fn record_call(&self, id: SessionId, settings: &CallerSettings) {
        self.tracked.lock().prune(settings);
        self.extend(id, |activity| activity.last_called = Some(Instant::now()));
    }

    /// Records that the caller has received a request, which it has `left` to respond to.
    pub(super) fn record_delivered(&self, id: SessionId, request: Uuid, left: Duration) {
        let until = Instant::now() + left;
        self.extend(id, |activity| {
            activity.delivered.insert(request, until);
        });
    }

    /// Records that a request has ended.
    pub(super) fn remove_delivered(&self, id: SessionId, request: Uuid) {
        self.change(id, |activity, _| {
            activity.delivered.remove(&request).is_some()
        });
    }

    /// Adds a stream that the session's events go to.
    fn bind(&self, id: SessionId, stream: &str) {
        self.change(id, |activity, streams| {
            activity.streams.retain(|bound| bound != stream);
            let full = activity.streams.len() >= MAX_STREAMS_PER_SESSION;
            if full {
                let is_closed =
                    |bound: &String| streams.get(bound).is_none_or(|stream| stream.open == 0);
                let closed = activity.streams.iter().position(is_closed);
                activity.streams.remove(closed.unwrap_or(0));
            }
            activity.streams.push(stream.to_owned());
            full
        });
    }

    fn listen(&self, id: SessionId) -> ListeningGuard {
        self.extend(id, |activity| activity.listeners += 1);
        ListeningGuard(Some((self.clone(), id)))
    }

    fn open(&self, stream: &str) -> OpenStream {
        let now = Instant::now();
        let mut tracked = self.tracked.lock();
        tracked.streams.retain(|_, stream| {
            stream.open > 0 || now.duration_since(stream.closed_at) < FORGET_AFTER
        });
        let fresh = StreamState {
            open: 0,
            closed_at: now,
        };
        let state = tracked.streams.entry(stream.to_owned()).or_insert(fresh);
        state.open += 1;
        drop(tracked);
        OpenStream {
            presence: self.clone(),
            stream: stream.to_owned(),
        }
    }

    /// Whether the caller of a session is connected.
    pub(super) fn connected(&self, id: SessionId, settings: &CallerSettings) -> Connected {
        let tracked = self.tracked.lock();
        let unseen = CallerActivity::default();
        let activity = tracked.sessions.get(&id).unwrap_or(&unseen);
        tracked.connected(activity, settings)
    }

    /// How many sessions are tracked.
    pub(super) fn count(&self) -> usize {
        self.tracked.lock().sessions.len()
    }
}

impl Tracked {
    fn connected(&self, activity: &CallerActivity, settings: &CallerSettings) -> Connected {
        let now = Instant::now();
        let grace = Duration::from_secs(settings.grace_seconds);
        let presence = Duration::from_secs(settings.presence_seconds);
        let streams = || {
            let names = activity.streams.iter();
            names.filter_map(|name| self.streams.get(name))
        };
        if activity.listeners > 0 || streams().any(|stream| stream.open > 0) {
            return Connected::Yes;
        }
        let ends = [
            Some(activity.last_called.unwrap_or(self.started) + presence),
            activity.last_listened.map(|at| at + grace),
            streams().map(|stream| stream.closed_at + grace).max(),
            activity.delivered.values().max().copied(),
        ];
        match ends.into_iter().flatten().max() {
            Some(end) if end > now => Connected::Until(end),
            _ => Connected::No,
        }
    }

    /// Forgets sessions whose callers are not connected, if there are many. Nobody can tell them from
    /// sessions whose callers were never seen, unless a stream of theirs may be opened again.
    fn prune(&mut self, settings: &CallerSettings) {
        if self.sessions.len() < self.prune_at {
            return;
        }
        let mut sessions = std::mem::take(&mut self.sessions);
        sessions.retain(|_, activity| {
            let mut streams = activity.streams.iter();
            self.connected(activity, settings) != Connected::No
                || streams.any(|name| self.streams.contains_key(name))
        });
        sessions.shrink_to(2 * sessions.len());
        self.prune_at = MIN_PRUNED_SESSIONS.max(2 * sessions.len());
        self.sessions = sessions;
    }
}

/// Held while a caller waits for events of a session. Empty for others than the caller.
#[derive(Debug, Default)]
pub struct ListeningGuard(Option<(Presence, SessionId)>);

impl Drop for ListeningGuard {
    fn drop(&mut self) {
        if let Some((presence, id)) = &self.0 {
            presence.change(*id, |activity, _| {
                activity.listeners = activity.listeners.saturating_sub(1);
                activity.last_listened = Some(Instant::now());
                true
            });
        }
    }
}

/// Held while a stream to a caller is open.
#[derive(Debug)]
pub struct OpenStream {
    presence: Presence,
    stream: String,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut tracked = self.presence.tracked.lock();
        if let Some(stream) = tracked.streams.get_mut(&self.stream) {
            stream.open = stream.open.saturating_sub(1);
            stream.closed_at = Instant::now();
        }
        drop(tracked);
        self.presence.changed.send_replace(());
    }
}

impl Callers<'_> {
    /// Records that an actor waits for events of a session, if it is the session's caller.
    pub async fn listen(self, actor: &Actor, id: SessionId) -> ListeningGuard {
        match self.engine.store().session(id).await {
            Ok(Some(session)) if owns_session(session.owner_id, actor.token_id) => {
                self.state().presence.listen(id)
            }
            _ => ListeningGuard::default(),
        }
    }

    /// Records that a stream is open that carries events to callers.
    pub fn open_stream(self, stream: &str) -> OpenStream {
        self.state().presence.open(stream)
    }

    /// Records that a stream carries the events of a session to its caller.
    pub fn bind_stream(self, id: SessionId, stream: &str) {
        self.state().presence.bind(id, stream);
    }

    /// Records a call about a session, if its caller made it.
    pub(crate) fn record_call(self, token: TokenId, session: &Session) {
        if owns_session(session.owner_id, token) {
            let settings = &self.engine.settings().caller_tools;
            self.state().presence.record_call(session.id, settings);
        }
    }

    /// How many sessions are tracked.
    pub(crate) fn count_tracked(self) -> usize {
        self.state().presence.count()
    }

    pub(super) fn time_left(self, deadline: Timestamp) -> Duration {
        let left = deadline.duration_since(self.engine.now());
        Duration::try_from(left).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_caller_is_connected_while_it_listens_and_for_a_grace_period() {
        let settings = CallerSettings::default();
        let presence = Presence::default();
        let id = SessionId::new(Uuid::from_u128(1));
        let connected = || presence.connected(id, &settings);
        let after = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        // A server start counts as a call.
        assert!(matches!(connected(), Connected::Until(_)));
        after(31).await;
        assert_eq!(connected(), Connected::No);

        let (one, other) = (presence.listen(id), presence.listen(id));
        assert_eq!(connected(), Connected::Yes);
        drop(one);
        after(100).await;
        assert_eq!(connected(), Connected::Yes);
        drop(other);
        after(2).await;
        assert!(matches!(connected(), Connected::Until(_)));
        after(2).await;
        assert_eq!(connected(), Connected::No);

        let stream = presence.open("mcp");
        assert_eq!(connected(), Connected::No);
        presence.bind(id, "mcp");
        assert_eq!(connected(), Connected::Yes);
        drop(stream);
        after(2).await;
        let again = presence.open("mcp");
        after(60).await;
        assert_eq!(connected(), Connected::Yes);
        drop(again);
        after(4).await;
        assert_eq!(connected(), Connected::No);

        let (first, second) = (presence.open("mcp"), presence.open("other"));
        presence.bind(id, "other");
        drop(second);
        after(60).await;
        assert_eq!(connected(), Connected::Yes, "its first stream is open");
        for number in 0..2 * MAX_STREAMS_PER_SESSION {
            presence.bind(id, &format!("closed {number}"));
        }
        assert_eq!(
            presence.tracked.lock().sessions[&id].streams.len(),
            MAX_STREAMS_PER_SESSION
        );
        assert_eq!(
            connected(),
            Connected::Yes,
            "an open stream outlasts closed ones"
        );
        drop(first);
        after(2).await;
        assert!(matches!(connected(), Connected::Until(_)));
        after(2).await;
        assert_eq!(connected(), Connected::No);

        presence.record_call(id, &settings);
        after(29).await;
        assert!(matches!(connected(), Connected::Until(_)));
        let request = Uuid::from_u128(2);
        presence.record_delivered(id, request, Duration::from_secs(50));
        after(40).await;
        assert!(matches!(connected(), Connected::Until(_)));
        after(11).await;
        assert_eq!(connected(), Connected::No);
        presence.record_delivered(id, request, Duration::from_secs(50));
        assert!(matches!(connected(), Connected::Until(_)));
        presence.remove_delivered(id, request);
        assert_eq!(connected(), Connected::No);
    }
    #[tokio::test(start_paused = true)]
    async fn absent_callers_are_forgotten() {
        let settings = CallerSettings::default();
        let presence = Presence::default();
        let listened = SessionId::new(Uuid::from_u128(u128::MAX));
        let bound = SessionId::new(Uuid::from_u128(u128::MAX - 1));
        let listening = presence.listen(listened);
        drop(presence.open("mcp"));
        presence.bind(bound, "mcp");
        for n in 0..20 * MIN_PRUNED_SESSIONS as u128 {
            tokio::time::advance(Duration::from_secs(1)).await;
            presence.record_call(SessionId::new(Uuid::from_u128(n)), &settings);
            assert!(presence.count() <= 2 * MIN_PRUNED_SESSIONS);
        }
        assert_eq!(presence.connected(listened, &settings), Connected::Yes);
        drop(listening);
        let _again = presence.open("mcp");
        assert_eq!(presence.connected(bound, &settings), Connected::Yes);
    }
}
