//! Schedules on a real engine and a real store, with a clock that the tests set.

mod live;
mod simulated;

use std::path::Path;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{
    CronSchedule, MissedRuns, Overlap, ProjectId, ScheduleId, Scope, SessionBehavior, TokenId,
};
use oubliette_store::sqlite::Sqlite;
use oubliette_store::{RunFilter, Schedule, ScheduleRun, ScheduleTarget, Store};
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use crate::{Actor, Call, Clock, Engine, NewToken, Settings};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

/// An engine with a manual clock, a project and an admin token.
struct TestEngine {
    home: TempDir,
    clock: Clock,
    settings: Settings,
    engine: Engine,
    project: ProjectId,
    /// The projects that schedules run in, a hundred in each.
    projects: Vec<ProjectId>,
    token: TokenId,
}

impl TestEngine {
    async fn new(start: Timestamp, change: impl FnOnce(&mut Settings)) -> Self {
        // In memory if possible: durability is not tested here, and many commits would wait for a disk.
        let memory = Path::new("/dev/shm");
        let home = if memory.is_dir() {
            tempfile::tempdir_in(memory).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        let clock = Clock::manual(start);
        let mut settings = Settings::defaults(home.path());
        settings.clock = clock.clone();
        change(&mut settings);
        let engine = engine(&settings).await;
        let store = engine.store().clone();
        let NewToken { token, key } = NewToken::generate("bot", Scope::Admin, start, None).unwrap();
        store.add_token(&token, key.hash(), None).await.unwrap();
        let project = create_project(&engine, token.id, "one").await;
        Self {
            home,
            clock,
            settings,
            engine,
            project,
            projects: vec![project],
            token: token.id,
        }
    }

    /// Adds projects for more schedules than one project may have.
    async fn add_projects(&mut self, count: usize) {
        for n in 0..count {
            let name = format!("more-{n}");
            let project = create_project(&self.engine, self.token, &name).await;
            self.projects.push(project);
        }
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.engine.store()
    }

    /// Stops the engine and starts another one on the same data directory.
    async fn restart(&mut self) {
        self.engine.stop().await;
        self.engine = engine(&self.settings).await;
    }

    fn schedule(&self, n: u128, cron_expr: &str, timezone: &str) -> Schedule {
        let now = self.clock.now();
        let cadence = CronSchedule::parse(cron_expr, timezone).unwrap();
        let project = usize::try_from(n / 100).unwrap() % self.projects.len();
        Schedule {
            id: ScheduleId::new(Uuid::from_u128(n)),
            revision: 1,
            name: format!("schedule {n}"),
            cron_expr: cron_expr.to_owned(),
            timezone: timezone.to_owned(),
            prompt: "do it".to_owned(),
            targets: vec![ScheduleTarget {
                project_id: self.projects[project],
                workspace_id: None,
                session_id: None,
            }],
            enabled: true,
            overlap: Overlap::Parallel,
            session_behavior: SessionBehavior::New,
            missed_runs: MissedRuns::Skip,
            owner_id: self.token,
            owner_session: None,
            next_at: cadence.next_after(now),
            disabled_reason: None,
            failures: 0,
            created_at: now,
            updated_at: now,
        }
    }

    async fn add(&self, schedule: Schedule) -> Schedule {
        assert!(self.store().add_schedule(&schedule, None).await.unwrap());
        self.engine.schedules().notify_changed();
        schedule
    }

    /// The runs of a schedule, oldest first.
    async fn history(&self, id: ScheduleId) -> Vec<ScheduleRun> {
        let (mut runs, mut after) = (Vec::new(), None);
        loop {
            let page = self
                .store()
                .schedule_runs(id, &RunFilter::default(), after.as_deref(), 1000)
                .await
                .unwrap();
            runs.extend(page.rows);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        runs.reverse();
        runs
    }
}

fn actor(token_id: TokenId) -> Actor {
    Actor {
        token_id,
        scope: Scope::Admin,
        session: None,
        unattached: false,
        address: None,
    }
}

async fn create_project(engine: &Engine, token: TokenId, name: &str) -> ProjectId {
    let parameters = json!({ "name": name, "init_git": false });
    let arguments = parameters.as_object().cloned().unwrap();
    let actor = actor(token);
    let created = engine.call(&actor, "project_create", arguments, Call::new());
    let created = created.await.unwrap();
    created["project_id"].as_str().unwrap().parse().unwrap()
}

async fn engine(settings: &Settings) -> Engine {
    let path = settings.data_dir.join("oubliette.db");
    let store = Arc::new(Sqlite::open(&path).unwrap());
    let runtime = std::future::ready(Err("no containers here".to_owned()));
    Engine::start(store, settings.clone(), runtime)
        .await
        .unwrap()
}
