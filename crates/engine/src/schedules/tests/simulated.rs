//! Simulates ten thousand schedules over more than a year, with servers that die at bad moments. The
//! runs are compared with the times that croner itself computes.

use std::collections::HashMap;
use std::time::Instant;

use croner::parser::{CronParser, Seconds};
use futures_util::future::join_all;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};
use oubliette_model::{MissedRuns, RunCause, RunStatus};
use oubliette_store::{FinishedRun, Schedule, ScheduleRun};

use super::{TestEngine, at, seconds};

const SCHEDULES: u64 = 10_000;
const DAYS: i64 = 400;
const RESTARTS: u64 = 80;

/// A pseudo-random generator with a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

const ZONES: [&str; 4] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
];

/// Mostly rare schedules, so that there are not millions of runs; a few of every other kind.
fn expression(random: &mut Random, n: u64) -> String {
    // Few times of day, near daylight saving changes, so that many are due together.
    let minute = 0;
    let hour = random.one_of(&[1, 2, 3]);
    let day = 1 + random.below(28);
    let month = 1 + random.below(12);
    match n {
        0 => "0 */6 * * *".to_owned(),
        1 => "0 */12 * * *".to_owned(),
        2..8 => format!("{minute} {hour} * * *"),
        8..12 => format!("0,30 {} * * MON-FRI", random.one_of(&[1, 2, 3])),
        12..20 => format!("{minute} 1-3 {day},L * *"),
        _ => match random.below(40) {
            0 => format!(
                "{minute} {hour} * * {}#{}",
                random.below(7),
                1 + random.below(4)
            ),
            1 => format!("{minute} {hour} L * *"),
            2 => format!("{minute} 2 {day} */3 *"),
            3 => format!("0 {minute} {hour} {day} {month} *"),
            4 => format!("{minute} {hour} {day}W {month},{} *", 1 + random.below(12)),
            5 => format!("{minute} {hour} 29 2 *"),
            _ => format!("{minute} {hour} {day} {month} *"),
        },
    }
}

/// The times that croner computes, in order. Times that it adds on days with a clock change are
/// removed: there it repeats a fixed time after the change.
fn instants(schedule: &Schedule, from: Timestamp, end: Timestamp) -> Vec<Timestamp> {
    let parser = CronParser::builder().seconds(Seconds::Optional).build();
    let cron = parser.parse(&schedule.cron_expr).unwrap();
    let zone = TimeZone::get(&schedule.timezone).unwrap();
    let was_jumped_over = |at: &Zoned| {
        let before = zone.to_offset(at.timestamp() - seconds(1));
        let first = before.to_datetime(at.timestamp());
        let jump = at.datetime().duration_since(first).as_mins();
        let mut minutes = (0..jump).map(|n| first + SignedDuration::from_mins(n));
        minutes.any(|civil| {
            let as_if = civil.to_zoned(TimeZone::UTC).unwrap();
            cron.is_time_matching(&as_if).unwrap()
        })
    };
    let runs = cron.iter_after(from.to_zoned(zone.clone()));
    let runs = runs.take_while(|at| at.timestamp() <= end);
    let meant = runs.filter(|at| cron.is_time_matching(at).unwrap() || was_jumped_over(at));
    meant.map(|at| at.timestamp()).collect()
}

/// The runs that a schedule must have, given the times at which a server checked it. All times due by
/// a check become one run if the last is within the grace period, and otherwise a missed run.
fn expected(
    schedule: &Schedule,
    instants: &[Timestamp],
    checks: &[Timestamp],
    grace: SignedDuration,
) -> Vec<(Timestamp, RunCause, RunStatus)> {
    let mut runs = Vec::new();
    let mut rest = instants;
    for check in checks {
        let due = rest.partition_point(|at| at <= check);
        let Some(last) = rest[..due].last() else {
            continue;
        };
        rest = &rest[due..];
        let on_time = check.duration_since(*last) <= grace;
        runs.push(match (on_time, schedule.missed_runs) {
            (true, _) => (*last, RunCause::Schedule, RunStatus::Success),
            (false, MissedRuns::RunOnce) => (*last, RunCause::Missed, RunStatus::Success),
            (false, MissedRuns::Skip) => (*last, RunCause::Missed, RunStatus::Skipped),
        });
    }
    runs
}

impl TestEngine {
    async fn record(&self, runs: Vec<ScheduleRun>) {
        let finished = FinishedRun {
            at: self.clock.now(),
            status: RunStatus::Success,
            output: None,
            truncated: false,
            error: None,
            stop_request: None,
            max_failures: 5,
            disable_reason: String::new(),
        };
        let recordings = runs
            .iter()
            .map(|run| self.store().finish_run(run.id, finished.clone()));
        for recorded in join_all(recordings).await {
            assert_eq!(recorded.unwrap(), Some(false), "a run ended twice");
        }
    }

    /// Claims and ends runs until none is left.
    async fn finish_all_runs(&self) {
        loop {
            let lease = self.engine.schedules().lease();
            let deadline = lease.at + seconds(3600);
            let claimed = self.store().claim_runs(&lease, deadline, 500).await;
            let claimed = claimed.unwrap();
            if claimed.is_empty() {
                return;
            }
            self.record(claimed).await;
        }
    }
}

#[tokio::test]
async fn ten_thousand_schedules_run_for_a_year_at_the_times_of_croner_although_servers_die() {
    let given = std::env::var("OUBLIETTE_TEST_SEED").ok();
    let seed = given.map_or(u64::from(std::process::id()), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = Random(seed);
    let start = at("2027-01-15T10:07:00Z");
    let end = start + SignedDuration::from_hours(24 * DAYS);
    let keep_everything = |settings: &mut crate::Settings| {
        settings.schedules.keep_days = 10_000;
        settings.schedules.keep_runs = 1_000_000;
    };
    let mut fixture = TestEngine::new(start, keep_everything).await;
    fixture.add_projects(SCHEDULES as usize / 100).await;
    let grace = seconds(fixture.settings.schedules.grace_seconds.into());

    let mut schedules = Vec::new();
    for n in 0..SCHEDULES {
        let expression = expression(&mut random, n);
        let zone = random.one_of(&ZONES);
        let missed_runs = random.one_of(&[MissedRuns::Skip, MissedRuns::RunOnce]);
        schedules.push(Schedule {
            missed_runs,
            ..fixture.schedule(u128::from(n) + 1, &expression, zone)
        });
    }
    let additions = schedules
        .iter()
        .map(|s| fixture.store().add_schedule(s, None));
    assert!(
        join_all(additions)
            .await
            .into_iter()
            .all(|added| added.unwrap())
    );

    let started = Instant::now();
    let mut checks = Vec::new();
    let interval = end.duration_since(start) / RESTARTS as i32;
    let mut restart_at = start + interval;
    loop {
        let Some(due) = fixture.store().next_due_at().await.unwrap() else {
            break;
        };
        // A server is a little late.
        let late = SignedDuration::from_millis(random.below(50_000) as i64);
        let mut now = due + late;
        let mut crash_point = None;
        if now >= restart_at {
            let down = match random.below(3) {
                0 => seconds(random.below(90) as i64),
                1 => SignedDuration::from_mins(random.below(600) as i64),
                _ => SignedDuration::from_hours(random.below(150) as i64),
            };
            restart_at = now + interval;
            fixture.restart().await;
            now += down;
            crash_point = Some(random.below(3));
        }
        if now > end {
            break;
        }
        fixture.clock.set(now);
        checks.push(now);
        fixture.engine.schedules().fire_due().await.unwrap();
        match crash_point {
            // With runs that are not started, and with started runs that have not ended.
            Some(0) => fixture.restart().await,
            Some(1) => {
                let lease = fixture.engine.schedules().lease();
                fixture.store().claim_runs(&lease, end, 3).await.unwrap();
                fixture.restart().await;
                let adopted = fixture
                    .store()
                    .adopt_runs(&fixture.engine.schedules().lease())
                    .await;
                fixture.record(adopted.unwrap()).await;
            }
            _ => {}
        }
        fixture.finish_all_runs().await;
    }
    let spent = started.elapsed();

    let (mut runs, mut kinds) = (0, HashMap::new());
    for schedule in &schedules {
        let instants = instants(schedule, start, end);
        let expected = expected(schedule, &instants, &checks, grace);
        let found = fixture.history(schedule.id).await;
        let found: Vec<_> = found
            .iter()
            .map(|run| (run.due_at, run.cause, run.status))
            .collect();
        assert_eq!(found, expected, "{schedule:?}, seed {seed}");
        runs += found.len();
        for (_, cause, status) in found {
            *kinds.entry(format!("{cause:?} {status:?}")).or_insert(0) += 1;
        }
        let next = fixture.store().schedule(schedule.id).await.unwrap();
        let due = next.and_then(|schedule| schedule.next_at);
        assert!(due.is_none_or(|next| next > checks[checks.len() - 1]));
    }
    println!(
        "{runs} runs at {} moments in {spent:.1?}: {kinds:?}",
        checks.len()
    );
    assert!(runs > 15_000 && kinds.len() == 3, "{runs} {kinds:?}");
    let frequent = fixture.history(schedules[0].id).await;
    assert!(frequent.len() > 1000, "it runs four times a day");
    drop(fixture.home);
}
