//! From a schedule whose time has come to its runs, in one transaction.

use oubliette_model::{Overlap, RunId, RunStatus};
use rusqlite::{Connection, params};
use uuid::Uuid;

use super::row::{exists, find, insert_run};
use crate::sqlite::convert::time;
use crate::{Firing, Result, Run, Schedule, Target};

/// The runs that a firing makes; none if somebody else has fired the schedule, changed or deleted it.
pub(super) fn fire(connection: &Connection, firing: &Firing) -> Result<Vec<Run>> {
    let Some((seq, schedule)) = find(connection, firing.schedule_id)? else {
        return Ok(Vec::new());
    };
    if let Some((was, next)) = firing.moves {
        if schedule.next_at != Some(was) {
            return Ok(Vec::new());
        }
        connection
            .prepare_cached("update schedules set next_at = ?2 where seq = ?1")?
            .execute(params![seq, next.map(time)])?;
    }
    if let Some(reason) = &firing.disabled {
        disable(connection, seq, reason)?;
    }
    let mut made = Vec::new();
    for target in &schedule.targets {
        let skipped = match &firing.skipped {
            Some(reason) => Some(reason.clone()),
            None => in_the_way(connection, seq, &schedule, target)?.map(str::to_owned),
        };
        let run = Run {
            id: RunId::new(Uuid::new_v4()),
            schedule_id: schedule.id,
            project_id: target.project_id,
            workspace_id: target.workspace_id.clone(),
            due_at: firing.due_at,
            cause: firing.cause,
            status: match skipped {
                Some(_) => RunStatus::Skipped,
                None => RunStatus::Queued,
            },
            session_id: None,
            note: firing.note.clone(),
            created_at: firing.at,
            started_at: None,
            ended_at: skipped.as_ref().map(|_| firing.at),
            deadline: None,
            output: None,
            truncated: false,
            error: skipped,
            cost_usd: None,
        };
        insert_run(connection, seq, &run)?;
        made.push(run);
    }
    Ok(made)
}

/// Runs of one target that wait, however many of them may go on at once.
const MOST_WAITING: u32 = 100;

/// Why a target's run does not even wait.
fn in_the_way(
    connection: &Connection,
    seq: i64,
    schedule: &Schedule,
    target: &Target,
) -> Result<Option<&'static str>> {
    let (statuses, others, why) = match schedule.overlap {
        Overlap::Skip => ("'queued', 'running'", 0, "the run before it was not over"),
        Overlap::Queue => ("'queued'", 0, "another run waits already"),
        Overlap::Parallel => ("'queued'", MOST_WAITING - 1, "too many runs wait already"),
    };
    let busy = exists(
        connection,
        &format!(
            "select 1 from schedule_runs where schedule = ?1 and project_id = ?2
                and workspace_id is ?3 and status in ({statuses}) limit 1 offset {others}"
        ),
        params![
            seq,
            target.project_id.to_string(),
            target.workspace_id.as_ref().map(|id| id.as_str())
        ],
    )?;
    Ok(busy.then_some(why))
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
