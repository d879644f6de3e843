//! The log of a session, read page by page: to its end, or on and on while the session works.

use std::time::{Duration, Instant};

use oubliette_model::Status;
use serde_json::{Map, Value, json};

use super::client::{CallError, Client, parameters};

/// The length of one long poll. Shorter than the server's maximum: its end says why nothing happens.
pub(super) const EVENTS_WAIT_SECONDS: f64 = 5.0;
/// The maximum that `session_events` returns.
const PAGE_EVENTS: u64 = 1000;
/// A restarted server answers again before the user needs to know.
const LOST_SERVER_NOTICE_DELAY: Duration = Duration::from_secs(2);
const LOST_SERVER_NOTICE: &str =
    "the server does not answer; waiting for it (Ctrl-C to leave; the agent keeps working)";

/// Reads the log of a session from an index on.
#[derive(Debug)]
pub(super) struct EventLog<'a> {
    client: &'a Client,
    session: String,
    /// The index of the last event that was read.
    since: i64,
}

/// Events, and the state of the session when they were read.
#[derive(Debug)]
pub(super) struct EventPage {
    pub(super) events: Vec<Value>,
    pub(super) session_id: Option<String>,
    pub(super) status: Option<Status>,
    /// Whether no turn runs and no message waits for one.
    pub(super) is_idle: bool,
    /// Why the session does not go on, if the server knows it.
    pub(super) stalled: Option<String>,
    /// The first index that was not deleted.
    pub(super) trimmed_before: i64,
    last_index: Option<i64>,
}

impl<'a> EventLog<'a> {
    /// `since` is the index of the last event that is not read; -1 reads from the start.
    pub(super) fn new(client: &'a Client, session: &str, since: i64) -> Self {
        Self {
            client,
            session: session.to_owned(),
            since,
        }
    }

    pub(super) fn client(&self) -> &'a Client {
        self.client
    }

    pub(super) fn session(&self) -> &str {
        &self.session
    }

    /// Asks for the next events and waits for one. They are read when the page is passed to `advance`, so that
    /// a question that is dropped loses none.
    pub(super) fn poll(
        &self,
        wait_seconds: f64,
    ) -> impl Future<Output = Result<EventPage, CallError>> + use<'a> {
        self.poll_up_to(PAGE_EVENTS, wait_seconds)
    }

    fn poll_up_to(
        &self,
        max_events: u64,
        wait_seconds: f64,
    ) -> impl Future<Output = Result<EventPage, CallError>> + use<'a> {
        let client = self.client;
        let page = parameters(json!({
            "session_id": self.session, "since_index": self.since, "max_events": max_events,
            "wait_seconds": wait_seconds, "types": ["all"],
        }));
        async move {
            let page = client.call("session_events", page).await?;
            Ok(EventPage::from_result(page))
        }
    }

    /// Goes on behind the page.
    pub(super) fn advance(&mut self, page: &EventPage) {
        self.since = page.last_index.unwrap_or(self.since);
        if let Some(session) = &page.session_id {
            session.clone_into(&mut self.session);
        }
    }

    /// Reads the next events.
    pub(super) async fn read(&mut self, wait_seconds: f64) -> Result<EventPage, CallError> {
        let page = self.poll(wait_seconds).await?;
        self.advance(&page);
        Ok(page)
    }

    /// Reads to the end of the log, or the given number of events. The first event may be waited for.
    pub(super) async fn read_all(
        &mut self,
        max_events: Option<u64>,
        mut wait_seconds: f64,
    ) -> Result<EventPage, CallError> {
        let mut events = Vec::new();
        loop {
            let left = max_events.map(|max| max.saturating_sub(events.len() as u64));
            let wanted = left.map_or(PAGE_EVENTS, |left| left.min(PAGE_EVENTS));
            let mut page = self.poll_up_to(wanted, wait_seconds).await?;
            wait_seconds = 0.0;
            self.advance(&page);
            let is_end = page.events.is_empty();
            events.append(&mut page.events);
            let is_enough = max_events.is_some_and(|max| events.len() as u64 >= max);
            if is_end || is_enough {
                return Ok(EventPage { events, ..page });
            }
        }
    }
}

impl EventPage {
    fn from_result(mut result: Map<String, Value>) -> Self {
        let events = match result.remove("events") {
            Some(Value::Array(events)) => events,
            _ => Vec::new(),
        };
        let text = |name: &str| result.get(name).and_then(Value::as_str);
        let number = |name: &str| result.get(name).and_then(Value::as_i64);
        Self {
            session_id: text("session_id").map(str::to_owned),
            status: text("status").and_then(|status| status.parse().ok()),
            is_idle: result.get("completed") == Some(&Value::Bool(true)),
            stalled: text("stalled").map(str::to_owned),
            trimmed_before: number("trimmed_before").unwrap_or(0),
            last_index: number("last_index"),
            events,
        }
    }
}

/// Since when the server does not answer, and what the user is told about it.
#[derive(Debug, Default)]
pub(super) struct LostServer {
    since: Option<Instant>,
    is_told: bool,
}

impl LostServer {
    pub(super) fn is_lost(&self) -> bool {
        self.since.is_some()
    }

    /// A call had no answer; returns a notice, once and after some time.
    pub(super) fn lose(&mut self) -> Option<&'static str> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let is_due = !self.is_told && since.elapsed() > LOST_SERVER_NOTICE_DELAY;
        self.is_told |= is_due;
        is_due.then_some(LOST_SERVER_NOTICE)
    }

    /// A call had an answer; returns a notice if the user was told of the loss.
    pub(super) fn find(&mut self) -> Option<&'static str> {
        std::mem::take(self).is_told.then_some("the server is back")
    }
}
