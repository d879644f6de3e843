//! `session_events`.

use std::time::Duration;

use oubliette_model::{Access, Mode, SessionId, quoted};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Sessions;
use super::log_reader::{DEFAULT_PAGE_EVENTS, LogCursor, LogPage, LogReader};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

const MAX_PAGE_EVENTS: u32 = 1000;
const MAX_WAIT_SECONDS: f64 = 50.0;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session's id, from `session_list`.
    pub(super) session_id: SessionId,
    /// Return events after this index; from the start if absent or -1.
    since_index: Option<i64>,
    /// Maximum number of events to return (1 to 1000; 200 if absent).
    max_events: Option<u32>,
    /// How many seconds to wait for an event if there is none (0 to 50; 0 if absent).
    wait_seconds: Option<f64>,
    /// Include the events of the sessions below this one, ordered by time. Page with `cursor`.
    include_children: Option<bool>,
    /// With `include_children`: `cursor` of the previous page.
    cursor: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Events;

impl Operation for Events {
    const NAME: &'static str = "session_events";
    const ABOUT: &'static str = "Read the events of a session after `since_index`: prompts, text, tool calls and their \
         results, permission requests, and a `completion` at the end of every turn. With `wait_seconds` \
         it waits for the next event. Calls of your own tools that wait for your response are in \
         `pending_caller_requests`.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = LogPage;

    fn reach(params: &Params) -> Reach {
        Reach::session(params.session_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<LogPage> {
        let id = params.session_id;
        let _listening = engine.callers().listen(actor, id).await;
        let page = tokio::select! {
            page = engine.sessions().read_events(&params) => page?,
            () = call.cancelled() => return Err(EngineError::Cancelled),
            // A wait ends with the token that permits it.
            () = engine.tokens().wait_until_ended(actor.token_id) => {
                return Err(EngineError::refused_ended_token());
            }
        };
        if !page.pending_caller_requests.is_empty() {
            let session = engine.sessions().get(id).await?;
            engine.callers().mark_delivered(actor, &session).await?;
        }
        Ok(page)
    }
}

impl Params {
    fn max_events(&self) -> Result<u32> {
        match self.max_events.unwrap_or(DEFAULT_PAGE_EVENTS) {
            limit @ 1..=MAX_PAGE_EVENTS => Ok(limit),
            other => Err(EngineError::invalid(format!(
                "`max_events` is {other}; it must be 1 to {MAX_PAGE_EVENTS}"
            ))),
        }
    }

    fn wait(&self) -> Result<Duration> {
        let seconds = self.wait_seconds.unwrap_or(0.0);
        if !(0.0..=MAX_WAIT_SECONDS).contains(&seconds) {
            return Err(EngineError::invalid(format!(
                "`wait_seconds` is {seconds}; it must be 0 to {MAX_WAIT_SECONDS}"
            )));
        }
        Ok(Duration::from_secs_f64(seconds))
    }

    /// The position among the events of the whole tree; none without `include_children`.
    fn tree_position(&self) -> Result<Option<i64>> {
        let include_children = self.include_children.unwrap_or(false);
        let Some(cursor) = &self.cursor else {
            return Ok(include_children.then_some(0));
        };
        if !include_children {
            return Err(EngineError::invalid(
                "`cursor` requires `include_children`; without it use `since_index`",
            ));
        }
        let position = LogCursor::parse_tree_position(cursor);
        position.map(Some).ok_or_else(|| {
            EngineError::invalid(format!(
                "{} is not a cursor of `session_events`; use `cursor` of the previous page",
                quoted(cursor)
            ))
        })
    }
}

impl Sessions<'_> {
    /// Reads one page of a session's log.
    pub(super) async fn read_events(self, params: &Params) -> Result<LogPage> {
        let id = params.session_id;
        let max_events = params.max_events()?;
        let tree_position = params.tree_position()?;
        let wait = params.wait()?;
        let cursor = match tree_position {
            None => LogCursor::Session(params.since_index.unwrap_or(-1).max(-1)),
            Some(position) => {
                let root = self.get(id).await?.root_id;
                LogCursor::Tree { root, position }
            }
        };
        let mut reader = LogReader::new(self.engine, id, cursor, max_events);
        reader.next_page(wait, None).await
    }
}
