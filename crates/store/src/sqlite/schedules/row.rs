//! Between rows and schedules.

use oubliette_model::{RunId, ScheduleId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::sqlite::convert::{Columns, time};
use crate::sqlite::sessions::{from_word, word};
use crate::{Result, Run, Schedule, Target};

const COLUMNS: &str = "seq, id, revision, name, cron_expr, timezone, prompt, enabled, overlap, \
     session_behavior, missed_runs, owner_id, next_at, disabled_reason, failures, \
     created_at, updated_at, owner_session";

/// The same without most of the prompt, for when there are many.
pub(super) const BRIEF: &str = "seq, id, revision, name, cron_expr, timezone, \
     substr(prompt, 1, 200), enabled, overlap, session_behavior, missed_runs, owner_id, next_at, \
     disabled_reason, failures, created_at, updated_at, owner_session";

const RUN_COLUMNS: &str = "schedule_runs.seq, schedule_runs.id, schedules.id, \
     project_id, workspace_id, due_at, cause, status, session, note, schedule_runs.created_at, \
     started_at, ended_at, deadline, output, truncated, error, cost_usd";

/// A schedule without its targets, and its number in this store.
fn bare(row: &Row<'_>) -> rusqlite::Result<(i64, Schedule)> {
    let schedule = Schedule {
        id: row.parsed(1)?,
        revision: row.get(2)?,
        name: row.get(3)?,
        cron_expr: row.get(4)?,
        timezone: row.get(5)?,
        prompt: row.get(6)?,
        targets: Vec::new(),
        enabled: row.get(7)?,
        overlap: from_word(8, row.get(8)?)?,
        session_behavior: from_word(9, row.get(9)?)?,
        missed_runs: from_word(10, row.get(10)?)?,
        owner_id: row.parsed(11)?,
        next_at: row.maybe_time(12)?,
        disabled_reason: row.get(13)?,
        failures: row.get(14)?,
        created_at: row.time(15)?,
        updated_at: row.time(16)?,
        owner_session: row.maybe_parsed(17)?,
    };
    Ok((row.get(0)?, schedule))
}

/// Schedules that a query finds, each with its number; `rest` follows `from schedules`.
pub(super) fn select(
    connection: &Connection,
    columns: &str,
    rest: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<(i64, Schedule)>> {
    let sql = format!("select {columns} from schedules {rest}");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(parameters, bare)?;
    let mut found = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    for (seq, schedule) in &mut found {
        schedule.targets = targets(connection, *seq)?;
    }
    Ok(found)
}

pub(super) fn find(connection: &Connection, id: ScheduleId) -> Result<Option<(i64, Schedule)>> {
    let found = select(connection, COLUMNS, "where id = ?1", [id.to_string()])?;
    Ok(found.into_iter().next())
}

pub(super) fn targets(connection: &Connection, seq: i64) -> Result<Vec<Target>> {
    let mut statement = connection.prepare_cached(
        "select project_id, workspace_id, session from schedule_targets
         where schedule = ?1 order by position",
    )?;
    let rows = statement.query_map([seq], |row| {
        Ok(Target {
            project_id: row.parsed(0)?,
            workspace_id: row.maybe_parsed(1)?,
            session_id: row.maybe_parsed(2)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
}

pub(super) fn insert_targets(connection: &Connection, seq: i64, targets: &[Target]) -> Result<()> {
    let mut statement = connection.prepare_cached(
        "insert into schedule_targets (schedule, position, project_id, workspace_id, session)
         values (?1, ?2, ?3, ?4, ?5)",
    )?;
    for (position, target) in targets.iter().enumerate() {
        statement.execute(params![
            seq,
            position as i64,
            target.project_id.to_string(),
            target.workspace_id.as_ref().map(|id| id.as_str()),
            target.session_id.map(|id| id.to_string()),
        ])?;
    }
    Ok(())
}

pub(super) fn run(row: &Row<'_>) -> rusqlite::Result<(i64, Run)> {
    let run = Run {
        id: row.parsed(1)?,
        schedule_id: row.parsed(2)?,
        project_id: row.parsed(3)?,
        workspace_id: row.maybe_parsed(4)?,
        due_at: row.time(5)?,
        cause: from_word(6, row.get(6)?)?,
        status: from_word(7, row.get(7)?)?,
        session_id: row.maybe_parsed(8)?,
        note: row.get(9)?,
        created_at: row.time(10)?,
        started_at: row.maybe_time(11)?,
        ended_at: row.maybe_time(12)?,
        deadline: row.maybe_time(13)?,
        output: row.get(14)?,
        truncated: row.get(15)?,
        error: row.get(16)?,
        cost_usd: row.get(17)?,
    };
    Ok((row.get(0)?, run))
}

/// Runs that a query finds; `rest` follows the join with their schedules.
pub(super) fn select_runs(
    connection: &Connection,
    rest: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<(i64, Run)>> {
    let sql = format!(
        "select {RUN_COLUMNS} from schedule_runs
         join schedules on schedules.seq = schedule_runs.schedule {rest}"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(parameters, run)?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
}

pub(super) fn find_run(connection: &Connection, id: RunId) -> Result<Option<Run>> {
    let found = select_runs(connection, "where schedule_runs.id = ?1", [id.to_string()])?;
    Ok(found.into_iter().next().map(|(_, run)| run))
}

pub(super) fn insert_run(connection: &Connection, schedule: i64, run: &Run) -> Result<()> {
    connection
        .prepare_cached(
            "insert into schedule_runs (id, schedule, project_id, workspace_id, due_at, cause,
                status, note, created_at, ended_at, error)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute(params![
            run.id.to_string(),
            schedule,
            run.project_id.to_string(),
            run.workspace_id.as_ref().map(|id| id.as_str()),
            time(run.due_at),
            word(&run.cause)?,
            word(&run.status)?,
            run.note,
            time(run.created_at),
            run.ended_at.map(time),
            run.error,
        ])?;
    Ok(())
}

/// Whether a query finds anything.
pub(super) fn exists(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
) -> Result<bool> {
    let found: Option<i64> = connection
        .prepare_cached(sql)?
        .query_row(parameters, |row| row.get(0))
        .optional()?;
    Ok(found.is_some())
}
