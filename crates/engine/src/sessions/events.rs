//! `session_events`.

use std::time::Duration;

use oubliette_model::{Access, Mode, SessionId, quoted};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Sessions;
use super::event_filter::EventFilter;
use super::log_reader::{DEFAULT_PAGE_EVENTS, LogCursor, LogPage, LogReader};
use super::waiting::parse_wait;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

const MAX_PAGE_EVENTS: u32 = 1000;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    pub(super) session_id: SessionId,
    /// Events after this index (-1).
    since_index: Option<i64>,
    /// How many (1-1000; 200).
    max_events: Option<u32>,
    /// Wait up to this long (0-50).
    wait_seconds: Option<f64>,
    /// What to wait for (`event`).
    ///
    /// The next `event`, or the `completion` of the turn.
    until: Option<Until>,
    /// Only these; `all`: also `message`, `delta`.
    ///
    /// Without it all but `message` and `delta`, whose text is in `completion` too.
    types: Option<Vec<String>>,
    /// Whole texts; long ones are shortened otherwise.
    #[schemars(extend("x-unlisted" = true))]
    full: Option<bool>,
    /// With sessions below it.
    ///
    /// Their events are ordered by time, and paged by `cursor`.
    #[schemars(extend("x-unlisted" = true))]
    include_children: Option<bool>,
    /// Last `next_cursor`.
    ///
    /// Of `session_events` with `include_children`: `cursor` of the last page.
    cursor: Option<String>,
}

/// What a reader waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Until {
    Event,
    Completion,
}

#[derive(Debug)]
pub(crate) struct Events;

impl Operation for Events {
    const NAME: &'static str = "session_events";
    const ABOUT: &'static str = "Read the log after `since_index`. A `completion` ends each turn and has its text.\n\n\
         Prompts, tool calls and their results, permission requests and so on. `message` and `delta` \
         events have text that `completion` has too, so they are left out unless `types` names them. With \
         `wait_seconds` it waits for the next event, or with `until: completion` for the end of the turn. \
         Long texts are shortened in the middle; `rest_uri` of the event is all of it. Calls of your own \
         tools that wait for your response are in `pending_caller_requests`.";
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
        let mut wait = parse_wait(params.wait_seconds)?;
        let filter = match &params.types {
            Some(types) => EventFilter::parse(types)?,
            None => EventFilter::without_repeated_text(),
        };
        if params.until == Some(Until::Completion) {
            self.wait_until_settled(id, wait).await?;
            wait = Duration::ZERO;
        }
        let cursor = match tree_position {
            None => LogCursor::Session(params.since_index.unwrap_or(-1).max(-1)),
            Some(position) => {
                let root = self.get(id).await?.root_id;
                LogCursor::Tree { root, position }
            }
        };
        let mut reader = LogReader::new(self.engine, id, cursor, filter, max_events);
        let mut page = reader.next_page(wait, None).await?;
        if params.full != Some(true) {
            page.shorten_texts();
        }
        Ok(page)
    }
}
