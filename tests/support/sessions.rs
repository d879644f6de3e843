//! Sessions from a caller's side: a prompt in, events out.

use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Modern;

/// Nothing that a test waits for takes longer, however loaded the machine is.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

impl Modern {
    /// Gives a project a prompt; the session's id.
    pub async fn spawn(&self, project: &str, prompt: &str) -> String {
        self.spawn_with(project, prompt, json!({})).await
    }

    pub async fn spawn_with(&self, project: &str, prompt: &str, mut more: Value) -> String {
        more["project_id"] = json!(project);
        more["prompt"] = json!(prompt);
        let reply = self.call("session_spawn", more).await;
        reply.ok()["session_id"].as_str().unwrap().to_owned()
    }

    pub async fn message(&self, session: &str, prompt: &str) -> Value {
        let parameters = json!({ "session_id": session, "prompt": prompt });
        self.call("session_message", parameters).await.ok().clone()
    }

    pub async fn session(&self, session: &str) -> Value {
        let parameters = json!({ "session_id": session });
        self.call("session_get", parameters).await.ok().clone()
    }

    /// The whole log so far.
    pub async fn log(&self, session: &str) -> Vec<Value> {
        let (mut events, mut since) = (Vec::new(), -1);
        loop {
            let page = json!({
                "session_id": session, "since_index": since, "max_events": 1000, "types": ["all"],
                "full": true,
            });
            let page = self.call("session_events", page).await.ok().clone();
            let found = page["events"].as_array().unwrap();
            if found.is_empty() {
                return events;
            }
            events.extend(found.iter().cloned());
            since = page["last_index"].as_i64().unwrap();
        }
    }

    /// Follows a log until an event is as wanted; the whole log up to it. A connection that breaks is
    /// made again: a server may die meanwhile.
    pub async fn follow(&self, session: &str, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        self.follow_from(session, -1, wanted).await
    }

    pub async fn follow_from(
        &self,
        session: &str,
        mut since: i64,
        wanted: impl Fn(&Value) -> bool,
    ) -> Vec<Value> {
        let deadline = Instant::now() + scaled(WAIT_TIMEOUT);
        let mut events = Vec::new();
        loop {
            let page = json!({
                "session_id": session, "since_index": since, "max_events": 1000, "wait_seconds": 5,
                "types": ["all"], "full": true,
            });
            let page = self.call_until_answered("session_events", page);
            let Ok(page) = tokio::time::timeout_at(deadline, page).await else {
                panic!("the awaited event did not arrive; the log: {events:#?}");
            };
            let page = page.ok().clone();
            for event in page["events"].as_array().unwrap() {
                events.push(event.clone());
                if wanted(event) {
                    return events;
                }
            }
            since = page["last_index"].as_i64().unwrap();
        }
    }

    /// Follows a log to the end of its turn number `turn`, counted from 1; that turn's completion.
    pub async fn turn(&self, session: &str, turn: usize) -> Value {
        let count = std::cell::Cell::new(0);
        let log = self
            .follow(session, |event| {
                count.set(count.get() + usize::from(event["type"] == "completion"));
                count.get() == turn
            })
            .await;
        log.last().unwrap().clone()
    }

    /// Waits until a session has this status.
    pub async fn status(&self, session: &str, status: &str) -> Value {
        let deadline = Instant::now() + scaled(WAIT_TIMEOUT);
        let mut since = -1;
        loop {
            let found = self.session(session).await;
            if found["status"] == status {
                return found;
            }
            assert!(Instant::now() < deadline, "not {status}: {found}");
            let page = json!({ "session_id": session, "since_index": since, "wait_seconds": 1 });
            let page = self.call("session_events", page).await.ok().clone();
            since = page["last_index"].as_i64().unwrap();
        }
    }
}

/// The types of events, without those that depend on timing.
pub fn event_types(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    // An agent reports its commands and modes at any time after its start.
    kinds
        .filter(|kind| !matches!(*kind, "delta" | "commands" | "mode"))
        .collect()
}
