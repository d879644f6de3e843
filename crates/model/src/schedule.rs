//! Cron expressions in time zones, and the options of schedules.
//!
//! Around clock changes croner decides, and the tests here fix its behaviour: a fixed time runs once
//! a day, and an expression that repeats during the day follows the wall clock.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{InvalidValue, quoted};

const MAX_EXPRESSION_BYTES: usize = 200;

/// Bounds the search of [`CronSchedule::shortest_interval`]; two years contain every day of a pattern.
const MAX_RUNS_CHECKED: usize = 1000;
const MAX_SPAN_CHECKED: SignedDuration = SignedDuration::from_hours(2 * 366 * 24);

/// What happens to a run that is due while the previous run is still running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Overlap {
    #[default]
    Skip,
    // At most one run waits.
    Queue,
    Parallel,
}

/// The session that a run uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SessionBehavior {
    // All runs of a target use one session.
    #[default]
    Resume,
    New,
}

/// What happens to runs that were due while the server was not running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum MissedRuns {
    #[default]
    Skip,
    RunOnce,
}

/// The state of a run.
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

/// Why a run was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RunCause {
    Schedule,
    // It was due while the server was not running.
    Missed,
    Trigger,
}

/// A cron expression in a time zone.
#[derive(Debug, Clone)]
pub struct CronSchedule {
    cron: Cron,
    zone: TimeZone,
}

impl CronSchedule {
    /// Parses five fields, six with seconds first, or a form like `@daily`.
    pub fn parse(expression: &str, timezone: &str) -> Result<Self, InvalidValue> {
        let refused = |why: String| {
            InvalidValue(format!(
                "{} is not a cron expression: {why}; use five fields (minute, hour, day of month, \
                 month, day of week), six with seconds first, or @hourly, @daily, @weekly, \
                 @monthly or @yearly",
                quoted(expression)
            ))
        };
        let mut text = expression.trim();
        if text.len() > MAX_EXPRESSION_BYTES {
            return Err(refused(format!(
                "it is longer than {MAX_EXPRESSION_BYTES} bytes"
            )));
        }
        if text.eq_ignore_ascii_case("@midnight") {
            text = "@daily";
        }
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build();
        let cron = parser.parse(text).map_err(|error| {
            let message = error.to_string();
            let reason = message.rsplit(": ").next().unwrap_or_default();
            refused(if text.starts_with('@') || (5..=6).contains(&text.split_whitespace().count()) {
                reason.trim_end_matches('.').to_owned()
            } else {
                "it has five fields, minute, hour, day of month, month and day of week, for example `0 9 * * 1-5` for \
                 nine o'clock from Monday to Friday; `@daily` and the like work, too"
                    .to_owned()
            })
        })?;
        let zone = TimeZone::get(timezone.trim()).map_err(|_| {
            InvalidValue(format!(
                "{} is not a time zone; use a name like `Europe/Berlin`, or `UTC`",
                quoted(timezone)
            ))
        })?;
        Ok(Self { cron, zone })
    }

    /// The name of the time zone as the time zone database spells it.
    pub fn timezone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// The first run after an instant; `None` if croner finds none. Finding none takes long: call this
    /// once, when a schedule is created.
    pub fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        let mut from = at;
        loop {
            let start = from.to_zoned(self.zone.clone());
            let next = self.cron.find_next_occurrence(&start, false).ok()?;
            from = Some(next.timestamp()).filter(|next| *next > from)?;
            if self.is_intended(&next) {
                return Some(from);
            }
        }
    }

    /// The last run at or before an instant.
    pub fn last_at_or_before(&self, at: Timestamp) -> Option<Timestamp> {
        let (mut from, mut inclusive) = (at, true);
        loop {
            let start = from.to_zoned(self.zone.clone());
            let last = self.cron.find_previous_occurrence(&start, inclusive).ok()?;
            let found = last.timestamp();
            if found > from || (found == from && !inclusive) {
                return None;
            }
            if self.is_intended(&last) {
                return Some(found);
            }
            (from, inclusive) = (found, false);
        }
    }

    /// Whether a run that croner found is wanted. When the clock is set forward, croner also repeats
    /// fixed times before the gap at its end; only a time inside the gap is wanted there.
    fn is_intended(&self, found: &Zoned) -> bool {
        if self.cron.is_time_matching(found).unwrap_or(false) {
            return true;
        }
        let before = found.timestamp() - SignedDuration::from_nanos(1);
        let offset = self.zone.to_offset(before);
        let gap = offset.to_datetime(found.timestamp())..found.datetime();
        // In UTC the skipped local times exist.
        let Ok(start) = gap.start.to_zoned(TimeZone::UTC) else {
            return false;
        };
        let first = self.cron.find_next_occurrence(&start, true);
        first.is_ok_and(|first| gap.contains(&first.datetime()))
    }

    /// The runs after an instant, in order.
    pub fn runs_after(&self, at: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        std::iter::successors(self.next_after(at), |at| self.next_after(*at))
    }

    /// The shortest time between two runs within a bounded number of runs.
    pub fn shortest_interval(&self, from: Timestamp) -> Option<SignedDuration> {
        let runs: Vec<Timestamp> = self
            .runs_after(from)
            .take(MAX_RUNS_CHECKED)
            .take_while(|at| at.duration_since(from) < MAX_SPAN_CHECKED)
            .collect();
        let gaps = runs.windows(2).map(|pair| pair[1].duration_since(pair[0]));
        gaps.min()
    }

    /// Describes the expression in English.
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
        let schedule = CronSchedule::parse(expression, zone).unwrap();
        let zone = TimeZone::get(zone).unwrap();
        let shown = |at: Timestamp| {
            at.to_zoned(zone.clone())
                .strftime("%d %H:%M:%S%:z")
                .to_string()
        };
        schedule
            .runs_after(at(from))
            .take(count)
            .map(shown)
            .collect()
    }

    #[test]
    fn all_usual_forms_are_parsed() {
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
            let schedule = CronSchedule::parse(expression, "UTC").unwrap();
            assert_eq!(
                schedule.next_after(at(from)),
                Some(at(first)),
                "{expression}"
            );
        }
    }

    #[test]
    fn invalid_expressions_and_time_zones_are_refused_with_a_sentence() {
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
            let error = CronSchedule::parse(expression, "UTC").unwrap_err().0;
            assert!(error.contains("five fields"), "{expression}: {error}");
            assert!(error.len() < 600, "{error}");
        }
        for zone in ["", "Mars/Olympus", "Europe", "../../etc/passwd", "+02:00"] {
            let error = CronSchedule::parse("@daily", zone).unwrap_err().0;
            assert!(error.contains("is not a time zone"), "{zone}: {error}");
        }
        assert_eq!(
            CronSchedule::parse("@daily", "europe/berlin")
                .unwrap()
                .timezone(),
            "Europe/Berlin"
        );
    }

    #[test]
    fn an_impossible_date_has_no_next_run() {
        for expression in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
            let schedule = CronSchedule::parse(expression, "UTC").unwrap();
            assert_eq!(
                schedule.next_after(at("2027-01-01T00:00:00Z")),
                None,
                "{expression}"
            );
        }
    }

    #[test]
    fn the_shortest_interval_is_that_of_the_busiest_day() {
        for (expression, seconds) in [
            ("* * * * * *", 1),
            ("0,30 0 0 1 1 *", 30),
            ("* * * * *", 60),
            ("0,1 0 1 1 *", 60),
            ("59,0 23,0 1,31 * *", 60),
            ("0 9 * * MON-FRI", 86_400),
        ] {
            let schedule = CronSchedule::parse(expression, "UTC").unwrap();
            let gap = schedule.shortest_interval(at("2027-01-01T00:00:00Z"));
            assert_eq!(
                gap,
                Some(SignedDuration::from_secs(seconds)),
                "{expression}"
            );
        }
    }

    /// In Berlin 02:00 became 03:00 on 28 March 2027.
    #[test]
    fn a_time_that_the_clock_skips_runs_at_the_end_of_the_gap() {
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
        // A list of times in the skipped hour does not run that day.
        assert_eq!(runs("0,30 2 * * *", zone, before, 1), ["29 02:00:00+02:00"]);
        // Times outside of the gap run once, as on any day.
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
    fn a_repeated_fixed_time_runs_once_and_a_repetition_runs_in_both_hours() {
        let before = "2027-10-30T12:00:00Z";
        let zone = "Europe/Berlin";
        assert_eq!(
            runs("30 2 * * *", zone, before, 2),
            ["31 02:30:00+02:00", "01 02:30:00+01:00"]
        );
        // The same when asked between the two.
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

    /// The expected runs in a window, found by checking every minute: a matching wall time the first
    /// time it occurs, a repetition each time it occurs, and a skipped fixed time at the end of the gap.
    fn runs_by_checking_every_minute(
        schedule: &CronSchedule,
        from: Timestamp,
        minutes: i64,
    ) -> Vec<Timestamp> {
        let fixed = schedule.cron.determine_job_type() == croner::JobType::FixedTime;
        let matches = |civil: jiff::civil::DateTime| {
            let in_utc = civil.to_zoned(TimeZone::UTC).unwrap();
            schedule.cron.is_time_matching(&in_utc).unwrap()
        };
        let mut runs = Vec::new();
        for minute in 1..=minutes {
            let at = from + SignedDuration::from_mins(minute);
            let before = schedule.zone.to_offset(at - SignedDuration::from_mins(1));
            let now = schedule.zone.to_offset(at);
            let civil = now.to_datetime(at);
            let gap_minutes = (now.seconds() - before.seconds()) / 60;
            let mut skipped = (0..gap_minutes)
                .map(|minute| before.to_datetime(at) + SignedDuration::from_mins(minute.into()));
            let ends_gap = fixed && skipped.any(matches);
            let is_repeated = schedule
                .zone
                .to_ambiguous_timestamp(civil)
                .earlier()
                .unwrap()
                != at;
            if ends_gap || (matches(civil) && !(fixed && is_repeated)) {
                runs.push(at);
            }
        }
        runs
    }

    /// Around every clock change of some time zones in a year.
    #[test]
    fn runs_around_clock_changes_match_a_check_of_every_minute() {
        let mut compared = 0;
        for zone in ZONES {
            let changes: Vec<Timestamp> = TimeZone::get(zone)
                .unwrap()
                .following(at("2027-01-01T00:00:00Z"))
                .take(2)
                .map(|change| change.timestamp())
                .filter(|change| *change < at("2028-01-01T00:00:00Z"))
                .collect();
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
                    let schedule = CronSchedule::parse(&expression, zone).unwrap();
                    let end = from + SignedDuration::from_mins(minutes);
                    let found = schedule.runs_after(from).take_while(|at| *at <= end);
                    let found: Vec<Timestamp> = found.collect();
                    let expected = runs_by_checking_every_minute(&schedule, from, minutes);
                    assert_eq!(found, expected, "{expression} {zone} around {change}");
                    for run in found {
                        assert_eq!(
                            schedule.last_at_or_before(run),
                            Some(run),
                            "{expression} {zone}"
                        );
                        let later = run + SignedDuration::from_secs(30);
                        assert_eq!(
                            schedule.last_at_or_before(later),
                            Some(run),
                            "{expression} {zone}"
                        );
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
        fn any_text_is_parsed_or_refused_with_a_short_message(text in "\\PC{0,40}", fields in "[0-9*/,LW#?A-Z@ -]{0,30}") {
            for text in [text, fields] {
                if let Err(error) = CronSchedule::parse(&text, "UTC") {
                    prop_assert!(error.0.chars().count() < 1000);
                }
            }
        }

        /// Runs are in order, and the last run before the next one is the one before it.
        #[test]
        fn next_and_last_runs_agree(
            expression in 0..EXPRESSIONS.len(), zone in 0..ZONES.len(),
            second in 1_780_000_000i64..1_830_000_000,
        ) {
            let schedule = CronSchedule::parse(EXPRESSIONS[expression], ZONES[zone]).unwrap();
            let from = Timestamp::from_second(second).unwrap();
            let next = schedule.next_after(from).unwrap();
            let after = schedule.next_after(next).unwrap();
            prop_assert!(from < next && next < after);
            let between = Timestamp::from_second(i64::midpoint(next.as_second(), after.as_second())).unwrap();
            for at in [next, between] {
                prop_assert_eq!(schedule.last_at_or_before(at), Some(next), "{} {} {}", EXPRESSIONS[expression], ZONES[zone], at);
                prop_assert_eq!(schedule.next_after(at), Some(after), "{} {} {}", EXPRESSIONS[expression], ZONES[zone], at);
            }
        }
    }
}
