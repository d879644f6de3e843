//! Contract tests for schedules and their runs.

use futures_util::future::join_all;
use jiff::Timestamp;
use oubliette_model::{
    Event, MissedRuns, Overlap, ProjectId, RunCause, RunStatus, ScheduleId, SessionBehavior,
    SessionId, Status, StopReason, Usage,
};
use uuid::Uuid;

use super::sessions::{message, new, session};
use super::{Must, at, entry, ready, token_id};
use crate::{
    AuditFilter, CallTurn, FinishedRun, Firing, Lease, NewSession, RunBinding, RunFilter, Schedule,
    ScheduleRun, ScheduleTarget, ScheduleUpdate, SessionStep, SpawnOutcome, StopRequest, Store,
    VisibleProjects,
};

fn target(project_id: ProjectId) -> ScheduleTarget {
    ScheduleTarget {
        project_id,
        workspace_id: None,
        session_id: None,
    }
}

pub(super) fn schedule(n: u128, projects: &[ProjectId], next: i64) -> Schedule {
    Schedule {
        id: ScheduleId::new(Uuid::from_u128(n)),
        revision: 1,
        name: format!("schedule {n}"),
        cron_expr: "@hourly".to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        prompt: "do it".to_owned(),
        targets: projects.iter().copied().map(target).collect(),
        enabled: true,
        overlap: Overlap::Skip,
        session_behavior: SessionBehavior::Resume,
        missed_runs: MissedRuns::RunOnce,
        owner_id: token_id(9),
        owner_session: Some(SessionId::new(Uuid::from_u128(n))),
        next_at: Some(at(next)),
        disabled_reason: None,
        failures: 0,
        created_at: at(1),
        updated_at: at(1),
    }
}

pub(super) async fn add_schedule(store: &dyn Store, schedule: Schedule) -> Schedule {
    assert!(store.add_schedule(&schedule, None).await.must());
    schedule
}

/// A firing of a due schedule that is due again an hour later.
fn firing(of: &Schedule, due: i64) -> Firing {
    Firing {
        schedule_id: of.id,
        at: at(due),
        due_at: at(due),
        cause: RunCause::Schedule,
        reschedule: Some((at(due), Some(at(due + 3600)))),
        skip_reason: None,
        note: None,
        disable_reason: None,
    }
}

fn trigger(of: &Schedule, second: i64) -> Firing {
    Firing {
        reschedule: None,
        cause: RunCause::Trigger,
        ..firing(of, second)
    }
}

async fn fire(store: &dyn Store, firing: Firing) -> Vec<ScheduleRun> {
    store.fire_schedules(vec![firing], None).await.must()
}

fn lease(holder: &str, second: i64) -> Lease {
    Lease {
        holder: holder.to_owned(),
        at: at(second),
        until: at(second + 60),
    }
}

async fn claim(store: &dyn Store, holder: &str, second: i64, limit: u32) -> Vec<ScheduleRun> {
    let deadline = at(second + 1000);
    store
        .claim_runs(&lease(holder, second), deadline, limit)
        .await
        .must()
}

fn ended(status: RunStatus, second: i64) -> FinishedRun {
    FinishedRun {
        at: at(second),
        status,
        output: Some("done".to_owned()),
        truncated: false,
        error: None,
        stop_request: None,
        max_failures: 5,
        disable_reason: "too many".to_owned(),
    }
}

async fn stored_schedule(store: &dyn Store, id: ScheduleId) -> Schedule {
    let found = store.schedule(id).await.must();
    found.unwrap_or_else(|| panic!("no schedule"))
}

async fn history(store: &dyn Store, id: ScheduleId) -> Vec<ScheduleRun> {
    let page = store
        .schedule_runs(id, &RunFilter::default(), None, 1000)
        .await;
    page.must().rows
}

fn binding(run: &ScheduleRun) -> RunBinding {
    RunBinding {
        run: run.id,
        pin: true,
        note: None,
    }
}

fn for_run(n: u128, run: &ScheduleRun) -> NewSession {
    NewSession {
        run: Some(binding(run)),
        ..new(session(n, run.project_id, 10), "do it")
    }
}

async fn take_turn(store: &dyn Store, id: SessionId, cost: f64) {
    let message = store.next_message(id).await.must();
    let message = message.unwrap_or_else(|| panic!("no message is queued"));
    let prompt = Event::Prompt {
        text: message.text,
        attachments: Vec::new(),
    };
    let completion = Event::Completion {
        text: "done".to_owned(),
        stop_reason: StopReason::EndTurn,
        error: None,
        kind: oubliette_model::TurnKind::Prompt,
        changed: None,
    };
    let step = SessionStep {
        at: at(20),
        events: vec![prompt, completion],
        taken_message: Some(message.id),
        usage: Some((Usage::default(), cost)),
        status: Some(Status::Idle),
        ..SessionStep::default()
    };
    store.commit_step(id, step).await.must();
}

pub(super) async fn a_schedule_is_read_listed_updated_and_removed(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let two = ready(store, 2, "two").await.id;
    let first = add_schedule(store, schedule(1, &[one], 100)).await;
    let both = add_schedule(store, schedule(2, &[two, one], 50)).await;
    assert_eq!(stored_schedule(store, first.id).await, first);
    assert_eq!(stored_schedule(store, both.id).await, both);
    let gone = ProjectId::new(Uuid::from_u128(404));
    let nowhere = schedule(3, &[one, gone], 50);
    assert!(!store.add_schedule(&nowhere, None).await.must());
    assert_eq!(store.schedule(nowhere.id).await.must(), None);

    let listed = async |visible| {
        let page = store.schedules(visible, None, 10).await.must();
        let ids = page.rows.iter().map(|schedule| schedule.id);
        ids.collect::<Vec<_>>()
    };
    assert_eq!(listed(VisibleProjects::All).await, [both.id, first.id]);
    assert_eq!(listed(VisibleProjects::Only(two)).await, [both.id]);
    let page = store.schedules(VisibleProjects::All, None, 1).await.must();
    let rest = store
        .schedules(VisibleProjects::All, page.next.as_deref(), 1)
        .await
        .must();
    assert_eq!((rest.rows[0].id, rest.next), (first.id, None));

    assert_eq!(store.next_due_at().await.must(), Some(at(50)));
    let due = store.due_schedules(at(99), 10).await.must();
    assert_eq!(due.len(), 1);
    let due = store.due_schedules(at(100), 10).await.must();
    assert_eq!(
        due.iter().map(|s| s.id).collect::<Vec<_>>(),
        [both.id, first.id]
    );

    let changed = Schedule {
        name: "other".to_owned(),
        targets: vec![target(one)],
        enabled: false,
        next_at: None,
        updated_at: at(5),
        ..both.clone()
    };
    let update = store.update_schedule(&changed, Some(entry("schedule_update")));
    assert_eq!(update.await.must(), ScheduleUpdate::Done);
    let update = store.update_schedule(&changed, Some(entry("schedule_update")));
    assert_eq!(update.await.must(), ScheduleUpdate::Stale);
    let logged = store
        .audit_records(&AuditFilter::default(), None, 9)
        .await
        .must();
    assert_eq!(
        logged.rows.len(),
        1,
        "only the successful update is audited"
    );
    let found = stored_schedule(store, both.id).await;
    assert_eq!(
        found,
        Schedule {
            revision: 2,
            ..changed
        }
    );
    assert_eq!(store.next_due_at().await.must(), Some(at(100)));

    fire(store, firing(&first, 100)).await;
    let removed = store.remove_schedule(first.id, None).await.must();
    assert_eq!(removed, Some(1));
    assert_eq!(store.remove_schedule(first.id, None).await.must(), None);
    assert!(history(store, first.id).await.is_empty());
    assert_eq!(claim(store, "a", 101, 9).await, []);
}

pub(super) async fn concurrent_firings_for_one_due_time_create_runs_once(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let two = ready(store, 2, "two").await.id;
    let both = add_schedule(store, schedule(1, &[one, two], 100)).await;
    let racing = (0..10).map(|_| store.fire_schedules(vec![firing(&both, 100)], None));
    let created: Vec<usize> = join_all(racing)
        .await
        .into_iter()
        .map(|runs| runs.must().len())
        .collect();
    assert_eq!(created.iter().sum::<usize>(), 2, "{created:?}");
    assert_eq!(
        stored_schedule(store, both.id).await.next_at,
        Some(at(3700))
    );
    assert!(fire(store, firing(&both, 100)).await.is_empty());
    assert_eq!(history(store, both.id).await.len(), 2);
    // A trigger does not change the next due time.
    assert_eq!(fire(store, trigger(&both, 200)).await.len(), 2);
    assert_eq!(
        stored_schedule(store, both.id).await.next_at,
        Some(at(3700))
    );

    let last = Firing {
        reschedule: Some((at(3700), None)),
        disable_reason: Some("no more".to_owned()),
        skip_reason: Some("missed".to_owned()),
        ..firing(&both, 3700)
    };
    let runs = fire(store, last).await;
    assert!(runs.iter().all(|run| run.status == RunStatus::Skipped));
    let found = stored_schedule(store, both.id).await;
    assert_eq!((found.enabled, found.next_at), (false, None));
    assert_eq!(found.disabled_reason.as_deref(), Some("no more"));
}

pub(super) async fn an_unfinished_run_affects_later_runs_by_the_overlap_setting(store: &dyn Store) {
    use RunStatus::{Queued, Running, Skipped};
    let one = ready(store, 1, "one").await.id;
    for (n, overlap, expected) in [
        (1, Overlap::Skip, [Running, Skipped, Skipped, Skipped]),
        (2, Overlap::Queue, [Running, Queued, Skipped, Skipped]),
        (3, Overlap::Parallel, [Running, Running, Running, Running]),
    ] {
        let created = Schedule {
            overlap,
            ..schedule(n, &[one], 100)
        };
        let created = add_schedule(store, created).await;
        for second in [100, 200, 300, 400] {
            fire(store, trigger(&created, second)).await;
            claim(store, "a", second, 9).await;
        }
        let mut statuses: Vec<RunStatus> = history(store, created.id)
            .await
            .iter()
            .map(|run| run.status)
            .collect();
        statuses.reverse();
        assert_eq!(statuses, expected, "{overlap:?}");
        for run in history(store, created.id).await {
            assert_eq!(run.error.is_some(), run.status == Skipped);
            store
                .finish_run(run.id, ended(RunStatus::Success, 500))
                .await
                .must();
        }
        // The queued run starts.
        let next = claim(store, "a", 500, 9).await;
        assert_eq!(next.len(), usize::from(overlap == Overlap::Queue));
        for run in next {
            store
                .finish_run(run.id, ended(RunStatus::Success, 501))
                .await
                .must();
        }
        // The number of queued runs is limited, also if runs may overlap.
        let mut queued = 0;
        for second in 600..720 {
            let runs = fire(store, trigger(&created, second)).await;
            queued += runs.iter().filter(|run| run.status == Queued).count();
        }
        assert_eq!(queued, if overlap == Overlap::Parallel { 100 } else { 1 });
        while let Some(run) = claim(store, "a", 800, 1).await.pop() {
            let over = ended(RunStatus::Success, 801);
            store.finish_run(run.id, over).await.must();
        }
    }
}

pub(super) async fn a_run_is_claimed_once_until_its_lease_expires(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let mut created = Vec::new();
    for n in 1..=20 {
        let one = add_schedule(store, schedule(n, &[one], 100)).await;
        created.extend(fire(store, firing(&one, 100)).await);
    }
    let servers = ["a", "b"].repeat(5);
    let racing = servers.iter().map(|by| claim(store, by, 101, 2));
    let claimed: Vec<ScheduleRun> = join_all(racing).await.into_iter().flatten().collect();
    let mut ids: Vec<_> = claimed.iter().map(|run| run.id).collect();
    let mut expected: Vec<_> = created.iter().map(|run| run.id).collect();
    ids.sort_unstable();
    ids.dedup();
    expected.sort_unstable();
    assert_eq!(ids, expected, "each run is claimed once");
    assert!(claimed.iter().all(|run| run.started_at == Some(at(101))
        && run.deadline == Some(at(1101))
        && run.status == RunStatus::Running));
    let ends = store.next_lease_end("a").await.must();
    assert_eq!(ends, Some(at(161)));

    // A restarted server adopts its own runs at once, but not those of other servers.
    let mine = store.adopt_runs(&lease("a", 110)).await.must();
    assert_eq!(mine.len(), 10);
    assert!(claim(store, "a", 120, 20).await.is_empty());
    store.renew_runs(&lease("b", 150)).await.must();
    assert!(claim(store, "a", 161, 20).await.is_empty());
    let left = claim(store, "a", 210, 20).await;
    assert_eq!(left.len(), 10, "the leases of b have expired");
    assert!(left.iter().all(|run| run.deadline == Some(at(1101))));
    let order: Vec<_> = left
        .windows(2)
        .map(|two| two[0].created_at <= two[1].created_at)
        .collect();
    assert!(order.into_iter().all(|kept| kept));
}

pub(super) async fn repeated_spawns_for_a_run_create_one_session(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = add_schedule(store, schedule(1, &[one], 100)).await;
    let run = fire(store, firing(&created, 100)).await.remove(0);
    let early = store.spawn_session(&for_run(1, &run), None).await.must();
    assert_eq!(
        early,
        SpawnOutcome::Gone,
        "a queued run cannot get a session"
    );
    claim(store, "a", 101, 1).await;
    assert_eq!(store.run_turn(run.id).await.must(), None);
    let asked: Vec<NewSession> = (10..20).map(|n| for_run(n, &run)).collect();
    let outcomes = join_all(asked.iter().map(|new| store.spawn_session(new, None))).await;
    let mut fresh = 0;
    for outcome in outcomes {
        match outcome.must() {
            SpawnOutcome::New(_) => fresh += 1,
            SpawnOutcome::Joined { resumed, .. } => assert!(!resumed),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(fresh, 1);
    let found = store.schedule_run(run.id).await.must();
    let session = found.and_then(|run| run.session_id);
    let session = session.unwrap_or_else(|| panic!("no session"));
    assert_eq!(store.queued_messages(session).await.must(), 1);
    assert_eq!(
        stored_schedule(store, created.id).await.targets[0].session_id,
        Some(session)
    );
    assert_eq!(store.run_turn(run.id).await.must(), Some(CallTurn::Queued));
    take_turn(store, session, 0.5).await;
    let turn = store.run_turn(run.id).await.must();
    assert!(matches!(turn, Some(CallTurn::Answered(_))), "{turn:?}");
    store
        .finish_run(run.id, ended(RunStatus::Success, 130))
        .await
        .must();
    let late = store.spawn_session(&for_run(30, &run), None).await.must();
    assert_eq!(late, SpawnOutcome::Gone);
    assert_eq!(history(store, created.id).await[0].cost_usd, Some(0.5));
    // An update keeps the pinned session.
    let edited = Schedule {
        prompt: "do it well".to_owned(),
        ..created
    };
    assert_eq!(
        store.update_schedule(&edited, None).await.must(),
        ScheduleUpdate::Done
    );
    assert_eq!(
        stored_schedule(store, edited.id).await.targets[0].session_id,
        Some(session)
    );
}

pub(super) async fn repeated_queueing_for_a_run_sends_the_prompt_once(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = add_schedule(store, schedule(1, &[one], 100)).await;
    let SpawnOutcome::New(pinned) = store
        .spawn_session(&new(session(1, one, 1), "before"), None)
        .await
        .must()
    else {
        panic!("not created");
    };
    take_turn(store, pinned.id, 1.0).await;
    let run = fire(store, firing(&created, 100)).await.remove(0);
    claim(store, "a", 101, 1).await;
    for _ in 0..3 {
        let queued = store
            .queue_run(&binding(&run), pinned.id, &message("do it", 102), None)
            .await
            .must();
        assert!(queued.is_some_and(|(session, _)| session.id == pinned.id));
    }
    assert_eq!(store.queued_messages(pinned.id).await.must(), 1);
    // A run that is stopped before its turn starts withdraws its prompt and does not interrupt another
    // turn.
    let stopped = FinishedRun {
        stop_request: Some(StopRequest::Interrupt),
        ..ended(RunStatus::Failed, 110)
    };
    store.finish_run(run.id, stopped.clone()).await.must();
    assert_eq!(store.queued_messages(pinned.id).await.must(), 0);
    let found = store.session(pinned.id).await.must();
    assert_eq!(found.and_then(|session| session.stop_request), None);

    let run = fire(store, trigger(&created, 200)).await.remove(0);
    claim(store, "a", 201, 1).await;
    let message = message("do it", 202);
    store
        .queue_run(&binding(&run), pinned.id, &message, None)
        .await
        .must();
    take_turn(store, pinned.id, 1.25).await;
    store.finish_run(run.id, stopped).await.must();
    assert_eq!(history(store, created.id).await[0].cost_usd, Some(0.25));
    let found = store.session(pinned.id).await.must();
    assert_eq!(
        found.and_then(|session| session.stop_request),
        Some(StopRequest::Interrupt)
    );
    let over = store
        .queue_run(&binding(&run), pinned.id, &message, None)
        .await;
    assert_eq!(over.must(), None);
}

pub(super) async fn the_end_of_a_run_is_recorded_once(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = add_schedule(store, schedule(1, &[one], 100)).await;
    let run = fire(store, firing(&created, 100)).await.remove(0);
    let early = store.finish_run(run.id, ended(RunStatus::Failed, 1)).await;
    assert_eq!(early.must(), None, "the run has not started");
    claim(store, "a", 101, 1).await;
    let racing = (0..5).map(|n| {
        let status = match n % 2 {
            0 => RunStatus::Success,
            _ => RunStatus::Failed,
        };
        store.finish_run(run.id, ended(status, 110 + n))
    });
    let recorded = join_all(racing).await.into_iter().map(Must::must);
    assert_eq!(recorded.flatten().count(), 1);
    let found = history(store, created.id).await.remove(0);
    assert!(found.ended_at.is_some() && found.output.as_deref() == Some("done"));
    assert!(store.adopt_runs(&lease("a", 9999)).await.must().is_empty());
}

pub(super) async fn consecutive_failures_disable_a_schedule(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = add_schedule(store, schedule(1, &[one], 100)).await;
    let mut disabled = Vec::new();
    for (n, status) in [
        RunStatus::Failed,
        RunStatus::Failed,
        RunStatus::Success,
        RunStatus::Failed,
        RunStatus::Failed,
        RunStatus::Failed,
        RunStatus::Failed,
        RunStatus::Failed,
        RunStatus::Failed,
    ]
    .into_iter()
    .enumerate()
    {
        let second = 200 + n as i64;
        let run = fire(store, trigger(&created, second)).await.remove(0);
        claim(store, "a", second, 1).await;
        let outcome = store.finish_run(run.id, ended(status, second)).await;
        disabled.push(outcome.must().unwrap_or_else(|| panic!("not recorded")));
    }
    let expected = [false, false, false, false, false, false, false, true, false];
    assert_eq!(disabled, expected);
    let found = stored_schedule(store, created.id).await;
    assert_eq!(
        (found.enabled, found.next_at, found.failures),
        (false, None, 6)
    );
    assert_eq!(found.disabled_reason.as_deref(), Some("too many"));
    assert_eq!(store.next_due_at().await.must(), None);
}

pub(super) async fn deleting_a_project_removes_its_schedule_targets(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let two = ready(store, 2, "two").await.id;
    let only = add_schedule(store, schedule(1, &[one], 100)).await;
    let both = add_schedule(store, schedule(2, &[one, two], 100)).await;
    fire(store, firing(&only, 100)).await;
    fire(store, firing(&both, 100)).await;
    assert_eq!(claim(store, "a", 101, 9).await.len(), 3);
    store.mark_project_deleting(one, None).await.must();
    let found = stored_schedule(store, only.id).await;
    assert_eq!((found.enabled, found.next_at), (false, None));
    assert!(found.targets.is_empty() && found.disabled_reason.is_some());
    let found = stored_schedule(store, both.id).await;
    assert!(found.enabled && found.targets == [target(two)]);
    assert_eq!(history(store, both.id).await.len(), 1);
    let left = store.adopt_runs(&lease("a", 102)).await.must();
    assert!(left.iter().all(|run| run.project_id == two) && left.len() == 1);
    store.delete_project(one).await.must();
    assert!(store.schedule(only.id).await.must().is_some());
}

pub(super) async fn runs_are_trimmed_by_count_and_age(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let two = ready(store, 2, "two").await.id;
    let created = Schedule {
        overlap: Overlap::Parallel,
        ..schedule(1, &[one, two], 100)
    };
    let created = add_schedule(store, created).await;
    for second in 0..10 {
        for run in fire(store, trigger(&created, second)).await {
            claim(store, "a", second, 9).await;
            let over = ended(RunStatus::Success, second);
            store.finish_run(run.id, over).await.must();
        }
    }
    let waiting = fire(store, trigger(&created, 20)).await;
    let own = RunFilter {
        project_id: Some(two),
    };
    let page = store.schedule_runs(created.id, &own, None, 5).await.must();
    assert_eq!((page.rows.len(), page.next.is_some()), (5, true));
    assert!(page.rows.iter().all(|run| run.project_id == two));
    let rest = store
        .schedule_runs(created.id, &own, page.next.as_deref(), 100)
        .await;
    assert_eq!(rest.must().rows.len(), 6);

    let long_ago = Timestamp::from_second(0).must();
    assert_eq!(store.trim_runs(long_ago, 1000).await.must(), 0);
    assert_eq!(store.trim_runs(at(5), 1000).await.must(), 10);
    assert_eq!(store.trim_runs(long_ago, 6).await.must(), 6);
    let left = history(store, created.id).await;
    assert_eq!(left.len(), 6);
    assert_eq!(left[0].id, waiting[1].id);
    // Unfinished runs are never trimmed.
    assert_eq!(store.trim_runs(at(9999), 0).await.must(), 4);
    assert_eq!(history(store, created.id).await.len(), 2);
}
