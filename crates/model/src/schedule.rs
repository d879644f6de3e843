//! When a schedule runs: cron expressions in time zones, and the words for how runs behave.
//!
//! Pure functions of instants. What happens where clocks change is croner's answer, pinned down by
//! the tests here: a fixed time runs once a day whatever the clock does, and what repeats through the
//! day follows the wall clock.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Invalid, quoted};

const LONGEST_EXPRESSION: usize = 200;

/// How far [`Cadence::shortest_gap`] looks: enough to see every day of a pattern, in bounded time.
const GAPS_LOOKED_AT: usize = 1000;
const GAPS_LOOKED_FOR: SignedDuration = SignedDuration::from_hours(2 * 366 * 24);

/// What happens to a run that is due while the one before it still goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Overlap {
    #[default]
    Skip,
    // At most one waits.
    Queue,
    Parallel,
}

/// Which session a run goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SessionBehavior {
    // One session for each target goes on from run to run.
    #[default]
    Resume,
    New,
}

/// What happens to runs that were due while no server ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum MissedRuns {
    #[default]
    Skip,
    RunOnce,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RunStatus {
    Queued,
    Running,
    Success,
    Failed,
    Skipped,
}

/// Why there is a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Cause {
    Schedule,
    // It was due while no server ran.
    Missed,
    Trigger,
}

/// A cron expression in a time zone.
#[derive(Debug, Clone)]
pub struct Cadence {
    cron: Cron,
    zone: TimeZone,
}

impl Cadence {
    /// Reads five fields, six with seconds in front, or a form like `@daily`.
    pub fn parse(expression: &str, timezone: &str) -> Result<Self, Invalid> {
        let refused = |why: String| {
            Invalid(format!(
                "{} is not a cron expression: {why}; write five fields (minute, hour, day of month, \
                 month, day of week), six with seconds in front, or @hourly, @daily, @weekly, \
                 @monthly or @yearly",
                quoted(expression)
            ))
        };
        let text = expression.trim();
        if text.len() > LONGEST_EXPRESSION {
            let most = format!("it is longer than {LONGEST_EXPRESSION} bytes");
            return Err(refused(most));
        }
        let text = match text.eq_ignore_ascii_case("@midnight") {
            true => "@daily",
            false => text,
        };
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build();
        let cron = parser.parse(text).map_err(|error| {
            let why = error.to_string();
            let why = why.rsplit_once(": ").map_or(why.as_str(), |(_, why)| why);
            refused(why.trim_end_matches('.').to_owned())
        })?;
        let zone = TimeZone::get(timezone.trim()).map_err(|_| {
            Invalid(format!(
                "{} is not a time zone; use a name like `Europe/Berlin`, or `UTC`",
                quoted(timezone)
            ))
        })?;
        Ok(Self { cron, zone })
    }

    /// The name of the zone as the database of time zones spells it.
    pub fn timezone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// The first run after an instant; none if there is none in sight. To find out that there is none
    /// takes long: ask once, when a schedule is made.
    pub fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        let mut from = at;
        loop {
            let start = from.to_zoned(self.zone.clone());
            let next = self.cron.find_next_occurrence(&start, false).ok()?;
            from = Some(next.timestamp()).filter(|next| *next > from)?;
            if self.is_meant(&next) {
                return Some(from);
            }
        }
    }

    /// The last run at or before an instant.
    pub fn last_until(&self, at: Timestamp) -> Option<Timestamp> {
        let (mut from, mut inclusive) = (at, true);
        loop {
            let start = from.to_zoned(self.zone.clone());
            let last = self.cron.find_previous_occurrence(&start, inclusive).ok()?;
            let found = last.timestamp();
            if found > from || (found == from && !inclusive) {
                return None;
            }
            if self.is_meant(&last) {
                return Some(found);
            }
            (from, inclusive) = (found, false);
        }
    }

    /// Whether the expression means an instant that croner found. On a day on which the clock jumps,
    /// croner lets a fixed time before the jump run a second time when the clock has jumped; only a
    /// time that was jumped over runs then.
    fn is_meant(&self, found: &Zoned) -> bool {
        if self.cron.is_time_matching(found).unwrap_or(false) {
            return true;
        }
        let before = found.timestamp() - SignedDuration::from_nanos(1);
        let offset = self.zone.to_offset(before);
        let jumped = offset.to_datetime(found.timestamp())..found.datetime();
        // The hours that were not there, as if they had been.
        let Ok(start) = jumped.start.to_zoned(TimeZone::UTC) else {
            return false;
        };
        let first = self.cron.find_next_occurrence(&start, true);
        first.is_ok_and(|first| jumped.contains(&first.datetime()))
    }

    /// The runs after an instant, one after the other.
    pub fn runs_after(&self, at: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        std::iter::successors(self.next_after(at), |at| self.next_after(*at))
    }

    /// The shortest time between two runs, as far as a bounded look shows.
    pub fn shortest_gap(&self, from: Timestamp) -> Option<SignedDuration> {
        let runs: Vec<Timestamp> = self
            .runs_after(from)
            .take(GAPS_LOOKED_AT)
            .take_while(|at| at.duration_since(from) < GAPS_LOOKED_FOR)
            .collect();
        let gaps = runs.windows(2).map(|pair| pair[1].duration_since(pair[0]));
        gaps.min()
    }

    /// The expression in English.
    pub fn describe(&self) -> String {
        self.cron.describe()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn runs(expression: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let cadence = Cadence::parse(expression, zone).unwrap();
        let zone = TimeZone::get(zone).unwrap();
        let shown = |at: Timestamp| {
            at.to_zoned(zone.clone())
                .strftime("%d %H:%M:%S%:z")
                .to_string()
        };
        cadence
            .runs_after(at(from))
            .take(count)
            .map(shown)
            .collect()
    }

    #[test]
    fn every_usual_form_is_read() {
        let from = "2027-01-01T00:00:00Z"; // A Friday.
        for (expression, first) in [
            ("*/15 * * * *", "2027-01-01T00:15:00Z"),
            ("30 9 * * MON-FRI", "2027-01-01T09:30:00Z"),
            ("0 0 1 JAN *", "2028-01-01T00:00:00Z"),
            ("0 12 * * 7", "2027-01-03T12:00:00Z"),
            ("0 12 * * 0", "2027-01-03T12:00:00Z"),
            ("0 12 L * *", "2027-01-31T12:00:00Z"),
            ("0 12 * * FRI#2", "2027-01-08T12:00:00Z"),
            ("30 0 0 * * *", "2027-01-01T00:00:30Z"),
            ("@hourly", "2027-01-01T01:00:00Z"),
            ("@daily", "2027-01-02T00:00:00Z"),
            ("@midnight", "2027-01-02T00:00:00Z"),
            ("@weekly", "2027-01-03T00:00:00Z"),
            ("@monthly", "2027-02-01T00:00:00Z"),
            ("@Yearly", "2028-01-01T00:00:00Z"),
            ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
        ] {
            let cadence = Cadence::parse(expression, "UTC").unwrap();
            assert_eq!(
                cadence.next_after(at(from)),
                Some(at(first)),
                "{expression}"
            );
        }
    }

    #[test]
    fn what_is_no_expression_is_refused_in_a_sentence() {
        for expression in [
            "",
            "61 * * * *",
            "* 24 * * *",
            "* * 32 * *",
            "* * * 13 *",
            "* * *",
            "* * * * * * * *",
            "*/0 * * * *",
            "@reboot",
            "@every 5m",
            "x y z a b",
            "0 0 * * MOON",
            &"1,".repeat(200),
        ] {
            let error = Cadence::parse(expression, "UTC").unwrap_err().0;
            assert!(error.contains("five fields"), "{expression}: {error}");
            assert!(error.len() < 600, "{error}");
        }
        for zone in ["", "Mars/Olympus", "Europe", "../../etc/passwd", "+02:00"] {
            let error = Cadence::parse("@daily", zone).unwrap_err().0;
            assert!(error.contains("is not a time zone"), "{zone}: {error}");
        }
        assert_eq!(
            Cadence::parse("@daily", "europe/berlin")
                .unwrap()
                .timezone(),
            "Europe/Berlin"
        );
    }

    #[test]
    fn what_never_comes_has_no_next_run() {
        for expression in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
            let cadence = Cadence::parse(expression, "UTC").unwrap();
            assert_eq!(
                cadence.next_after(at("2027-01-01T00:00:00Z")),
                None,
                "{expression}"
            );
        }
    }

    #[test]
    fn the_shortest_gap_is_that_of_the_busiest_day() {
        for (expression, seconds) in [
            ("* * * * * *", 1),
            ("0,30 0 0 1 1 *", 30),
            ("* * * * *", 60),
            ("0,1 0 1 1 *", 60),
            ("59,0 23,0 1,31 * *", 60),
            ("0 9 * * MON-FRI", 86_400),
        ] {
            let cadence = Cadence::parse(expression, "UTC").unwrap();
            let gap = cadence.shortest_gap(at("2027-01-01T00:00:00Z"));
            assert_eq!(
                gap,
                Some(SignedDuration::from_secs(seconds)),
                "{expression}"
            );
        }
    }

    /// In Berlin 02:00 became 03:00 on 28 March 2027.
    #[test]
    fn a_time_that_the_clock_jumps_over_runs_when_it_has_jumped() {
        let before = "2027-03-27T12:00:00Z";
        let zone = "Europe/Berlin";
        assert_eq!(
            runs("30 2 * * *", zone, before, 2),
            ["28 03:00:00+02:00", "29 02:30:00+02:00"]
        );
        assert_eq!(
            runs("*/30 * * * *", zone, "2027-03-28T00:15:00Z", 3),
            [
                "28 01:30:00+01:00",
                "28 03:00:00+02:00",
                "28 03:30:00+02:00"
            ]
        );
        // A list of times in the hour that is not there does not run that day.
        assert_eq!(runs("0,30 2 * * *", zone, before, 1), ["29 02:00:00+02:00"]);
        // What was not jumped over runs once, as on any day.
        for time in ["01:00", "01:30", "03:00", "09:00"] {
            let (hour, minute) = time.split_once(':').unwrap();
            let expression = format!("{minute} {hour} * * *");
            let offset = if time < "02" { "+01:00" } else { "+02:00" };
            assert_eq!(
                runs(&expression, zone, before, 2),
                [
                    format!("28 {time}:00{offset}"),
                    format!("29 {time}:00+02:00")
                ]
            );
        }
    }

    /// In Berlin 03:00 became 02:00 on 31 October 2027.
    #[test]
    fn a_time_that_comes_twice_runs_once_and_what_repeats_runs_in_both_hours() {
        let before = "2027-10-30T12:00:00Z";
        let zone = "Europe/Berlin";
        assert_eq!(
            runs("30 2 * * *", zone, before, 2),
            ["31 02:30:00+02:00", "01 02:30:00+01:00"]
        );
        // Also for who looks between the two.
        assert_eq!(
            runs("30 2 * * *", zone, "2027-10-31T00:45:00Z", 1),
            ["01 02:30:00+01:00"]
        );
        assert_eq!(
            runs("*/30 * * * *", zone, "2027-10-31T00:15:00Z", 4),
            [
                "31 02:30:00+02:00",
                "31 02:00:00+01:00",
                "31 02:30:00+01:00",
                "31 03:00:00+01:00"
            ]
        );
    }

    /// What runs in a window, minute by minute: a wall time that matches, the first time it comes; what
    /// repeats through the day, each time it comes; and a fixed time that was jumped over, at the end of
    /// the jump.
    fn minute_by_minute(cadence: &Cadence, from: Timestamp, minutes: i64) -> Vec<Timestamp> {
        let fixed = cadence.cron.determine_job_type() == croner::JobType::FixedTime;
        let matches = |civil: jiff::civil::DateTime| {
            let as_if = civil.to_zoned(TimeZone::UTC).unwrap();
            cadence.cron.is_time_matching(&as_if).unwrap()
        };
        let mut runs = Vec::new();
        for minute in 1..=minutes {
            let at = from + SignedDuration::from_mins(minute);
            let before = cadence.zone.to_offset(at - SignedDuration::from_mins(1));
            let now = cadence.zone.to_offset(at);
            let civil = now.to_datetime(at);
            let jump = (now.seconds() - before.seconds()) / 60;
            let jumped =
                (0..jump).map(|n| before.to_datetime(at) + SignedDuration::from_mins(n.into()));
            let stands_for = fixed && jumped.clone().any(matches);
            let again = cadence
                .zone
                .to_ambiguous_timestamp(civil)
                .earlier()
                .unwrap()
                != at;
            if stands_for || (matches(civil) && !(fixed && again)) {
                runs.push(at);
            }
        }
        runs
    }

    /// Around every change of the clock that some zones have in a year.
    #[test]
    fn around_changes_of_the_clock_all_is_as_a_look_at_every_minute_says() {
        let mut compared = 0;
        for zone in ZONES {
            let changes = TimeZone::get(zone).unwrap();
            let changes = changes.following(at("2027-01-01T00:00:00Z")).take(2);
            let changes = changes.map(|change| change.timestamp());
            let changes = changes.filter(|change| *change < at("2028-01-01T00:00:00Z"));
            let changes: Vec<Timestamp> = changes.collect();
            for change in changes {
                let (from, minutes) = (change - SignedDuration::from_hours(30), 60 * 60);
                let hours = [0, 1, 2, 3, 4, 9, 23].into_iter();
                let fixed = hours.flat_map(|hour| {
                    ["0", "15", "30"].map(|minute| format!("{minute} {hour} * * *"))
                });
                let others = [
                    "*/20 * * * *",
                    "30 * * * *",
                    "0 */2 * * *",
                    "0,30 2 * * *",
                    "15 1-3 * * *",
                    "*/15 2 * * *",
                    "0 1,2,3 * * *",
                ];
                for expression in fixed.chain(others.map(str::to_owned)) {
                    let cadence = Cadence::parse(&expression, zone).unwrap();
                    let end = from + SignedDuration::from_mins(minutes);
                    let found = cadence.runs_after(from).take_while(|at| *at <= end);
                    let found: Vec<Timestamp> = found.collect();
                    let expected = minute_by_minute(&cadence, from, minutes);
                    assert_eq!(found, expected, "{expression} {zone} around {change}");
                    for run in found {
                        assert_eq!(cadence.last_until(run), Some(run), "{expression} {zone}");
                        let later = run + SignedDuration::from_secs(30);
                        assert_eq!(cadence.last_until(later), Some(run), "{expression} {zone}");
                    }
                    compared += 1;
                }
            }
        }
        assert!(compared > 200, "{compared}");
    }

    const EXPRESSIONS: [&str; 12] = [
        "*/10 * * * *",
        "30 2 * * *",
        "0,30 1-3 * * *",
        "15 */2 * * *",
        "0 0 1 * *",
        "5 4 * * SUN",
        "59 23 L * *",
        "0 12 15W * *",
        "*/20 30 2 * * *",
        "0 3 * * MON#1",
        "@weekly",
        "0 2 29 2 *",
    ];
    const ZONES: [&str; 7] = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Africa/Casablanca",
        "Asia/Kathmandu",
        "America/Santiago",
    ];

    proptest! {
        #[test]
        fn any_text_is_a_cadence_or_a_short_refusal(text in "\\PC{0,40}", fields in "[0-9*/,LW#?A-Z@ -]{0,30}") {
            for text in [text, fields] {
                if let Err(error) = Cadence::parse(&text, "UTC") {
                    prop_assert!(error.0.chars().count() < 1000);
                }
            }
        }

        /// From wherever one looks: runs go on in time, and the last run until the next is the one
        /// that came.
        #[test]
        fn next_and_last_agree(
            expression in 0..EXPRESSIONS.len(), zone in 0..ZONES.len(),
            second in 1_780_000_000i64..1_830_000_000,
        ) {
            let cadence = Cadence::parse(EXPRESSIONS[expression], ZONES[zone]).unwrap();
            let from = Timestamp::from_second(second).unwrap();
            let next = cadence.next_after(from).unwrap();
            let after = cadence.next_after(next).unwrap();
            prop_assert!(from < next && next < after);
            let between = Timestamp::from_second(i64::midpoint(next.as_second(), after.as_second())).unwrap();
            for at in [next, between] {
                prop_assert_eq!(cadence.last_until(at), Some(next), "{} {} {}", EXPRESSIONS[expression], ZONES[zone], at);
                prop_assert_eq!(cadence.next_after(at), Some(after), "{} {} {}", EXPRESSIONS[expression], ZONES[zone], at);
            }
        }
    }
}
