//! Reads a session's log page by page and waits for new events: the one loop behind `session_events`
//! and behind the events that are pushed to clients.

use std::time::Duration;

use oubliette_model::{ProjectId, ResourceUri, SessionId, Status};
use oubliette_store::{Session, StoredEvent};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::event_filter::EventFilter;
use super::subscriptions::Subscription;
use super::view::PendingRequest;
use super::waiting::is_settled;
use crate::files::is_disk_full;
use crate::long_text::head_and_tail;
use crate::{Actor, Engine, Result};

pub(super) const DEFAULT_PAGE_EVENTS: u32 = 200;
/// A page with fewer events than requested is better than a response that is too large.
const MAX_PAGE_BYTES: usize = 4 << 20;
/// Larger pages are not shared with other readers.
const MAX_SHARED_PAGE_BYTES: usize = 64 << 10;
const TREE_CURSOR_PREFIX: &str = "events:";

/// A position in a log. Pages begin after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogCursor {
    /// An index in one session's log.
    Session(i64),
    /// A position among the events of a session and those below it.
    Tree { root: SessionId, position: i64 },
}

impl LogCursor {
    /// The position that the text of a tree cursor stands for.
    pub(super) fn parse_tree_position(text: &str) -> Option<i64> {
        text.strip_prefix(TREE_CURSOR_PREFIX)?.parse().ok()
    }
}

/// What a page is read by. Readers with equal requests get equal pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageRequest {
    session: SessionId,
    cursor: LogCursor,
    filter: EventFilter,
    max_events: u32,
}

/// Events of a log, and how far they were read.
#[derive(Debug)]
struct ReadEvents {
    /// Those that the reader gets.
    matching: Vec<StoredEvent>,
    next: LogCursor,
    /// The index of the last event of the session itself among those read.
    last_own: Option<i64>,
}

/// A page of a log, as `session_events` returns it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Output")]
pub(crate) struct LogPage {
    session_id: SessionId,
    status: Status,
    /// Index of the last event read, returned or not, or `since_index` if there is none. Pass it as the
    /// next `since_index`.
    last_index: i64,
    /// Index of the last event of the session, plus 1.
    log_end: i64,
    /// Each has `index`, `session_id`, `timestamp`, `type` and the fields of its type.
    pub(super) events: Vec<Value>,
    /// True if no turn is running and no message is queued.
    completed: bool,
    failed: bool,
    error: Option<String>,
    pub(super) pending_caller_requests: Vec<PendingRequest>,
    /// Events before this index, except the first, were deleted because of their age or number.
    trimmed_before: i64,
    /// Why there is no event although a turn runs, if the server knows it: for example a full disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    stalled: Option<String>,
    /// With `include_children`: pass it as `cursor` to get the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
    #[serde(skip)]
    next: LogCursor,
}

impl LogPage {
    /// Shortens the long texts of events in the middle. `rest_uri` of such an event leads to all of it.
    pub(super) fn shorten_texts(&mut self) {
        for event in &mut self.events {
            let (Some(index), Some(session)) = (
                event["index"].as_i64(),
                event["session_id"].as_str().and_then(|id| id.parse().ok()),
            ) else {
                continue;
            };
            if shorten_strings(event) {
                let uri = ResourceUri::SessionEvent { session, index };
                event["rest_uri"] = uri.to_string().into();
            }
        }
    }
}

/// Shortens the strings in a value; whether there were long ones.
fn shorten_strings(value: &mut Value) -> bool {
    match value {
        Value::String(text) => match head_and_tail(text) {
            Some(shortened) => {
                *text = shortened;
                true
            }
            None => false,
        },
        Value::Array(items) => items
            .iter_mut()
            .fold(false, |any, item| shorten_strings(item) | any),
        Value::Object(fields) => fields
            .values_mut()
            .fold(false, |any, field| shorten_strings(field) | any),
        _ => false,
    }
}

#[derive(Debug)]
pub(super) struct LogReader {
    engine: Engine,
    request: PageRequest,
    subscription: Subscription,
    /// The last page reached the end of the log.
    caught_up: bool,
}

impl LogReader {
    pub(super) fn new(
        engine: &Engine,
        session: SessionId,
        cursor: LogCursor,
        filter: EventFilter,
        max_events: u32,
    ) -> Self {
        // Subscribed before the first read, so that no event is missed between a read and a wait.
        let subscriptions = engine.sessions().subscriptions();
        let subscription = match cursor {
            LogCursor::Session(_) => subscriptions.log(session),
            LogCursor::Tree { root, .. } => subscriptions.tree_logs(root),
        };
        Self {
            engine: engine.clone(),
            request: PageRequest {
                session,
                cursor,
                filter,
                max_events,
            },
            subscription,
            caught_up: false,
        }
    }

    /// Reads the next page. If there are no new events it waits for some, and returns an empty page when
    /// `wait` is over or the server stops. With `follower`, it checks before each read whether that
    /// actor may still read the log. Cancel-safe.
    pub(super) async fn next_page(
        &mut self,
        wait: Duration,
        follower: Option<&Actor>,
    ) -> Result<LogPage> {
        let deadline = Instant::now() + wait;
        let mut may_wait = true;
        loop {
            let mut woken = false;
            if self.caught_up {
                tokio::select! {
                    () = self.subscription.changed() => woken = true,
                    () = tokio::time::sleep_until(deadline) => {}
                    () = self.engine.draining() => may_wait = false,
                }
            }
            // If this future is dropped before the read is done, the next call must not wait.
            self.caught_up = false;
            may_wait = may_wait && Instant::now() < deadline;
            let followed = match follower {
                Some(actor) => {
                    let session = self.request.session;
                    Some(self.engine.permit_following(actor, session).await?)
                }
                None => None,
            };
            let wakeup = self.subscription.last_wakeup();
            if woken && let Some(page) = wakeup.shared_page(self.request) {
                return Ok(self.advance(page));
            }
            let events = self.read_events().await?;
            if events.matching.is_empty() && may_wait {
                self.request.cursor = events.next;
                self.caught_up = true;
                continue;
            }
            if let Some(session) = followed {
                // A follower only sends the events, so nothing else is looked up for it.
                let page = self.page(session, events, Vec::new(), 0);
                return Ok(self.advance(page));
            }
            let bodies = events.matching.iter().map(|event| event.body.len());
            let bytes: usize = bodies.sum();
            let page = self.build_page(events).await?;
            let shareable = (1..=MAX_SHARED_PAGE_BYTES).contains(&bytes)
                && page.pending_caller_requests.is_empty();
            if woken && shareable {
                wakeup.share_page(self.request, &page);
            }
            return Ok(self.advance(page));
        }
    }

    fn advance(&mut self, page: LogPage) -> LogPage {
        self.request.cursor = page.next;
        self.caught_up = page.events.is_empty()
            || matches!(page.next, LogCursor::Session(index) if index + 1 >= page.log_end);
        page
    }

    /// Reads up to the first page that has events for the reader, or to the end of the log.
    async fn read_events(&self) -> Result<ReadEvents> {
        let PageRequest {
            session,
            mut cursor,
            filter,
            max_events,
        } = self.request;
        let store = self.engine.store();
        let mut last_own = None;
        loop {
            let mut events = match cursor {
                LogCursor::Session(index) => {
                    store
                        .events(session, index, max_events, MAX_PAGE_BYTES)
                        .await?
                }
                LogCursor::Tree { position, .. } => {
                    store
                        .tree_events(session, position, max_events, MAX_PAGE_BYTES)
                        .await?
                }
            };
            let is_end = events.is_empty();
            if let Some(last) = events.last() {
                cursor = match cursor {
                    LogCursor::Session(_) => LogCursor::Session(last.index),
                    LogCursor::Tree { root, .. } => LogCursor::Tree {
                        root,
                        position: last.position,
                    },
                };
            }
            let own = events
                .iter()
                .rev()
                .find(|event| event.session_id == session);
            last_own = own.map(|event| event.index).or(last_own);
            events.retain(|event| filter.allows(&event.body));
            if is_end || !events.is_empty() {
                return Ok(ReadEvents {
                    matching: events,
                    next: cursor,
                    last_own,
                });
            }
        }
    }

    async fn build_page(&self, events: ReadEvents) -> Result<LogPage> {
        // Read after the events, so that the status is never older than they are.
        let session = self.engine.sessions().get(self.request.session).await?;
        let pending_caller_requests = self.engine.callers().pending_requests(&session).await?;
        let queued = self.engine.store().queued_messages(session.id).await?;
        let project = session.project_id;
        let mut page = self.page(session, events, pending_caller_requests, queued);
        if page.last_index + 1 >= page.log_end && !page.completed {
            page.stalled = self.stalled(project).await;
        }
        Ok(page)
    }

    /// Without space, neither the store nor the supervisor can keep what the agent writes, so it waits.
    async fn stalled(&self, project: ProjectId) -> Option<String> {
        let directory = self.engine.settings().data_dir.clone();
        if !is_disk_full(directory.clone()).await {
            return None;
        }
        let used = match self.engine.containers().measure_on_full_disk(project).await {
            Some((name, megabytes)) => format!(
                "; the project {name} uses {megabytes} MB: remove files with `container_exec`, or all of it with \
                 `project_delete`"
            ),
            None => String::new(),
        };
        Some(format!(
            "the disk of {} is full; the agent waits until there is space{used}",
            directory.display()
        ))
    }

    fn page(
        &self,
        session: Session,
        events: ReadEvents,
        pending_caller_requests: Vec<PendingRequest>,
        queued: u32,
    ) -> LogPage {
        let next = events.next;
        let (last_index, cursor) = match next {
            LogCursor::Session(index) => (index, None),
            LogCursor::Tree { position, .. } => {
                let last = events.last_own.unwrap_or(session.log_end - 1);
                (last, Some(format!("{TREE_CURSOR_PREFIX}{position}")))
            }
        };
        LogPage {
            session_id: session.id,
            status: session.status,
            last_index,
            log_end: session.log_end,
            events: events.matching.into_iter().map(event_json).collect(),
            completed: is_settled(&session, queued),
            failed: session.status == Status::Failed,
            error: session.error,
            pending_caller_requests,
            trimmed_before: session.trimmed_before,
            stalled: None,
            cursor,
            next,
        }
    }
}

/// An event as readers see it.
fn event_json(logged: StoredEvent) -> Value {
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
