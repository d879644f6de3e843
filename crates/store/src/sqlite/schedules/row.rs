//! Converts rows to schedules and runs, and back.

use oubliette_model::{RunId, ScheduleId};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use crate::sqlite::convert::{ReadColumns, enum_from_string, enum_to_string, to_millis};
use crate::{Result, Schedule, ScheduleRun, ScheduleTarget};

/// The columns of a schedule, in the order of [`schedule_without_targets`] and [`column_values`].
const COLUMNS: &str = "id, revision, name, cron_expr, timezone, prompt, enabled, overlap, \
     session_behavior, missed_runs, owner_id, next_at, disabled_reason, failures, created_at, \
     updated_at, owner_session";

const PLACEHOLDERS: &str =
    "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17";

/// The columns with a shortened prompt, for lists.
pub(super) fn brief_columns() -> String {
    COLUMNS.replace("prompt", "substr(prompt, 1, 200)")
}

const RUN_COLUMNS: &str = "schedule_runs.seq, schedule_runs.id, schedules.id, \
     project_id, workspace_id, due_at, cause, status, session, note, schedule_runs.created_at, \
     started_at, ended_at, deadline, output, truncated, error, cost_usd";

/// Reads a schedule without its targets, and its row number.
fn schedule_without_targets(row: &Row<'_>) -> rusqlite::Result<(i64, Schedule)> {
    let schedule = Schedule {
        id: row.parsed(0)?,
        revision: row.get(1)?,
        name: row.get(2)?,
        cron_expr: row.get(3)?,
        timezone: row.get(4)?,
        prompt: row.get(5)?,
        targets: Vec::new(),
        enabled: row.get(6)?,
        overlap: enum_from_string(7, row.get(7)?)?,
        session_behavior: enum_from_string(8, row.get(8)?)?,
        missed_runs: enum_from_string(9, row.get(9)?)?,
        owner_id: row.parsed(10)?,
        next_at: row.optional_time(11)?,
        disabled_reason: row.get(12)?,
        failures: row.get(13)?,
        created_at: row.time(14)?,
        updated_at: row.time(15)?,
        owner_session: row.optional_parsed(16)?,
    };
    Ok((row.get(17)?, schedule))
}

fn column_values(schedule: &Schedule) -> Result<[Value; 17]> {
    Ok([
        schedule.id.to_string().into(),
        schedule.revision.into(),
        schedule.name.clone().into(),
        schedule.cron_expr.clone().into(),
        schedule.timezone.clone().into(),
        schedule.prompt.clone().into(),
        schedule.enabled.into(),
        enum_to_string(&schedule.overlap)?.into(),
        enum_to_string(&schedule.session_behavior)?.into(),
        enum_to_string(&schedule.missed_runs)?.into(),
        schedule.owner_id.to_string().into(),
        schedule.next_at.map(to_millis).into(),
        schedule.disabled_reason.clone().into(),
        schedule.failures.into(),
        to_millis(schedule.created_at).into(),
        to_millis(schedule.updated_at).into(),
        schedule.owner_session.map(|id| id.to_string()).into(),
    ])
}

/// Adds a schedule with its targets.
pub(super) fn insert(connection: &Connection, schedule: &Schedule) -> Result<()> {
    connection
        .prepare_cached(&format!(
            "insert into schedules ({COLUMNS}) values ({PLACEHOLDERS})"
        ))?
        .execute(params_from_iter(column_values(schedule)?))?;
    let seq = connection.last_insert_rowid();
    insert_targets(connection, seq, &schedule.targets)
}

/// Writes all columns of a schedule, but not its targets.
pub(super) fn update_row(connection: &Connection, seq: i64, schedule: &Schedule) -> Result<()> {
    let values = column_values(schedule)?.into_iter().chain([seq.into()]);
    connection
        .prepare_cached(&format!(
            "update schedules set ({COLUMNS}) = ({PLACEHOLDERS}) where seq = ?18"
        ))?
        .execute(params_from_iter(values))?;
    Ok(())
}

/// Runs a query for schedules, each with its row number. `rest` follows `from schedules`.
pub(super) fn select(
    connection: &Connection,
    columns: &str,
    rest: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<(i64, Schedule)>> {
    let sql = format!("select {columns}, seq from schedules {rest}");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(parameters, schedule_without_targets)?;
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

pub(super) fn targets(connection: &Connection, seq: i64) -> Result<Vec<ScheduleTarget>> {
    let mut statement = connection.prepare_cached(
        "select project_id, workspace_id, session from schedule_targets
         where schedule = ?1 order by position",
    )?;
    let rows = statement.query_map([seq], |row| {
        Ok(ScheduleTarget {
            project_id: row.parsed(0)?,
            workspace_id: row.optional_parsed(1)?,
            session_id: row.optional_parsed(2)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
}

pub(super) fn insert_targets(
    connection: &Connection,
    seq: i64,
    targets: &[ScheduleTarget],
) -> Result<()> {
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

pub(super) fn run(row: &Row<'_>) -> rusqlite::Result<(i64, ScheduleRun)> {
    let run = ScheduleRun {
        id: row.parsed(1)?,
        schedule_id: row.parsed(2)?,
        project_id: row.parsed(3)?,
        workspace_id: row.optional_parsed(4)?,
        due_at: row.time(5)?,
        cause: enum_from_string(6, row.get(6)?)?,
        status: enum_from_string(7, row.get(7)?)?,
        session_id: row.optional_parsed(8)?,
        note: row.get(9)?,
        created_at: row.time(10)?,
        started_at: row.optional_time(11)?,
        ended_at: row.optional_time(12)?,
        deadline: row.optional_time(13)?,
        output: row.get(14)?,
        truncated: row.get(15)?,
        error: row.get(16)?,
        cost_usd: row.get(17)?,
    };
    Ok((row.get(0)?, run))
}

/// Runs a query for schedule runs. `rest` follows the join with their schedules.
pub(super) fn select_runs(
    connection: &Connection,
    rest: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<(i64, ScheduleRun)>> {
    let sql = format!(
        "select {RUN_COLUMNS} from schedule_runs
         join schedules on schedules.seq = schedule_runs.schedule {rest}"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(parameters, run)?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
}

pub(super) fn find_run(connection: &Connection, id: RunId) -> Result<Option<ScheduleRun>> {
    let found = select_runs(connection, "where schedule_runs.id = ?1", [id.to_string()])?;
    Ok(found.into_iter().next().map(|(_, run)| run))
}

pub(super) fn insert_run(connection: &Connection, schedule: i64, run: &ScheduleRun) -> Result<()> {
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
            to_millis(run.due_at),
            enum_to_string(&run.cause)?,
            enum_to_string(&run.status)?,
            run.note,
            to_millis(run.created_at),
            run.ended_at.map(to_millis),
            run.error,
        ])?;
    Ok(())
}

/// Whether a query returns a row.
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
