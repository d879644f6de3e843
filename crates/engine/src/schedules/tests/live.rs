//! The scheduler at work: it creates sessions, which fail because there is no container runtime.

use std::collections::HashSet;
use std::time::Duration;

use oubliette_model::{
    Overlap, RunCause, RunStatus, Scope, SessionBehavior, SessionId, Status, WorkspaceId,
};
use oubliette_store::{
    Firing, NewSession, RunBinding, Schedule, ScheduleRun, Session, SessionFilter, SessionStep,
    SessionTreeLimits, VisibleProjects,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{TestEngine, actor, at, seconds};
use crate::{Actor, Call, EngineError, NewToken};

const START: &str = "2027-03-01T10:00:30Z";

impl TestEngine {
    /// Waits until a schedule has this many runs and all have ended; returns them.
    async fn ended_runs(&self, schedule: &Schedule, count: usize) -> Vec<ScheduleRun> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let runs = self.history(schedule.id).await;
            if runs.len() >= count && runs.iter().all(|run| run.ended_at.is_some()) {
                return runs;
            }
            assert!(tokio::time::Instant::now() < deadline, "{runs:#?}");
            tokio::task::yield_now().await;
        }
    }

    async fn sessions(&self) -> Vec<SessionId> {
        let filter = SessionFilter::default();
        let found = self
            .store()
            .sessions(VisibleProjects::All, &filter, None, 1000);
        let found = found.await.unwrap().rows.into_iter();
        found.map(|session| session.id).collect()
    }

    fn firing(&self, schedule: &Schedule) -> Firing {
        let now = self.clock.now();
        Firing {
            schedule_id: schedule.id,
            at: now,
            due_at: now,
            cause: RunCause::Trigger,
            reschedule: None,
            skip_reason: None,
            note: None,
            disable_reason: None,
        }
    }
}

fn due_times(runs: &[ScheduleRun]) -> Vec<String> {
    runs.iter().map(|run| run.due_at.to_string()).collect()
}

#[tokio::test]
async fn runs_are_not_repeated_when_the_clock_is_set_back_and_are_missed_when_it_is_set_forward() {
    let fixture = TestEngine::new(at(START), |_| {}).await;
    fixture.engine.schedules().start();
    let hourly = fixture.schedule(1, "@hourly", "UTC");
    let hourly = fixture.add(hourly).await;
    fixture.clock.set(at("2027-03-01T11:00:00Z"));
    fixture.ended_runs(&hourly, 1).await;
    fixture.clock.set(at("2027-03-01T12:00:01Z"));
    fixture.ended_runs(&hourly, 2).await;
    // Back by more than an hour, and through the same times again.
    for time in ["10:30:00", "11:00:00", "11:59:00", "12:00:00", "12:59:59"] {
        fixture.clock.set(at(&format!("2027-03-01T{time}Z")));
        tokio::task::yield_now().await;
    }
    fixture.clock.set(at("2027-03-01T13:00:00Z"));
    fixture.ended_runs(&hourly, 3).await;
    // Forward over a day.
    fixture.clock.set(at("2027-03-02T16:20:00Z"));
    let runs = fixture.ended_runs(&hourly, 4).await;
    let expected = [
        "2027-03-01T11:00:00Z",
        "2027-03-01T12:00:00Z",
        "2027-03-01T13:00:00Z",
        "2027-03-02T16:00:00Z",
    ];
    assert_eq!(due_times(&runs), expected);
    assert_eq!(runs[3].status, RunStatus::Skipped);
    assert!(
        runs[3]
            .error
            .as_ref()
            .unwrap()
            .contains("2027-03-01T14:00:00Z")
    );
    assert_eq!(
        fixture.sessions().await.len(),
        3,
        "one session for each that ran"
    );
    let error = runs[0].error.as_ref().unwrap();
    assert!(error.contains("no containers here"), "{error}");
    fixture.engine.stop().await;
}

#[tokio::test]
async fn a_run_has_one_session_wherever_the_server_dies_between_claim_spawn_and_record() {
    let mut fixture = TestEngine::new(at(START), |_| {}).await;
    let schedule = fixture.schedule(1, "@yearly", "UTC");
    let schedule = fixture.add(schedule).await;
    for point in 0..4 {
        let firing = fixture.firing(&schedule);
        let run = fixture
            .store()
            .fire_schedules(vec![firing], None)
            .await
            .unwrap()
            .remove(0);
        if point >= 1 {
            let lease = fixture.engine.schedules().lease();
            let deadline = lease.at + seconds(3600);
            let claimed = fixture
                .store()
                .claim_runs(&lease, deadline, 9)
                .await
                .unwrap();
            assert_eq!(claimed.len(), 1);
        }
        if point >= 2 {
            // The session is stored and its agent not started.
            let mark = RunBinding {
                run: run.id,
                pin: false,
                note: None,
            };
            let actor = actor(fixture.token);
            let parameters =
                json!({ "project_id": fixture.project, "prompt": "x", "new_session": true });
            let call = Call::new().for_schedule_run(mark);
            let arguments = parameters.as_object().cloned().unwrap();
            let spawned = fixture
                .engine
                .call(&actor, "session_spawn", arguments, call)
                .await;
            spawned.unwrap();
        }
        if point >= 3 {
            // The turn is over and the run's end not stored.
            let found = fixture.store().schedule_run(run.id).await.unwrap().unwrap();
            let session = found.session_id.unwrap();
            let failed =
                fixture
                    .engine
                    .sessions()
                    .wait_until(session, Duration::from_secs(30), |s| s.status.is_ended());
            assert!(failed.await.unwrap());
        }
        fixture.restart().await;
        // Recovery does this once a runtime works.
        fixture.engine.recover_sessions().await.unwrap();
        fixture.engine.schedules().start();
        let runs = fixture.ended_runs(&schedule, point + 1).await;
        assert_eq!(runs.len(), point + 1);
        let sessions: HashSet<_> = runs.iter().map(|run| run.session_id.unwrap()).collect();
        assert_eq!(sessions.len(), point + 1, "each run has its own session");
        assert_eq!(
            fixture.sessions().await.len(),
            point + 1,
            "there are no other sessions"
        );
        for id in sessions {
            let session = fixture.store().session(id).await.unwrap().unwrap();
            assert_eq!(session.turns, 1, "each got one prompt");
        }
        fixture.restart().await;
    }
}

#[tokio::test]
async fn a_thousand_runs_due_at_once_all_start_in_order_within_the_concurrency_limit() {
    let mut fixture = TestEngine::new(at(START), |settings| {
        settings.schedules.max_concurrent_runs = 3;
    })
    .await;
    fixture.add_projects(10).await;
    for n in 1..=1000 {
        let schedule = fixture.schedule(n, "0 11 * * *", "UTC");
        assert!(fixture.store().add_schedule(&schedule, None).await.unwrap());
    }
    fixture.clock.set(at("2027-03-01T11:00:00Z"));
    fixture.engine.schedules().start();
    let ids: Vec<_> = (1..=1000)
        .map(|n| fixture.schedule(n, "@daily", "UTC").id)
        .collect();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    let mut ended = 0;
    while ended < ids.len() {
        assert!(tokio::time::Instant::now() < deadline, "{ended} have ended");
        ended = 0;
        for id in &ids {
            let runs = fixture.history(*id).await;
            assert!(runs.len() <= 1, "{runs:#?}");
            ended += runs.iter().filter(|run| run.ended_at.is_some()).count();
            assert!(fixture.engine.schedules().state().running.lock().len() <= 3);
        }
    }
    // Sessions are listed newest first. They are created in the order of the runs, except for runs
    // that started at the same time.
    let mut sessions = fixture.sessions().await;
    sessions.reverse();
    assert_eq!(sessions.len(), 1000);
    for (position, id) in ids.iter().enumerate() {
        let run = fixture.history(*id).await.remove(0);
        let session = run.session_id.unwrap();
        let found = sessions.iter().position(|other| *other == session).unwrap();
        assert!(
            found.abs_diff(position) <= 3,
            "run {position} was number {found}"
        );
    }
    fixture.engine.stop().await;
}

#[tokio::test]
async fn runs_with_an_expired_token_fail_and_five_failures_disable_the_schedule() {
    let mut fixture = TestEngine::new(at(START), |_| {}).await;
    let soon = at("2027-03-01T11:30:00Z");
    let NewToken { token, key } =
        NewToken::generate("short", Scope::Write, at(START), Some(soon)).unwrap();
    fixture
        .store()
        .add_token(&token, key.hash(), None)
        .await
        .unwrap();
    let hourly = Schedule {
        owner_id: token.id,
        overlap: Overlap::Skip,
        session_behavior: SessionBehavior::Resume,
        ..fixture.schedule(1, "@hourly", "UTC")
    };
    let hourly = fixture.add(hourly).await;
    fixture.engine.schedules().start();
    for hour in 11..=15 {
        fixture.clock.set(at(&format!("2027-03-01T{hour}:00:00Z")));
        fixture.ended_runs(&hourly, hour - 10).await;
    }
    fixture.clock.set(at("2027-03-01T16:00:00Z"));
    assert!(
        fixture
            .engine
            .schedules()
            .fire_due()
            .await
            .unwrap()
            .is_empty()
    );
    let runs = fixture.history(hourly.id).await;
    assert_eq!(runs.len(), 5, "disabled after the fifth: {runs:#?}");
    assert!(runs[0].session_id.is_some() && runs[0].error.as_ref().unwrap().contains("containers"));
    for run in &runs[1..] {
        assert_eq!((run.status, run.session_id), (RunStatus::Failed, None));
        assert!(
            run.error.as_ref().unwrap().contains("has expired"),
            "{run:?}"
        );
    }
    let stored = fixture.store().schedule(hourly.id).await.unwrap().unwrap();
    assert!(!stored.enabled && stored.next_at.is_none());
    assert!(stored.disabled_reason.unwrap().contains("5 runs in a row"));
    fixture.restart().await;
}

#[tokio::test]
async fn a_session_that_fails_twice_in_a_row_is_replaced_with_a_note_in_the_history() {
    let mut fixture = TestEngine::new(at(START), |_| {}).await;
    let schedule = Schedule {
        session_behavior: SessionBehavior::Resume,
        ..fixture.schedule(1, "@hourly", "UTC")
    };
    let schedule = fixture.add(schedule).await;
    fixture.engine.schedules().start();
    for hour in 11..=13 {
        fixture.clock.set(at(&format!("2027-03-01T{hour}:00:00Z")));
        fixture.ended_runs(&schedule, hour - 10).await;
    }
    let runs = fixture.ended_runs(&schedule, 3).await;
    assert_eq!(runs[0].session_id, runs[1].session_id);
    assert_ne!(runs[1].session_id, runs[2].session_id);
    let note = runs[2].note.as_ref().unwrap();
    assert!(
        note.contains("failed twice") && note.contains("new one"),
        "{note}"
    );
    fixture.restart().await;
}

#[tokio::test]
async fn a_schedule_of_an_agent_runs_below_its_session_and_ends_with_it() {
    let fixture = TestEngine::new(at(START), |_| {}).await;
    fixture.engine.schedules().start();
    let admin = actor(fixture.token);
    let call = async |actor: &Actor, name: &str, parameters: Value| {
        let parameters = parameters.as_object().cloned().unwrap();
        fixture
            .engine
            .call(actor, name, parameters, Call::new())
            .await
    };
    // A session whose agent is not started.
    let own = SessionId::new(Uuid::from_u128(7));
    let session = Session {
        owner_id: Some(fixture.token),
        ..Session::new(
            own,
            fixture.project,
            WorkspaceId::default(),
            "demo",
            at(START),
        )
    };
    let new = NewSession {
        session,
        message: None,
        join: None,
        call: None,
        run: None,
        events: Vec::new(),
        limits: SessionTreeLimits {
            depth: 3,
            sessions: 9,
            cost_usd: 1.0,
            spawns_per_minute: 9,
        },
    };
    fixture.store().spawn_session(&new, None).await.unwrap();
    // An admin key that is used on the connection of that session.
    let agent = Actor {
        session: Some(own),
        ..admin.clone()
    };
    let parameters = json!({
        "name": "mine", "cron_expr": "@yearly", "prompt": "x",
        "targets": [{ "project_id": fixture.project }],
    });
    let created = call(&agent, "schedule_create", parameters).await.unwrap();
    let id = json!({ "schedule_id": created["schedule_id"] });
    let schedule_id = created["schedule_id"].as_str().unwrap().parse().unwrap();
    let schedule = fixture
        .store()
        .schedule(schedule_id)
        .await
        .unwrap()
        .unwrap();
    call(&agent, "schedule_trigger", id.clone()).await.unwrap();
    let runs = fixture.ended_runs(&schedule, 1).await;
    let child_id = runs[0].session_id.unwrap();
    let child = fixture.store().session(child_id).await.unwrap().unwrap();
    assert_eq!((child.parent_id, child.root_id), (Some(own), own));

    let ended = SessionStep {
        at: at(START),
        status: Some(Status::Completed),
        ..SessionStep::default()
    };
    fixture.store().commit_step(own, ended).await.unwrap();
    call(&admin, "schedule_trigger", id.clone()).await.unwrap();
    let runs = fixture.ended_runs(&schedule, 2).await;
    assert_eq!(runs[1].session_id, None);
    let error = runs[1].error.as_ref().unwrap();
    assert!(
        error.contains("has ended") && error.contains("schedule_update"),
        "{error}"
    );
    // After an update by another token the schedule is no longer the agent's, which cannot start it.
    call(&admin, "schedule_update", id.clone()).await.unwrap();
    let refused = call(&agent, "schedule_trigger", id.clone()).await;
    assert!(
        matches!(refused, Err(EngineError::Refused { .. })),
        "{refused:?}"
    );
    call(&admin, "schedule_trigger", id).await.unwrap();
    let runs = fixture.ended_runs(&schedule, 3).await;
    let session_id = runs[2].session_id.unwrap();
    let session = fixture.store().session(session_id).await.unwrap().unwrap();
    assert_eq!(session.parent_id, None);
    fixture.engine.stop().await;
}
