//! More than a year in the life of ten thousand schedules, with servers that die at bad moments. What
//! ran is compared with the list of instants that croner itself gives.

use std::collections::HashMap;
use std::time::Instant;

use croner::parser::{CronParser, Seconds};
use futures_util::future::join_all;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};
use oubliette_model::{Cause, MissedRuns, RunStatus};
use oubliette_store::{Finished, Run, Schedule};

use super::{World, at, seconds};

const SCHEDULES: u64 = 10_000;
const DAYS: i64 = 400;
const RESTARTS: u64 = 80;

/// Numbers that look random and can be drawn again.
struct Dice(u64);

impl Dice {
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

/// Mostly what runs seldom, so that there are not millions of runs; a few of every other kind.
fn expression(dice: &mut Dice, n: u64) -> String {
    // Few times of day, most of them near the changes of clocks, so that many are due together.
    let minute = 0;
    let hour = dice.one_of(&[1, 2, 3]);
    let day = 1 + dice.below(28);
    let month = 1 + dice.below(12);
    match n {
        0 => "0 */6 * * *".to_owned(),
        1 => "0 */12 * * *".to_owned(),
        2..8 => format!("{minute} {hour} * * *"),
        8..12 => format!("0,30 {} * * MON-FRI", dice.one_of(&[1, 2, 3])),
        12..20 => format!("{minute} 1-3 {day},L * *"),
        _ => match dice.below(40) {
            0 => format!(
                "{minute} {hour} * * {}#{}",
                dice.below(7),
                1 + dice.below(4)
            ),
            1 => format!("{minute} {hour} L * *"),
            2 => format!("{minute} 2 {day} */3 *"),
            3 => format!("0 {minute} {hour} {day} {month} *"),
            4 => format!("{minute} {hour} {day}W {month},{} *", 1 + dice.below(12)),
            5 => format!("{minute} {hour} 29 2 *"),
            _ => format!("{minute} {hour} {day} {month} *"),
        },
    }
}

/// What croner says, in order; without what it adds on days on which the clock jumps: a fixed time
/// before the jump comes again after it there.
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

/// What a schedule must have done, given when a server looked: the instants that were due by then came
/// to one run if the last of them was not long ago, and otherwise to what the schedule says.
fn expected(
    schedule: &Schedule,
    instants: &[Timestamp],
    looks: &[Timestamp],
    grace: SignedDuration,
) -> Vec<(Timestamp, Cause, RunStatus)> {
    let mut done = Vec::new();
    let mut rest = instants;
    for look in looks {
        let due = rest.partition_point(|at| at <= look);
        let Some(last) = rest[..due].last() else {
            continue;
        };
        rest = &rest[due..];
        let on_time = look.duration_since(*last) <= grace;
        done.push(match (on_time, schedule.missed_runs) {
            (true, _) => (*last, Cause::Schedule, RunStatus::Success),
            (false, MissedRuns::RunOnce) => (*last, Cause::Missed, RunStatus::Success),
            (false, MissedRuns::Skip) => (*last, Cause::Missed, RunStatus::Skipped),
        });
    }
    done
}

impl World {
    async fn record(&self, runs: Vec<Run>) {
        let finished = Finished {
            at: self.clock.now(),
            status: RunStatus::Success,
            output: None,
            truncated: false,
            error: None,
            wanted: None,
            most_failures: 5,
            disabled: String::new(),
        };
        let recording = runs
            .iter()
            .map(|run| self.store().finish_run(run.id, finished.clone()));
        for recorded in join_all(recording).await {
            assert_eq!(recorded.unwrap(), Some(false), "a run ended twice");
        }
    }

    /// Carries out what can be, until nothing is left.
    async fn carry_out_all(&self) {
        loop {
            let lease = self.engine.lease();
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
async fn ten_thousand_schedules_run_for_a_year_as_croner_says_whatever_happens_to_the_server() {
    let given = std::env::var("OUBLIETTE_TEST_SEED");
    let seed = given.map_or_else(
        |_| u64::from(std::process::id()),
        |seed| seed.parse().unwrap(),
    );
    println!("repeat with OUBLIETTE_TEST_SEED={seed}");
    let mut dice = Dice(seed);
    let start = at("2027-01-15T10:07:00Z");
    let end = start + SignedDuration::from_hours(24 * DAYS);
    let forgets_nothing = |settings: &mut crate::Settings| {
        settings.schedules.keep_days = 10_000;
        settings.schedules.keep_runs = 1_000_000;
    };
    let mut world = World::new(start, forgets_nothing).await;
    let grace = seconds(world.settings.schedules.grace_seconds.into());

    let mut schedules = Vec::new();
    for n in 0..SCHEDULES {
        let expression = expression(&mut dice, n);
        let zone = dice.one_of(&ZONES);
        let missed_runs = dice.one_of(&[MissedRuns::Skip, MissedRuns::RunOnce]);
        schedules.push(Schedule {
            missed_runs,
            ..world.schedule(u128::from(n) + 1, &expression, zone)
        });
    }
    let adding = schedules
        .iter()
        .map(|s| world.store().add_schedule(s, None));
    assert!(
        join_all(adding)
            .await
            .into_iter()
            .all(|added| added.unwrap())
    );

    let spent = Instant::now();
    let mut looks = Vec::new();
    let pause = (end.duration_since(start)) / RESTARTS as i32;
    let mut restart = start + pause;
    loop {
        let Some(due) = world.store().next_due().await.unwrap() else {
            break;
        };
        // A server is never quite on time.
        let late = SignedDuration::from_millis(dice.below(50_000) as i64);
        let mut now = due + late;
        let mut dies = None;
        if now >= restart {
            let down = match dice.below(3) {
                0 => seconds(dice.below(90) as i64),
                1 => SignedDuration::from_mins(dice.below(600) as i64),
                _ => SignedDuration::from_hours(dice.below(150) as i64),
            };
            restart = now + pause;
            world.restart().await;
            now += down;
            dies = Some(dice.below(3));
        }
        if now > end {
            break;
        }
        world.clock.set(now);
        looks.push(now);
        world.engine.fire_due().await.unwrap();
        match dies {
            // With runs that nobody has begun, and with some that nobody has recorded.
            Some(0) => world.restart().await,
            Some(1) => {
                let lease = world.engine.lease();
                world.store().claim_runs(&lease, end, 3).await.unwrap();
                world.restart().await;
                let mine = world.store().adopt_runs(&world.engine.lease()).await;
                world.record(mine.unwrap()).await;
            }
            _ => {}
        }
        world.carry_out_all().await;
    }
    let spent = spent.elapsed();

    let (mut runs, mut kinds) = (0, HashMap::new());
    for schedule in &schedules {
        let instants = instants(schedule, start, end);
        let expected = expected(schedule, &instants, &looks, grace);
        let found = world.history(schedule.id).await;
        let found: Vec<_> = found
            .iter()
            .map(|run| (run.due_at, run.cause, run.status))
            .collect();
        assert_eq!(found, expected, "{schedule:?}, seed {seed}");
        runs += found.len();
        for (_, cause, status) in found {
            *kinds.entry(format!("{cause:?} {status:?}")).or_insert(0) += 1;
        }
        let next = world.store().schedule(schedule.id).await.unwrap();
        let due = next.and_then(|schedule| schedule.next_at);
        assert!(due.is_none_or(|next| next > looks[looks.len() - 1]));
    }
    println!(
        "{runs} runs at {} moments in {spent:.1?}: {kinds:?}",
        looks.len()
    );
    assert!(runs > 15_000 && kinds.len() == 3, "{runs} {kinds:?}");
    let often = world.history(schedules[0].id).await;
    assert!(often.len() > 1000, "it runs four times a day");
    drop(world.home);
}
