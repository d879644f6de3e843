//! Decides what a schedule that is due does: run, skip, or be disabled.

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{CronSchedule, MissedRuns, RunCause};
use oubliette_store::{Firing, Schedule};

/// Decides about a schedule at `now`; none if it is not due. Only its last due time counts: within
/// `grace` it runs, later it was missed. Earlier due times are dropped.
pub(super) fn plan_firing(
    schedule: &Schedule,
    now: Timestamp,
    grace: SignedDuration,
) -> Option<Firing> {
    let first = schedule.next_at.filter(|at| *at <= now)?;
    let mut firing = Firing {
        schedule_id: schedule.id,
        at: now,
        due_at: first,
        cause: RunCause::Schedule,
        reschedule: Some((first, None)),
        skip_reason: None,
        note: None,
        disable_reason: None,
    };
    let cadence = match CronSchedule::parse(&schedule.cron_expr, &schedule.timezone) {
        Ok(cadence) => cadence,
        Err(why) => {
            firing.skip_reason = Some(why.to_string());
            firing.disable_reason = Some(why.to_string());
            return Some(firing);
        }
    };
    let last = cadence.last_at_or_before(now).filter(|last| *last >= first);
    firing.due_at = last.unwrap_or(first);
    let next = cadence.next_after(now);
    firing.reschedule = Some((first, next));
    if next.is_none() {
        firing.disable_reason = Some("its cron expression matches no later date".to_owned());
    }
    if now.duration_since(firing.due_at) > grace {
        firing.cause = RunCause::Missed;
        let subject = if first < firing.due_at {
            format!("it and others since {first} were")
        } else {
            "it was".to_owned()
        };
        let why = format!("{subject} due while no server ran, or the clock was set forward");
        match schedule.missed_runs {
            MissedRuns::Skip => firing.skip_reason = Some(why),
            MissedRuns::RunOnce => firing.note = Some(why),
        }
    }
    Some(firing)
}

#[cfg(test)]
mod tests {
    use oubliette_model::{Overlap, ScheduleId, SessionBehavior, TokenId};
    use uuid::Uuid;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn hourly(missed_runs: MissedRuns, next: &str) -> Schedule {
        Schedule {
            id: ScheduleId::new(Uuid::from_u128(1)),
            revision: 1,
            name: "hourly".to_owned(),
            cron_expr: "@hourly".to_owned(),
            timezone: "UTC".to_owned(),
            prompt: "x".to_owned(),
            targets: Vec::new(),
            enabled: true,
            overlap: Overlap::Skip,
            session_behavior: SessionBehavior::New,
            missed_runs,
            owner_id: TokenId::new(Uuid::from_u128(2)),
            owner_session: None,
            next_at: Some(at(next)),
            disabled_reason: None,
            failures: 0,
            created_at: at(next),
            updated_at: at(next),
        }
    }

    fn plan_hourly(missed: MissedRuns, next: &str, now: &str) -> Option<Firing> {
        plan_firing(
            &hourly(missed, next),
            at(now),
            SignedDuration::from_secs(60),
        )
    }

    #[test]
    fn a_due_schedule_runs_and_moves_to_its_next_time() {
        let firing = plan_hourly(
            MissedRuns::Skip,
            "2027-01-01T09:00:00Z",
            "2027-01-01T09:00:30Z",
        );
        let firing = firing.unwrap();
        assert_eq!(firing.due_at, at("2027-01-01T09:00:00Z"));
        assert_eq!(
            (firing.cause, &firing.skip_reason),
            (RunCause::Schedule, &None)
        );
        let (was, next) = firing.reschedule.unwrap();
        assert_eq!(was, at("2027-01-01T09:00:00Z"));
        assert_eq!(next, Some(at("2027-01-01T10:00:00Z")));
        // After the clock was set back, the schedule waits for its next time and repeats nothing.
        let early = plan_hourly(
            MissedRuns::Skip,
            "2027-01-01T09:00:00Z",
            "2027-01-01T08:59:59Z",
        );
        assert_eq!(early, None);
    }

    #[test]
    fn missed_runs_are_skipped_or_run_once() {
        let (next, now) = ("2027-01-01T09:00:00Z", "2027-01-03T12:30:00Z");
        let skipped = plan_hourly(MissedRuns::Skip, next, now).unwrap();
        assert_eq!(skipped.cause, RunCause::Missed);
        assert_eq!(skipped.due_at, at("2027-01-03T12:00:00Z"));
        assert!(
            skipped
                .skip_reason
                .unwrap()
                .contains("2027-01-01T09:00:00Z")
        );
        let once = plan_hourly(MissedRuns::RunOnce, next, now).unwrap();
        assert_eq!((once.skip_reason, once.cause), (None, RunCause::Missed));
        assert_eq!(once.reschedule.unwrap().1, Some(at("2027-01-03T13:00:00Z")));
        // A run that is due now starts even if earlier ones were missed.
        let now = "2027-01-03T12:00:10Z";
        let due = plan_hourly(MissedRuns::Skip, next, now).unwrap();
        assert_eq!((due.cause, due.skip_reason), (RunCause::Schedule, None));
    }

    #[test]
    fn a_schedule_without_a_next_time_is_disabled_with_a_reason() {
        let mut broken = hourly(MissedRuns::Skip, "2027-01-01T09:00:00Z");
        broken.timezone = "Atlantis/Capital".to_owned();
        let firing =
            plan_firing(&broken, at("2027-01-01T09:00:00Z"), SignedDuration::ZERO).unwrap();
        assert!(firing.disable_reason.unwrap().contains("Atlantis"));
        assert_eq!(firing.reschedule.unwrap().1, None);
    }
}
