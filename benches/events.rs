//! Events committed through the store, each step with its offset in the agent's output, compared with
//! the same rows in bare SQLite transactions.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use oubliette_benches::statistics::median;
use oubliette_benches::table::format_ratio;
use oubliette_benches::{Table, Targets, is_quick};
use oubliette_model::{Event, ProjectId, SessionId, WorkspaceId};
use oubliette_store::sqlite::Sqlite;
use oubliette_store::{
    NewSession, Project, ProjectStore, Session, SessionStep, SessionStore, SessionTreeLimits,
    SpawnOutcome,
};
use rusqlite::{Connection, params};
use uuid::Uuid;

/// The share of bare SQLite's events per second that the store must reach.
const MIN_RATE_RATIO: f64 = 0.5;
/// Concurrent sessions, and events per step.
const SHAPES: [(usize, usize); 4] = [(1, 1), (1, 64), (16, 16), (64, 16)];
const LIVE_STATE: &str =
    r#"{"process_id":"agent x","ready":true,"stdout":123456,"stdin":789,"next_id":4}"#;

fn event() -> Event {
    Event::Message {
        text: "x".repeat(240),
    }
}

fn main() {
    let (rounds, slice) = if is_quick() {
        (3, Duration::from_millis(200))
    } else {
        (7, Duration::from_millis(1000))
    };
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = Arc::new(Sqlite::open(&directory.path().join("store.db")).unwrap());
    let sessions = runtime.block_on(add_sessions(&store));
    let bare = bare_database(&directory.path().join("bare.db"));
    let mut table = Table::new([
        "sessions",
        "events per step",
        "store events/s",
        "SQLite events/s",
        "relative",
    ]);
    let mut targets = Targets::default();
    for (tasks, events) in SHAPES {
        let mut rates = Vec::new();
        for _ in 0..rounds {
            let raw = fill_bare(&bare, tasks, events, slice);
            let ours = runtime.block_on(fill_store(&store, &sessions[..tasks], events, slice));
            rates.push((ours, raw));
        }
        let ratio = median(rates.iter().map(|(ours, raw)| ours / raw));
        table.row([
            tasks.to_string(),
            events.to_string(),
            format!("{:.0}", median(rates.iter().map(|rate| rate.0))),
            format!("{:.0}", median(rates.iter().map(|rate| rate.1))),
            format_ratio(ratio),
        ]);
        let what =
            format!("{tasks} sessions with {events} events per step, relative to bare SQLite");
        targets.at_least(&what, ratio, MIN_RATE_RATIO, "×");
    }
    table.print();
    targets.print();
}

async fn add_sessions(store: &Sqlite) -> Vec<SessionId> {
    let now = Timestamp::now();
    let project = Project {
        id: ProjectId::new(Uuid::from_u128(1)),
        name: "measured".parse().unwrap(),
        revision: 1,
        settings: Default::default(),
        created_at: now,
        updated_at: now,
    };
    store.reserve_project(&project).await.unwrap();
    store.confirm_project(project.id, None).await.unwrap();
    let mut sessions = Vec::new();
    for n in 0..64 {
        let id = SessionId::new(Uuid::from_u128(n + 1));
        let session = Session::new(id, project.id, WorkspaceId::default(), "demo", now);
        let limits = SessionTreeLimits {
            depth: 1,
            sessions: 1,
            cost_usd: 1.0,
            spawns_per_minute: 1,
        };
        let new = NewSession {
            session,
            message: None,
            join: None,
            call: None,
            run: None,
            events: Vec::new(),
            limits,
        };
        let spawned = store.spawn_session(&new, None).await.unwrap();
        assert!(matches!(spawned, SpawnOutcome::New(_)));
        sessions.push(id);
    }
    sessions
}

/// Commits steps of each session, one after the other. Returns events per second.
async fn fill_store(
    store: &Arc<Sqlite>,
    sessions: &[SessionId],
    events: usize,
    slice: Duration,
) -> f64 {
    let started = Instant::now();
    let tasks: Vec<_> = sessions
        .iter()
        .map(|id| {
            let (store, id) = (store.clone(), *id);
            tokio::spawn(async move {
                let mut written = 0;
                while started.elapsed() < slice {
                    let step = SessionStep {
                        at: Timestamp::now(),
                        events: vec![event(); events],
                        live: Some(Some(LIVE_STATE.to_owned())),
                        ..SessionStep::default()
                    };
                    store.commit_step(id, step).await.unwrap();
                    written += events;
                }
                written
            })
        })
        .collect();
    let mut written = 0;
    for task in tasks {
        written += task.await.unwrap();
    }
    written as f64 / started.elapsed().as_secs_f64()
}

/// A database with the same tables and the same durability.
fn bare_database(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection
        .execute_batch(
            "pragma journal_mode = wal;
             pragma synchronous = full;
             create table live (session integer primary key, live text);
             with recursive number (n) as (values (1) union all select n + 1 from number where n < 64)
             insert into live select n, '' from number;
             create table events (
                 position integer primary key, session integer not null, idx integer not null,
                 at integer not null, kind text not null, body text not null,
                 unique (session, idx)
             );",
        )
        .unwrap();
    connection
}

const INSERT_EVENT: &str =
    "insert into events (session, idx, at, kind, body) values (?1, ?2, ?3, ?4, ?5)";
const UPDATE_LIVE: &str = "update live set live = ?2 where session = ?1";

/// Commits transactions with one step of each session. Returns events per second.
fn fill_bare(connection: &Connection, sessions: usize, events: usize, slice: Duration) -> f64 {
    let body = serde_json::to_string(&event()).unwrap();
    let first = "select coalesce(max(idx), 0) + 1 from events";
    let mut index: i64 = connection.query_row(first, [], |row| row.get(0)).unwrap();
    let at = Timestamp::now().as_millisecond();
    let started = Instant::now();
    let mut written = 0;
    while started.elapsed() < slice {
        connection.execute_batch("begin immediate").unwrap();
        let mut insert = connection.prepare_cached(INSERT_EVENT).unwrap();
        let mut update = connection.prepare_cached(UPDATE_LIVE).unwrap();
        for session in 1..=sessions as i64 {
            for index in (index..).take(events) {
                let row = params![session, index, at, "message", body];
                insert.execute(row).unwrap();
            }
            update.execute(params![session, LIVE_STATE]).unwrap();
        }
        index += events as i64;
        connection.execute_batch("commit").unwrap();
        written += sessions * events;
    }
    written as f64 / started.elapsed().as_secs_f64()
}
