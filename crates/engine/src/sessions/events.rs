//! `session_events`: the log, from wherever the reader is.

use std::time::Duration;

use oubliette_model::{Access, Mode, SessionId, Status, quoted};
use oubliette_store::{Logged, Session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::view::PendingRequest;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

pub(super) const USUAL: u32 = 200;
const MOST: u32 = 1000;
const LONGEST_WAIT: f64 = 50.0;
/// Most bytes of one page: a caller that asked for many large events still gets an answer.
pub(super) const PAGE: usize = 4 << 20;
/// Bytes of a page that is kept for others who wait for the same.
const SHARED: usize = 64 << 10;
const LIST: &str = "events:";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session, as `session_list` shows it.
    session_id: SessionId,
    /// Events after this index; from the start if absent or -1.
    since_index: Option<i64>,
    /// How many to return (1 to 1000; 200 if absent).
    max_events: Option<u32>,
    /// How long to wait for an event if there is none (up to 50 seconds).
    wait_seconds: Option<f64>,
    /// Whether to merge in the events of the sessions below this one, by time; paged by `cursor`.
    include_children: Option<bool>,
    /// With `include_children`: `cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Output {
    pub(crate) session_id: SessionId,
    pub(crate) status: Status,
    /// The index of the last event returned, or `since_index`; the next `since_index`.
    pub(crate) last_index: i64,
    /// The index after the last event there is.
    log_end: i64,
    /// Each with `index`, `session_id`, `timestamp`, `type` and what belongs to its type.
    pub(crate) events: Vec<Value>,
    /// Whether no turn runs or waits.
    pub(crate) completed: bool,
    failed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    pending_caller_requests: Vec<PendingRequest>,
    /// Events before this index were kept long enough and are gone, except the first.
    trimmed_before: i64,
    /// With `include_children`: where the next page begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Events;

impl Operation for Events {
    const NAME: &'static str = "session_events";
    const ABOUT: &'static str = "Read what happens in a session, from `since_index` on: prompts, text, tool calls and their \
         results, questions, and a `completion` at the end of every turn. With `wait_seconds` it \
         waits for the next event. What the agent calls of your own tools is in \
         `pending_caller_requests`.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::session(params.session_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let stop = async {
            tokio::select! {
                () = call.cancelled() => Stopped::Cancelled,
                // A wait does not outlive the right to it.
                () = engine.tokens().wait_until_ended(actor.token_id) => Stopped::Refused,
            }
        };
        let _listening = engine.callers().listen(actor, params.session_id).await;
        let page = tokio::select! {
            page = engine.events_asked_for(&params) => page?,
            why = stop => {
                return Err(match why {
                    Stopped::Cancelled => EngineError::Cancelled,
                    Stopped::Refused => EngineError::Refused { parameter: None },
                });
            }
        };
        if !page.pending_caller_requests.is_empty() {
            let session = engine.session_or_not(params.session_id).await?;
            engine.callers().mark_delivered(actor, &session).await?;
        }
        Ok(page)
    }
}

enum Stopped {
    Cancelled,
    Refused,
}

/// Where a reader is, and how much it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    from: From,
    limit: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Index(i64),
    /// A position among the events of a whole tree.
    Position(i64),
}

impl Place {
    /// After an index of one session's log.
    fn of(params: &Params) -> Result<Self> {
        let limit = match params.max_events.unwrap_or(USUAL) {
            limit @ 1..=MOST => limit,
            other => {
                return Err(EngineError::invalid(format!(
                    "`max_events` is {other}; it must be 1 to {MOST}"
                )));
            }
        };
        let tree = params.include_children.unwrap_or(false);
        let from = match (tree, &params.cursor) {
            (false, Some(_)) => {
                return Err(EngineError::invalid(
                    "`cursor` goes with `include_children`; without it use `since_index`",
                ));
            }
            (true, Some(cursor)) => {
                let position = cursor.strip_prefix(LIST).and_then(|at| at.parse().ok());
                From::Position(position.ok_or_else(|| {
                    EngineError::invalid(format!(
                        "{} is not a cursor of `session_events`; use `cursor` of the page before",
                        quoted(cursor)
                    ))
                })?)
            }
            (true, None) => From::Position(0),
            (false, None) => From::Index(params.since_index.unwrap_or(-1).max(-1)),
        };
        Ok(Self { from, limit })
    }
}

fn wait(seconds: Option<f64>) -> Result<Duration> {
    let seconds = seconds.unwrap_or(0.0);
    if !(0.0..=LONGEST_WAIT).contains(&seconds) {
        return Err(EngineError::invalid(format!(
            "`wait_seconds` is {seconds}; it must be 0 to {LONGEST_WAIT}"
        )));
    }
    Ok(Duration::from_secs_f64(seconds))
}

impl Params {
    pub(super) fn session(&self) -> SessionId {
        self.session_id
    }
}

impl Engine {
    /// Reads the page that somebody asks for.
    pub(crate) async fn events_asked_for(&self, params: &Params) -> Result<Output> {
        let place = Place::of(params)?;
        let wait = wait(params.wait_seconds)?;
        self.read_events(params.session_id, place, wait).await
    }

    /// Reads a page of a session's log, waiting for one if there is nothing yet.
    async fn read_events(&self, id: SessionId, place: Place, wait: Duration) -> Result<Output> {
        let deadline = tokio::time::Instant::now() + wait;
        let root = match place.from {
            From::Index(_) => None,
            From::Position(_) => Some(self.session_or_not(id).await?.root_id),
        };
        let watch = &self.sessions().watch;
        let listen = || match root {
            None => watch.session(id),
            Some(root) => watch.tree(root),
        };
        // Before the first look: what comes between a look and the wait is heard.
        let mut news = listen();
        let (mut woken, mut over) = (false, false);
        loop {
            let ring = news.borrow_and_update().clone();
            if woken && let Some(page) = ring.page(place) {
                return Ok(page);
            }
            let found = match place.from {
                From::Index(since) => self.store().events(id, since, place.limit, PAGE).await?,
                From::Position(after) => {
                    self.store()
                        .tree_events(id, after, place.limit, PAGE)
                        .await?
                }
            };
            over = over || tokio::time::Instant::now() >= deadline;
            if !found.is_empty() || over {
                let bytes: usize = found.iter().map(|event| event.body.len()).sum();
                // Read after the events: a page never shows an older status than its events.
                let session = self.session_or_not(id).await?;
                let page = self.page(session, place, found).await?;
                let small = bytes <= SHARED && page.pending_caller_requests.is_empty();
                if woken && small {
                    ring.keep(place, &page);
                }
                return Ok(page);
            }
            woken = false;
            tokio::select! {
                changed = news.changed() => match changed {
                    Ok(()) => woken = true,
                    // The watch was given up between two readers; there is a new one.
                    Err(_) => news = listen(),
                },
                () = tokio::time::sleep_until(deadline) => {}
                () = self.stopping() => over = true,
            }
        }
    }

    async fn session_or_not(&self, id: SessionId) -> Result<Session> {
        let session = self.store().session(id).await?;
        session.ok_or_else(|| Self::session_not_found(id))
    }

    async fn page(&self, session: Session, place: Place, found: Vec<Logged>) -> Result<Output> {
        let pending_caller_requests = self.callers().pending_requests(&session).await?;
        let queued = self.store().queued_messages(session.id).await?;
        let resting = session.status == Status::Idle || session.status.is_ended();
        let completed = resting && (queued == 0 || session.status.is_ended());
        let (last_index, cursor) = match place.from {
            From::Index(since) => (found.last().map_or(since, |event| event.index), None),
            From::Position(after) => {
                let own = found
                    .iter()
                    .rev()
                    .find(|event| event.session_id == session.id);
                let position = found.last().map_or(after, |event| event.position);
                let last = own.map_or(session.log_end - 1, |event| event.index);
                (last, Some(format!("{LIST}{position}")))
            }
        };
        Ok(Output {
            session_id: session.id,
            status: session.status,
            last_index,
            log_end: session.log_end,
            events: found.into_iter().map(envelope).collect(),
            completed,
            failed: session.status == Status::Failed,
            error: session.error,
            pending_caller_requests,
            trimmed_before: session.trimmed_before,
            cursor,
        })
    }
}

/// An event as readers see it.
pub(crate) fn envelope(logged: Logged) -> Value {
    let mut event = Map::new();
    event.insert("index".to_owned(), logged.index.into());
    event.insert(
        "session_id".to_owned(),
        logged.session_id.to_string().into(),
    );
    event.insert("timestamp".to_owned(), logged.at.to_string().into());
    if let Ok(Value::Object(body)) = serde_json::from_str(&logged.body) {
        event.extend(body);
    }
    Value::Object(event)
}
