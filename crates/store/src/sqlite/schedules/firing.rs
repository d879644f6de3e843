//! Creates the runs of a schedule that is due or was triggered.

use oubliette_model::{Overlap, RunId, RunStatus};
use rusqlite::{Connection, params};
use uuid::Uuid;

use super::row::{exists, find, insert_run};
use crate::sqlite::convert::to_millis;
use crate::{Firing, Result, Schedule, ScheduleRun, ScheduleTarget};

/// Creates the runs of a firing. There are none if the schedule does not exist, or if its due time was
/// changed in the meantime, for example by another server.
pub(super) fn fire(connection: &Connection, firing: &Firing) -> Result<Vec<ScheduleRun>> {
    let Some((seq, schedule)) = find(connection, firing.schedule_id)? else {
        return Ok(Vec::new());
    };
    if let Some((expected, next)) = firing.reschedule {
        if schedule.next_at != Some(expected) {
            return Ok(Vec::new());
        }
        connection
            .prepare_cached("update schedules set next_at = ?2 where seq = ?1")?
            .execute(params![seq, next.map(to_millis)])?;
    }
    if let Some(reason) = &firing.disable_reason {
        disable(connection, seq, reason)?;
    }
    let mut created = Vec::new();
    for target in &schedule.targets {
        let skip_reason = match &firing.skip_reason {
            Some(reason) => Some(reason.clone()),
            None => blocked_reason(connection, seq, &schedule, target)?.map(str::to_owned),
        };
        let run = ScheduleRun {
            id: RunId::new(Uuid::new_v4()),
            schedule_id: schedule.id,
            project_id: target.project_id,
            workspace_id: target.workspace_id.clone(),
            due_at: firing.due_at,
            cause: firing.cause,
            status: match skip_reason {
                Some(_) => RunStatus::Skipped,
                None => RunStatus::Queued,
            },
            session_id: None,
            note: firing.note.clone(),
            created_at: firing.at,
            started_at: None,
            ended_at: skip_reason.as_ref().map(|_| firing.at),
            deadline: None,
            output: None,
            truncated: false,
            error: skip_reason,
            cost_usd: None,
        };
        insert_run(connection, seq, &run)?;
        created.push(run);
    }
    Ok(created)
}

/// The maximum number of queued runs of one target, also if runs may overlap.
const MAX_QUEUED_RUNS: u32 = 100;

/// Returns why a run of the target cannot be queued, if it cannot.
fn blocked_reason(
    connection: &Connection,
    seq: i64,
    schedule: &Schedule,
    target: &ScheduleTarget,
) -> Result<Option<&'static str>> {
    let (statuses, allowed, reason) = match schedule.overlap {
        Overlap::Skip => ("'queued', 'running'", 0, "the previous run has not ended"),
        Overlap::Queue => ("'queued'", 0, "another run is already queued"),
        Overlap::Parallel => (
            "'queued'",
            MAX_QUEUED_RUNS - 1,
            "too many runs are already queued",
        ),
    };
    let blocked = exists(
        connection,
        &format!(
            "select 1 from schedule_runs where schedule = ?1 and project_id = ?2
                and workspace_id is ?3 and status in ({statuses}) limit 1 offset {allowed}"
        ),
        params![
            seq,
            target.project_id.to_string(),
            target.workspace_id.as_ref().map(|id| id.as_str())
        ],
    )?;
    Ok(blocked.then_some(reason))
}

pub(super) fn disable(connection: &Connection, seq: i64, reason: &str) -> Result<()> {
    connection
        .prepare_cached(
            "update schedules set enabled = 0, next_at = null, disabled_reason = ?2,
                revision = revision + 1
             where seq = ?1",
        )?
        .execute(params![seq, reason])?;
    Ok(())
}
