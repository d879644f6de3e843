//! The task that looks after schedules, at work: sessions are made, and fail for want of containers.

use std::collections::HashSet;
use std::time::Duration;

use oubliette_model::{
    Overlap, RunCause, RunStatus, SessionBehavior, SessionId, Status, WorkspaceId,
};
use oubliette_store::{
    Firing, NewSession, Run, RunMark, Schedule, Session, SessionFilter, Step, TreeLimits, Visible,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{World, actor, at, seconds};
use crate::{Actor, Call, EngineError};

const START: &str = "2027-03-01T10:00:30Z";

impl World {
    /// Waits until all that was due is over; what there is then.
    async fn settled(&self, schedule: &Schedule, count: usize) -> Vec<Run> {
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
        let found = self.store().sessions(Visible::All, &filter, None, 1000);
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
            moves: None,
            skipped: None,
            note: None,
            disabled: None,
        }
    }
}

fn dues(runs: &[Run]) -> Vec<String> {
    runs.iter().map(|run| run.due_at.to_string()).collect()
}

#[tokio::test]
async fn a_clock_that_is_set_back_repeats_nothing_and_one_set_forward_misses() {
    let world = World::new(at(START), |_| {}).await;
    world.engine.run_schedules();
    let hourly = world.schedule(1, "@hourly", "UTC");
    let hourly = world.add(hourly).await;
    world.clock.set(at("2027-03-01T11:00:00Z"));
    world.settled(&hourly, 1).await;
    world.clock.set(at("2027-03-01T12:00:01Z"));
    world.settled(&hourly, 2).await;
    // Back by more than an hour, and through the same times again.
    for time in ["10:30:00", "11:00:00", "11:59:00", "12:00:00", "12:59:59"] {
        world.clock.set(at(&format!("2027-03-01T{time}Z")));
        tokio::task::yield_now().await;
    }
    world.clock.set(at("2027-03-01T13:00:00Z"));
    world.settled(&hourly, 3).await;
    // Forward over a day.
    world.clock.set(at("2027-03-02T16:20:00Z"));
    let runs = world.settled(&hourly, 4).await;
    let expected = [
        "2027-03-01T11:00:00Z",
        "2027-03-01T12:00:00Z",
        "2027-03-01T13:00:00Z",
        "2027-03-02T16:00:00Z",
    ];
    assert_eq!(dues(&runs), expected);
    assert_eq!(runs[3].status, RunStatus::Skipped);
    assert!(
        runs[3]
            .error
            .as_ref()
            .unwrap()
            .contains("2027-03-01T14:00:00Z")
    );
    assert_eq!(
        world.sessions().await.len(),
        3,
        "one session for each that ran"
    );
    let error = runs[0].error.as_ref().unwrap();
    assert!(error.contains("no containers here"), "{error}");
    world.engine.stop().await;
}

#[tokio::test]
async fn a_server_that_dies_between_claim_spawn_and_record_leaves_one_run_with_one_session() {
    let mut world = World::new(at(START), |_| {}).await;
    let schedule = world.schedule(1, "@yearly", "UTC");
    let schedule = world.add(schedule).await;
    for point in 0..4 {
        let firing = world.firing(&schedule);
        let run = world
            .store()
            .fire(vec![firing], None)
            .await
            .unwrap()
            .remove(0);
        if point >= 1 {
            let lease = world.engine.lease();
            let deadline = lease.at + seconds(3600);
            let claimed = world.store().claim_runs(&lease, deadline, 9).await.unwrap();
            assert_eq!(claimed.len(), 1);
        }
        if point >= 2 {
            // Made, and its owner has not looked at it.
            let mark = RunMark {
                run: run.id,
                pin: false,
                note: None,
            };
            let actor = actor(world.token);
            let ask = json!({ "project_id": world.project, "prompt": "x", "new_session": true });
            let call = Call::new().for_run(mark);
            let ask = ask.as_object().cloned().unwrap();
            let made = world.engine.call(&actor, "session_spawn", ask, call).await;
            made.unwrap();
        }
        if point >= 3 {
            // Its turn is over, and nobody has recorded that.
            let found = world.store().run(run.id).await.unwrap().unwrap();
            let session = found.session_id.unwrap();
            let failed = world
                .engine
                .wait_for_session(session, Duration::from_secs(30), |s| s.status.is_ended());
            assert!(failed.await.unwrap());
        }
        world.restart().await;
        // What the server does when it has let containers in.
        world.engine.adopt_sessions().await.unwrap();
        world.engine.run_schedules();
        let runs = world.settled(&schedule, point + 1).await;
        assert_eq!(runs.len(), point + 1);
        let sessions: HashSet<_> = runs.iter().map(|run| run.session_id.unwrap()).collect();
        assert_eq!(sessions.len(), point + 1, "each run has its own");
        assert_eq!(
            world.sessions().await.len(),
            point + 1,
            "and there are no others"
        );
        for id in sessions {
            let session = world.store().session(id).await.unwrap().unwrap();
            assert_eq!(session.turns, 1, "each was asked once");
        }
        world.restart().await;
    }
}

#[tokio::test]
async fn a_thousand_due_in_one_second_all_run_in_order_and_few_at_once() {
    let world = World::new(at(START), |settings| {
        settings.schedules.max_concurrent_runs = 3;
    })
    .await;
    for n in 1..=1000 {
        let schedule = world.schedule(n, "0 11 * * *", "UTC");
        assert!(world.store().add_schedule(&schedule, None).await.unwrap());
    }
    world.clock.set(at("2027-03-01T11:00:00Z"));
    world.engine.run_schedules();
    let ids: Vec<_> = (1..=1000)
        .map(|n| world.schedule(n, "@daily", "UTC").id)
        .collect();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    let mut ended = 0;
    while ended < ids.len() {
        assert!(tokio::time::Instant::now() < deadline, "{ended} are over");
        ended = 0;
        for id in &ids {
            let runs = world.history(*id).await;
            assert!(runs.len() <= 1, "{runs:#?}");
            ended += runs.iter().filter(|run| run.ended_at.is_some()).count();
            assert!(world.engine.schedules().running.lock().unwrap().len() <= 3);
        }
    }
    // Sessions are listed newest first, and made in the order of the runs, give or take those that
    // went on at once.
    let mut sessions = world.sessions().await;
    sessions.reverse();
    assert_eq!(sessions.len(), 1000);
    for (place, id) in ids.iter().enumerate() {
        let run = world.history(*id).await.remove(0);
        let session = run.session_id.unwrap();
        let found = sessions.iter().position(|other| *other == session).unwrap();
        assert!(found.abs_diff(place) <= 3, "run {place} was number {found}");
    }
    world.engine.stop().await;
}

#[tokio::test]
async fn a_token_that_has_expired_stops_a_run_and_five_of_them_the_schedule() {
    let mut world = World::new(at(START), |_| {}).await;
    let soon = at("2027-03-01T11:30:00Z");
    let minted = crate::Minted::draw(
        "short",
        oubliette_model::Scope::Write,
        at(START),
        Some(soon),
    );
    let crate::Minted { token, key } = minted.unwrap();
    world
        .store()
        .add_token(&token, key.hash(), None)
        .await
        .unwrap();
    let hourly = Schedule {
        owner_id: token.id,
        overlap: Overlap::Skip,
        session_behavior: SessionBehavior::Resume,
        ..world.schedule(1, "@hourly", "UTC")
    };
    let hourly = world.add(hourly).await;
    world.engine.run_schedules();
    for hour in 11..=15 {
        world.clock.set(at(&format!("2027-03-01T{hour}:00:00Z")));
        world.settled(&hourly, hour - 10).await;
    }
    world.clock.set(at("2027-03-01T16:00:00Z"));
    assert!(world.engine.fire_due().await.unwrap().is_empty());
    let runs = world.history(hourly.id).await;
    assert_eq!(runs.len(), 5, "disabled after the fifth: {runs:#?}");
    assert!(runs[0].session_id.is_some() && runs[0].error.as_ref().unwrap().contains("containers"));
    for run in &runs[1..] {
        assert_eq!((run.status, run.session_id), (RunStatus::Failed, None));
        assert!(
            run.error.as_ref().unwrap().contains("has expired"),
            "{run:?}"
        );
    }
    let stored = world.store().schedule(hourly.id).await.unwrap().unwrap();
    assert!(!stored.enabled && stored.next_at.is_none());
    assert!(stored.disabled_reason.unwrap().contains("5 runs in a row"));
    world.restart().await;
}

#[tokio::test]
async fn a_session_that_fails_twice_in_a_row_is_replaced_and_the_history_says_so() {
    let mut world = World::new(at(START), |_| {}).await;
    let schedule = Schedule {
        session_behavior: SessionBehavior::Resume,
        ..world.schedule(1, "@hourly", "UTC")
    };
    let schedule = world.add(schedule).await;
    world.engine.run_schedules();
    for hour in 11..=13 {
        world.clock.set(at(&format!("2027-03-01T{hour}:00:00Z")));
        world.settled(&schedule, hour - 10).await;
    }
    let runs = world.settled(&schedule, 3).await;
    assert_eq!(runs[0].session_id, runs[1].session_id);
    assert_ne!(runs[1].session_id, runs[2].session_id);
    let note = runs[2].note.as_ref().unwrap();
    assert!(
        note.contains("failed twice") && note.contains("new one"),
        "{note}"
    );
    world.restart().await;
}

#[tokio::test]
async fn what_an_agent_schedules_stands_below_its_session_and_ends_with_it() {
    let world = World::new(at(START), |_| {}).await;
    world.engine.run_schedules();
    let admin = actor(world.token);
    let call = async |actor: &Actor, name: &str, parameters: Value| {
        let parameters = parameters.as_object().cloned().unwrap();
        world
            .engine
            .call(actor, name, parameters, Call::new())
            .await
    };
    // A session at work: nobody has woken its owner.
    let own = SessionId::new(Uuid::from_u128(7));
    let session = Session {
        owner_id: Some(world.token),
        ..Session::new(
            own,
            world.project,
            WorkspaceId::default(),
            "demo",
            at(START),
        )
    };
    let new = NewSession {
        session,
        message: None,
        join: false,
        call: None,
        run: None,
        limits: TreeLimits {
            depth: 3,
            sessions: 9,
            cost_usd: 1.0,
            spawns_per_minute: 9,
        },
    };
    world.store().spawn_session(&new, None).await.unwrap();
    // The key is anybody's, but it is used on the connection of that session.
    let agent = Actor {
        session: Some(own),
        ..admin.clone()
    };
    let made = json!({
        "name": "mine", "cron_expr": "@yearly", "prompt": "x",
        "targets": [{ "project_id": world.project }],
    });
    let made = call(&agent, "schedule_create", made).await.unwrap();
    let id = json!({ "schedule_id": made["schedule_id"] });
    let schedule = made["schedule_id"].as_str().unwrap().parse().unwrap();
    let schedule = world.store().schedule(schedule).await.unwrap().unwrap();
    call(&agent, "schedule_trigger", id.clone()).await.unwrap();
    let runs = world.settled(&schedule, 1).await;
    let child = runs[0].session_id.unwrap();
    let child = world.store().session(child).await.unwrap().unwrap();
    assert_eq!((child.parent_id, child.root_id), (Some(own), own));

    let ended = Step {
        at: at(START),
        status: Some(Status::Completed),
        ..Step::default()
    };
    world.store().step(own, ended).await.unwrap();
    call(&admin, "schedule_trigger", id.clone()).await.unwrap();
    let runs = world.settled(&schedule, 2).await;
    assert_eq!(runs[1].session_id, None);
    let error = runs[1].error.as_ref().unwrap();
    assert!(
        error.contains("has ended") && error.contains("schedule_update"),
        "{error}"
    );
    // Whoever takes it over has it, and what is not the agent's own it cannot begin.
    call(&admin, "schedule_update", id.clone()).await.unwrap();
    let refused = call(&agent, "schedule_trigger", id.clone()).await;
    assert!(
        matches!(refused, Err(EngineError::Refused { .. })),
        "{refused:?}"
    );
    call(&admin, "schedule_trigger", id).await.unwrap();
    let runs = world.settled(&schedule, 3).await;
    let session = runs[2].session_id.unwrap();
    let session = world.store().session(session).await.unwrap().unwrap();
    assert_eq!(session.parent_id, None);
    world.engine.stop().await;
}
