//! What ten thousand schedules cost a server while none is due, beside a server that has none, and how
//! late one begins that is due among them.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use oubliette_benches::figures::median;
use oubliette_benches::{Aims, Table, cpu_time, is_quick, make_project};
use oubliette_model::{
    CronSchedule, MissedRuns, Overlap, RunStatus, ScheduleId, SessionBehavior, TokenId,
};
use oubliette_store::sqlite::Sqlite;
use oubliette_store::{RunFilter, Schedule, Schedules, Target};
use support::{Server, ServerOptions};
use uuid::Uuid;

const SCHEDULES: u128 = 10_000;
/// What they may cost in a second besides: a thousandth of a processor would be 1000 µs.
const IDLE_US: f64 = 50.0;
const LATE_MS: f64 = 50.0;

fn main() {
    let seconds = match is_quick() {
        true => 10,
        false => 60,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (none, _) = server(&runtime, 0);
    let (many, often) = server(&runtime, SCHEDULES);
    // What a server does when it starts is not what is measured, and threads that have nothing to do
    // take what they have spent along when they end after ten seconds.
    std::thread::sleep(Duration::from_secs(15));
    let before = [none.pid(), many.pid()].map(cpu_time);
    std::thread::sleep(Duration::from_secs(seconds));
    let after = [none.pid(), many.pid()].map(cpu_time);
    let per_second =
        |n: usize| after[n].saturating_sub(before[n]).as_secs_f64() * 1e6 / seconds as f64;
    let mut table = Table::new(["idle for so many seconds", "", "processor, per second"]);
    for (n, what) in ["no schedules", "10,000 schedules"].into_iter().enumerate() {
        let spent = format!("{:.1} µs", per_second(n));
        table.row([what.to_owned(), seconds.to_string(), spent]);
    }
    table.print();
    let late = lateness(&runtime, many, often);
    let mut table = Table::new(["from due to begun", "runs", "median", "worst"]);
    let worst = late.iter().copied().fold(0.0, f64::max);
    let middle = median(late.iter().copied());
    table.row([
        "one each second among 10,000".to_owned(),
        late.len().to_string(),
        format!("{middle:.1} ms"),
        format!("{worst:.1} ms"),
    ]);
    table.print();
    let mut aims = Aims::default();
    let more = (per_second(1) - per_second(0)).max(0.0);
    let what = "what 10,000 idle schedules cost in a second";
    aims.at_most(what, more, IDLE_US, " µs");
    aims.at_most("from due to begun", middle, LATE_MS, " ms");
    aims.print();
}

/// A server with so many schedules that are not due for months, and a disabled one that would run each
/// second.
fn server(runtime: &tokio::runtime::Runtime, count: u128) -> (Server, ScheduleId) {
    let config = "runtime = \"none\"\n[schedules]\nmin_interval_seconds = 1\n";
    let mut server = Server::start_with(ServerOptions {
        config: config.to_owned(),
        ..ServerOptions::default()
    });
    let project = make_project(&server, "one").parse().unwrap();
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
        targets: vec![Target {
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
    let often = Schedule {
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
        assert!(store.add_schedule(&often, None).await.unwrap());
    });
    drop(store);
    server.start_again();
    (server, often.id)
}

/// How many milliseconds runs began after they were due, in the history of one that is each second.
fn lateness(runtime: &tokio::runtime::Runtime, mut server: Server, often: ScheduleId) -> Vec<f64> {
    let admin = server.admin();
    let enable = serde_json::json!({ "schedule_id": often, "enabled": true });
    runtime.block_on(async { admin.call("schedule_update", enable).await.ok().clone() });
    // It is disabled after five failures, of which there are as many as runs: nothing makes containers.
    std::thread::sleep(Duration::from_secs(7));
    server.stop();
    let store = Sqlite::open(&server.home().join("oubliette.db")).unwrap();
    let filter = RunFilter::default();
    let runs = runtime
        .block_on(store.runs(often, &filter, None, 100))
        .unwrap();
    let late = runs.rows.iter().map(|run| {
        assert_eq!(run.status, RunStatus::Failed);
        run.started_at.unwrap().duration_since(run.due_at)
    });
    late.map(|late| late.as_secs_f64() * 1e3).collect()
}
