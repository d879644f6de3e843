//! Claims runs, binds them to sessions, and records their ends.

use jiff::Timestamp;
use oubliette_model::{RunId, RunStatus, SessionId};
use rusqlite::{Connection, OptionalExtension, params};

use super::firing::disable;
use super::row::{find_run, select_runs};
use crate::sqlite::calls::turn_state;
use crate::sqlite::convert::{ReadColumns, enum_to_string, to_millis};
use crate::sqlite::sessions::{
    count_queued_bytes, find as find_session, find_seq, queue_message, tree_usage,
};
use crate::{
    CallTurn, FinishedRun, Lease, Result, RunBinding, ScheduleRun, Session, SessionMessage,
    StopRequest,
};

/// The oldest queued run that can start: no other run of its target runs, or its runs may overlap.
const NEXT_STARTABLE: &str = "where status = 'queued' and (overlap = 'parallel' or not exists (
        select 1 from schedule_runs other where other.status = 'running'
            and other.schedule = schedule_runs.schedule
            and other.project_id = schedule_runs.project_id
            and other.workspace_id is schedule_runs.workspace_id))
     order by schedule_runs.seq limit 1";

pub(super) fn claim(
    connection: &Connection,
    lease: &Lease,
    deadline: Timestamp,
    limit: u32,
) -> Result<Vec<ScheduleRun>> {
    let expired = "where status = 'running' and lease_by <> ?1 and lease_until <= ?2
         order by schedule_runs.seq limit ?3";
    let mut claimed = set_lease(
        connection,
        lease,
        select_runs(
            connection,
            expired,
            params![lease.holder, to_millis(lease.at), limit],
        )?,
    )?;
    // One at a time: a run that starts may block the next one.
    while claimed.len() < limit as usize {
        let Some((seq, _)) = select_runs(connection, NEXT_STARTABLE, [])?.pop() else {
            break;
        };
        connection
            .prepare_cached(
                "update schedule_runs set status = 'running', started_at = ?2, deadline = ?3,
                    lease_by = ?4, lease_until = ?5
                 where seq = ?1",
            )?
            .execute(params![
                seq,
                to_millis(lease.at),
                to_millis(deadline),
                lease.holder,
                to_millis(lease.until)
            ])?;
        let started = select_runs(connection, "where schedule_runs.seq = ?1", [seq])?;
        claimed.extend(started.into_iter().map(|(_, run)| run));
    }
    Ok(claimed)
}

pub(super) fn adopt(connection: &Connection, lease: &Lease) -> Result<Vec<ScheduleRun>> {
    let adoptable = "where status = 'running' and (lease_by = ?1 or lease_until <= ?2)
         order by schedule_runs.seq";
    let found = select_runs(
        connection,
        adoptable,
        params![lease.holder, to_millis(lease.at)],
    )?;
    set_lease(connection, lease, found)
}

fn set_lease(
    connection: &Connection,
    lease: &Lease,
    found: Vec<(i64, ScheduleRun)>,
) -> Result<Vec<ScheduleRun>> {
    let mut statement = connection.prepare_cached(
        "update schedule_runs set lease_by = ?2, lease_until = ?3 where seq = ?1",
    )?;
    for (seq, _) in &found {
        statement.execute(params![seq, lease.holder, to_millis(lease.until)])?;
    }
    Ok(found.into_iter().map(|(_, run)| run).collect())
}

/// The state of the run that a session or message is for.
pub(in crate::sqlite) enum RunBindingState {
    /// The run is running and has no session yet.
    Ready,
    /// The run already has a session.
    Existing(Box<Session>),
    /// The run has ended, or the run or its session does not exist.
    Gone,
}

pub(in crate::sqlite) fn check_binding(
    connection: &Connection,
    binding: &RunBinding,
) -> Result<RunBindingState> {
    let Some(run) = find_run(connection, binding.run)? else {
        return Ok(RunBindingState::Gone);
    };
    if run.status != RunStatus::Running {
        return Ok(RunBindingState::Gone);
    }
    let Some(session) = run.session_id else {
        return Ok(RunBindingState::Ready);
    };
    let found = find_session(connection, session)?;
    Ok(found.map_or(RunBindingState::Gone, |session| {
        RunBindingState::Existing(Box::new(session))
    }))
}

/// Records the session and the message of a run.
pub(in crate::sqlite) fn bind_run(
    connection: &Connection,
    binding: &RunBinding,
    session: &Session,
    message: i64,
    cost_before: f64,
) -> Result<()> {
    let id = session.id.to_string();
    connection
        .prepare_cached(
            "update schedule_runs set session = ?2, message = ?3, cost_before = ?4,
                note = coalesce(?5, note)
             where id = ?1",
        )?
        .execute(params![
            binding.run.to_string(),
            id,
            message,
            cost_before,
            binding.note
        ])?;
    if binding.pin {
        connection
            .prepare_cached(
                "update schedule_targets set session = ?2
                 where (schedule, project_id) =
                        (select schedule, project_id from schedule_runs where id = ?1)
                    and workspace_id is (select workspace_id from schedule_runs where id = ?1)",
            )?
            .execute(params![binding.run.to_string(), id])?;
    }
    Ok(())
}

/// Returns the known cost of the tree of a session so far, in US dollars.
pub(in crate::sqlite) fn tree_cost(connection: &Connection, session: &Session) -> Result<f64> {
    Ok(tree_usage(connection, session.root_id, session.updated_at)?.cost_usd)
}

pub(super) fn queue_run(
    connection: &Connection,
    binding: &RunBinding,
    to: SessionId,
    message: &SessionMessage,
) -> Result<Option<(Session, bool)>> {
    match check_binding(connection, binding)? {
        RunBindingState::Gone => Ok(None),
        RunBindingState::Existing(session) => Ok(Some((*session, false))),
        RunBindingState::Ready => {
            let Some((session, resumed, message_id)) = queue_message(connection, to, message)?
            else {
                return Ok(None);
            };
            let cost_before = tree_cost(connection, &session)?;
            bind_run(connection, binding, &session, message_id, cost_before)?;
            Ok(Some((session, resumed)))
        }
    }
}

/// Records the index of the prompt event that started the turn of a message.
pub(in crate::sqlite) fn record_turn_start(
    connection: &Connection,
    message: i64,
    index: i64,
) -> Result<()> {
    connection
        .prepare_cached("update schedule_runs set prompted = ?2 where message = ?1")?
        .execute(params![message, index])?;
    Ok(())
}

pub(super) fn run_turn(connection: &Connection, id: RunId) -> Result<Option<CallTurn>> {
    let found = connection
        .prepare_cached(
            "select sessions.id, sessions.seq, prompted,
                    exists (select 1 from messages where messages.id = message)
             from schedule_runs join sessions on sessions.id = schedule_runs.session
             where schedule_runs.id = ?1",
        )?
        .query_row([id.to_string()], |row| {
            let prompted: Option<i64> = row.get(2)?;
            Ok((row.parsed(0)?, row.get(1)?, prompted, row.get(3)?))
        })
        .optional()?;
    let Some((session, seq, prompted, is_queued)) = found else {
        return Ok(None);
    };
    Ok(Some(match (prompted, is_queued) {
        (Some(prompted), _) => turn_state(connection, session, seq, prompted)?,
        (None, true) => CallTurn::Queued,
        (None, false) => CallTurn::Dropped,
    }))
}

pub(super) fn finish(
    connection: &Connection,
    id: RunId,
    finished: &FinishedRun,
) -> Result<Option<bool>> {
    let found: Option<(i64, i64, Option<i64>, bool, f64)> = connection
        .prepare_cached(
            "select seq, schedule, message, prompted is null, cost_before from schedule_runs
             where id = ?1 and status = 'running'",
        )?
        .query_row([id.to_string()], |row| {
            Ok((
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
            ))
        })
        .optional()?;
    let Some((seq, schedule, message, is_queued, cost_before)) = found else {
        return Ok(None);
    };
    let run = find_run(connection, id)?;
    let session = match run.and_then(|run| run.session_id) {
        Some(session) => find_session(connection, session)?,
        None => None,
    };
    let cost = match &session {
        Some(session) => tree_usage(connection, session.root_id, session.updated_at)?
            .total_cost_usd()
            .map(|cost| (cost - cost_before).max(0.0)),
        None => None,
    };
    connection
        .prepare_cached(
            "update schedule_runs set status = ?2, ended_at = ?3, output = ?4, truncated = ?5,
                error = ?6, cost_usd = ?7, lease_by = null, lease_until = null
             where seq = ?1",
        )?
        .execute(params![
            seq,
            enum_to_string(&finished.status)?,
            to_millis(finished.at),
            finished.output,
            finished.truncated,
            finished.error,
            cost,
        ])?;
    if is_queued {
        let session: Option<i64> = connection
            .prepare_cached("delete from messages where id = ?1 returning session")?
            .query_row([message], |row| row.get(0))
            .optional()?;
        if let Some(session) = session {
            count_queued_bytes(connection, session)?;
        }
    }
    if let Some(session) = session.filter(|session| !session.status.is_ended()) {
        request_stop(connection, session.id, is_queued, finished.stop_request)?;
    }
    count_failures(connection, schedule, finished).map(Some)
}

/// Records a stop request for the session of a finished run. The current turn is not interrupted if the
/// prompt of the run is still queued: the turn then belongs to another message.
fn request_stop(
    connection: &Connection,
    session: SessionId,
    is_queued: bool,
    request: Option<StopRequest>,
) -> Result<()> {
    let sql = match request {
        Some(StopRequest::End) => "update sessions set wanted = 'end' where seq = ?1",
        Some(StopRequest::Interrupt) if !is_queued => {
            "update sessions set wanted = 'interrupt' where seq = ?1 and wanted is null"
        }
        _ => return Ok(()),
    };
    if let Some(seq) = find_seq(connection, session)? {
        connection.prepare_cached(sql)?.execute([seq])?;
    }
    Ok(())
}

/// Counts consecutive failures. Returns true if this disabled the schedule.
fn count_failures(connection: &Connection, schedule: i64, finished: &FinishedRun) -> Result<bool> {
    let failed = finished.status == RunStatus::Failed;
    let (failures, enabled): (u32, bool) = connection
        .prepare_cached(
            "update schedules set failures = iif(?2, failures + 1, 0) where seq = ?1
             returning failures, enabled",
        )?
        .query_row(params![schedule, failed], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let too_many = enabled && failures >= finished.max_failures;
    if too_many {
        disable(connection, schedule, &finished.disable_reason)?;
    }
    Ok(too_many)
}
