//! `/metrics` in Prometheus' text format.

use std::fmt::Write;
use std::sync::Arc;

use oubliette_engine::Engine;

use crate::auth::Authenticator;
use crate::mcp::McpSessionManager;

/// What the metrics are read from.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) engine: Engine,
    pub(crate) authenticator: Authenticator,
    pub(crate) sessions: Arc<McpSessionManager>,
}

pub(crate) async fn render(sources: &Sources) -> String {
    let calls = sources.engine.metrics().calls();
    let mut page = Page::default();
    page.describe(
        "oubliette_calls_total",
        "counter",
        "Calls by operation and outcome.",
    );
    for ((operation, outcome), counted) in &calls {
        let labels = format!("operation=\"{operation}\",outcome=\"{outcome}\"");
        page.value("oubliette_calls_total", &labels, counted.calls as f64);
    }
    page.describe(
        "oubliette_call_seconds_total",
        "counter",
        "Time spent in calls.",
    );
    for ((operation, outcome), counted) in &calls {
        let labels = format!("operation=\"{operation}\",outcome=\"{outcome}\"");
        page.value(
            "oubliette_call_seconds_total",
            &labels,
            counted.time.as_secs_f64(),
        );
    }
    let (sessions, streams) = sources.sessions.counts();
    let projects = sources.engine.count_projects().await.unwrap_or_default();
    let counts = sources.engine.state_counts();
    let stored = sources.engine.stored_counts().await.unwrap_or_default();
    page.describe("oubliette_sessions", "gauge", "Sessions by status.");
    for (status, count) in &stored.sessions {
        let labels = format!("status=\"{}\"", status.as_str());
        page.value("oubliette_sessions", &labels, *count as f64);
    }
    page.describe(
        "oubliette_network_questions_total",
        "counter",
        "Questions about hosts that no rule names, by what came of them.",
    );
    for (outcome, count) in sources.engine.metrics().host_answers() {
        let labels = format!("outcome=\"{outcome}\"");
        page.value("oubliette_network_questions_total", &labels, count as f64);
    }
    for (name, kind, about, value) in [
        (
            "oubliette_network_questions",
            "gauge",
            "Questions about hosts that wait for an answer.",
            counts.host_questions as f64,
        ),
        (
            "oubliette_auth_failures_total",
            "counter",
            "Requests without a valid key.",
            sources.authenticator.failure_count() as f64,
        ),
        (
            "oubliette_mcp_sessions",
            "gauge",
            "MCP sessions in memory.",
            sessions as f64,
        ),
        (
            "oubliette_mcp_streams",
            "gauge",
            "Open MCP event streams.",
            streams as f64,
        ),
        ("oubliette_projects", "gauge", "Projects.", projects as f64),
        (
            "oubliette_session_tasks",
            "gauge",
            "Sessions with a live agent or work to do.",
            counts.session_tasks as f64,
        ),
        (
            "oubliette_subscriptions",
            "gauge",
            "Sessions and calls whose changes are waited for.",
            counts.subscriptions as f64,
        ),
        (
            "oubliette_tracked_callers",
            "gauge",
            "Sessions whose callers were seen lately.",
            counts.callers as f64,
        ),
        (
            "oubliette_container_entries",
            "gauge",
            "Entries in memory about containers and their commands.",
            counts.container_entries as f64,
        ),
        (
            "oubliette_containers",
            "gauge",
            "Containers that run.",
            counts.containers as f64,
        ),
        (
            "oubliette_pending_caller_requests",
            "gauge",
            "Calls of callers' tools that wait for a response.",
            stored.pending_caller_requests as f64,
        ),
        (
            "oubliette_schedules",
            "gauge",
            "Schedules that are enabled.",
            stored.enabled_schedules as f64,
        ),
        (
            "oubliette_cost_usd",
            "gauge",
            "What the sessions that there are have cost, as far as it is known.",
            stored.cost_usd,
        ),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory.",
            resident_bytes(),
        ),
    ] {
        page.describe(name, kind, about);
        page.value(name, "", value);
    }
    page.describe("oubliette_info", "gauge", "Version of the running server.");
    page.value(
        "oubliette_info",
        concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""),
        1.0,
    );
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn describe(&mut self, name: &str, kind: &str, about: &str) {
        let _ = writeln!(self.text, "# HELP {name} {about}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &str, value: f64) {
        let _ = match labels {
            "" => writeln!(self.text, "{name} {value}"),
            labels => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }
}

/// Zero on systems without `/proc`.
fn resident_bytes() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|line| line.split(' ').nth(1)?.parse::<f64>().ok());
    pages.map_or(0.0, |pages| pages * rustix::param::page_size() as f64)
}
