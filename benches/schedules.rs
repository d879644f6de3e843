//! The CPU time of a server with ten thousand schedules of which none is due, compared with a server
//! without schedules, and how late a due schedule starts among them.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use oubliette_benches::statistics::median;
use oubliette_benches::{Table, Targets, cpu_time, create_project, is_quick};
use oubliette_model::{
    CronSchedule, MissedRuns, Overlap, RunStatus, ScheduleId, SessionBehavior, TokenId,
};
use oubliette_store::sqlite::Sqlite;
use oubliette_store::{RunFilter, Schedule, ScheduleStore, ScheduleTarget};
use support::{Server, ServerOptions};
use uuid::Uuid;

const SCHEDULE_COUNT: u128 = 10_000;
/// Additional CPU time per second.
const MAX_IDLE_CPU_US: f64 = 50.0;
const MAX_LATENESS_MS: f64 = 50.0;

fn main() {
    let seconds = if is_quick() { 10 } else { 60 };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (none, _) = start_server(&runtime, 0);
    let (many, every_second) = start_server(&runtime, SCHEDULE_COUNT);
    // The start is not measured. Idle threads end after ten seconds, and their CPU time is no longer
    // counted.
    std::thread::sleep(Duration::from_secs(15));
    let before = [none.pid(), many.pid()].map(cpu_time);
    std::thread::sleep(Duration::from_secs(seconds));
    let after = [none.pid(), many.pid()].map(cpu_time);
    let per_second =
        |n: usize| after[n].saturating_sub(before[n]).as_secs_f64() * 1e6 / seconds as f64;
    let mut table = Table::new(["idle", "seconds", "CPU per second"]);
    for (n, what) in ["no schedules", "10,000 schedules"].into_iter().enumerate() {
        let spent = format!("{:.1} µs", per_second(n));
        table.row([what.to_owned(), seconds.to_string(), spent]);
    }
    table.print();
    let late_ms = measure_lateness(&runtime, many, every_second);
    let mut table = Table::new(["from due to started", "runs", "median", "worst"]);
    let worst = late_ms.iter().copied().fold(0.0, f64::max);
    let middle = median(late_ms.iter().copied());
    table.row([
        "one each second among 10,000".to_owned(),
        late_ms.len().to_string(),
        format!("{middle:.1} ms"),
        format!("{worst:.1} ms"),
    ]);
    table.print();
    let mut targets = Targets::default();
    let added = (per_second(1) - per_second(0)).max(0.0);
    let what = "CPU time of 10,000 idle schedules per second";
    targets.at_most(what, added, MAX_IDLE_CPU_US, " µs");
    targets.at_most("from due to started", middle, MAX_LATENESS_MS, " ms");
    targets.print();
}

/// A server with `count` schedules that are not due for months, and a disabled one that runs every second.
fn start_server(runtime: &tokio::runtime::Runtime, count: u128) -> (Server, ScheduleId) {
    let config = "runtime = \"none\"\n[schedules]\nmin_interval_seconds = 1\n";
    let mut server = Server::start_with(ServerOptions {
        config: config.to_owned(),
        ..ServerOptions::default()
    });
    let project = create_project(&server, "one").parse().unwrap();
    server.stop();
    let store = Sqlite::open(&server.home().join("oubliette.db")).unwrap();
    let now = Timestamp::now();
    let schedule = |n: u128, cron_expr: &str| Schedule {
        id: ScheduleId::new(Uuid::from_u128(n + 1)),
        revision: 1,
        name: format!("schedule {n}"),
        cron_expr: cron_expr.to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        prompt: "do it".to_owned(),
        targets: vec![ScheduleTarget {
            project_id: project,
            workspace_id: None,
            session_id: None,
        }],
        enabled: true,
        overlap: Overlap::Parallel,
        session_behavior: SessionBehavior::New,
        missed_runs: MissedRuns::Skip,
        owner_id: TokenId::new(Uuid::from_u128(1)),
        owner_session: None,
        next_at: CronSchedule::parse(cron_expr, "Europe/Berlin")
            .unwrap()
            .next_after(now),
        disabled_reason: None,
        failures: 0,
        created_at: now,
        updated_at: now,
    };
    // A month that is neither this one nor the next.
    let month = (now + SignedDuration::from_hours(24 * 90))
        .strftime("%-m")
        .to_string();
    let every_second = Schedule {
        enabled: false,
        next_at: None,
        ..schedule(count, "* * * * * *")
    };
    runtime.block_on(async {
        for n in 0..count {
            let cron_expr = format!("{} {} {} {month} *", n % 60, n % 24, 1 + n % 28);
            assert!(
                store
                    .add_schedule(&schedule(n, &cron_expr), None)
                    .await
                    .unwrap()
            );
        }
        assert!(store.add_schedule(&every_second, None).await.unwrap());
    });
    drop(store);
    server.start_again();
    (server, every_second.id)
}

/// Milliseconds from due to started, for each run of a schedule.
fn measure_lateness(
    runtime: &tokio::runtime::Runtime,
    mut server: Server,
    schedule: ScheduleId,
) -> Vec<f64> {
    let admin = server.admin();
    let enable = serde_json::json!({ "schedule_id": schedule, "enabled": true });
    runtime.block_on(async { admin.call("schedule_update", enable).await.ok().clone() });
    // Without a runtime every run fails, and the schedule is disabled after five failures.
    std::thread::sleep(Duration::from_secs(7));
    server.stop();
    let store = Sqlite::open(&server.home().join("oubliette.db")).unwrap();
    let filter = RunFilter::default();
    let runs = runtime
        .block_on(store.schedule_runs(schedule, &filter, None, 100))
        .unwrap();
    let late = runs.rows.iter().map(|run| {
        assert_eq!(run.status, RunStatus::Failed);
        run.started_at.unwrap().duration_since(run.due_at)
    });
    late.map(|late| late.as_secs_f64() * 1e3).collect()
}
