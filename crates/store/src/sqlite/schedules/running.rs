//! A run from its beginning to its end: claimed, given its session, recorded.

use oubliette_model::{RunId, RunStatus, SessionId};
use rusqlite::{Connection, OptionalExtension, params};

use super::firing::disable;
use super::row::{find_run, select_runs};
use crate::sqlite::calls::turn;
use crate::sqlite::convert::{Columns, time};
use crate::sqlite::sessions::{find as find_session, number, queue, tree_use, word};
use crate::{CallTurn, Finished, Lease, Message, Result, Run, RunMark, Session, Wanted};
use jiff::Timestamp;

/// A run can begin when no other of its target runs, or when that does not matter.
const READY: &str = "where status = 'queued' and (overlap = 'parallel' or not exists (
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
) -> Result<Vec<Run>> {
    let left = "where status = 'running' and lease_by <> ?1 and lease_until <= ?2
         order by schedule_runs.seq limit ?3";
    let mut claimed = take(
        connection,
        lease,
        select_runs(connection, left, params![lease.by, time(lease.at), limit])?,
    )?;
    // One by one: each that begins may stand in the way of another.
    while claimed.len() < limit as usize {
        let Some((seq, _)) = select_runs(connection, READY, [])?.pop() else {
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
                time(lease.at),
                time(deadline),
                lease.by,
                time(lease.until)
            ])?;
        let begun = select_runs(connection, "where schedule_runs.seq = ?1", [seq])?;
        claimed.extend(begun.into_iter().map(|(_, run)| run));
    }
    Ok(claimed)
}

pub(super) fn adopt(connection: &Connection, lease: &Lease) -> Result<Vec<Run>> {
    let left = "where status = 'running' and (lease_by = ?1 or lease_until <= ?2)
         order by schedule_runs.seq";
    let found = select_runs(connection, left, params![lease.by, time(lease.at)])?;
    take(connection, lease, found)
}

fn take(connection: &Connection, lease: &Lease, found: Vec<(i64, Run)>) -> Result<Vec<Run>> {
    let mut statement = connection.prepare_cached(
        "update schedule_runs set lease_by = ?2, lease_until = ?3 where seq = ?1",
    )?;
    for (seq, _) in &found {
        statement.execute(params![seq, lease.by, time(lease.until)])?;
    }
    Ok(found.into_iter().map(|(_, run)| run).collect())
}

/// The run that a session or message is to be made for.
pub(in crate::sqlite) enum Marked {
    Ready,
    /// It has its session.
    Before(Box<Session>),
    /// It is over, or gone.
    Gone,
}

pub(in crate::sqlite) fn look(connection: &Connection, mark: &RunMark) -> Result<Marked> {
    let Some(run) = find_run(connection, mark.run)? else {
        return Ok(Marked::Gone);
    };
    if run.status != RunStatus::Running {
        return Ok(Marked::Gone);
    }
    let Some(session) = run.session_id else {
        return Ok(Marked::Ready);
    };
    let session = find_session(connection, session)?;
    Ok(session.map_or(Marked::Gone, |session| Marked::Before(Box::new(session))))
}

/// Notes the session and the message that a run led to.
pub(in crate::sqlite) fn note(
    connection: &Connection,
    mark: &RunMark,
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
            mark.run.to_string(),
            id,
            message,
            cost_before,
            mark.note
        ])?;
    if mark.pin {
        connection
            .prepare_cached(
                "update schedule_targets set session = ?2
                 where (schedule, project_id) =
                        (select schedule, project_id from schedule_runs where id = ?1)
                    and workspace_id is (select workspace_id from schedule_runs where id = ?1)",
            )?
            .execute(params![mark.run.to_string(), id])?;
    }
    Ok(())
}

/// What the tree of a session has cost so far.
pub(in crate::sqlite) fn cost(connection: &Connection, session: &Session) -> Result<f64> {
    Ok(tree_use(connection, session.root_id, session.updated_at)?.cost_usd)
}

pub(super) fn queue_run(
    connection: &Connection,
    mark: &RunMark,
    to: SessionId,
    message: &Message,
) -> Result<Option<(Session, bool)>> {
    match look(connection, mark)? {
        Marked::Gone => Ok(None),
        Marked::Before(session) => Ok(Some((*session, false))),
        Marked::Ready => {
            let Some((session, resumed, added)) = queue(connection, to, message)? else {
                return Ok(None);
            };
            let before = cost(connection, &session)?;
            note(connection, mark, &session, added, before)?;
            Ok(Some((session, resumed)))
        }
    }
}

/// Notes where the turn of a message began.
pub(in crate::sqlite) fn begin_turn(connection: &Connection, message: i64, at: i64) -> Result<()> {
    connection
        .prepare_cached("update schedule_runs set prompted = ?2 where message = ?1")?
        .execute(params![message, at])?;
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
    let Some((session, seq, prompted, waits)) = found else {
        return Ok(None);
    };
    Ok(Some(match (prompted, waits) {
        (Some(prompted), _) => turn(connection, session, seq, prompted)?,
        (None, true) => CallTurn::Queued,
        (None, false) => CallTurn::Dropped,
    }))
}

pub(super) fn finish(
    connection: &Connection,
    id: RunId,
    finished: &Finished,
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
    let Some((seq, schedule, message, waits, cost_before)) = found else {
        return Ok(None);
    };
    let run = find_run(connection, id)?;
    let session = match run.and_then(|run| run.session_id) {
        Some(session) => find_session(connection, session)?,
        None => None,
    };
    let cost = match &session {
        Some(session) => Some((cost(connection, session)? - cost_before).max(0.0)),
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
            word(&finished.status)?,
            time(finished.at),
            finished.output,
            finished.truncated,
            finished.error,
            cost,
        ])?;
    if waits {
        connection
            .prepare_cached("delete from messages where id = ?1")?
            .execute([message])?;
    }
    if let Some(session) = session.filter(|session| !session.status.is_ended()) {
        want(connection, session.id, waits, finished.wanted)?;
    }
    count(connection, schedule, finished).map(Some)
}

/// Notes what is wanted of the session of a run that is over. A turn that is not the run's goes on.
fn want(
    connection: &Connection,
    session: SessionId,
    waits: bool,
    wanted: Option<Wanted>,
) -> Result<()> {
    let sql = match wanted {
        Some(Wanted::End) => "update sessions set wanted = 'end' where seq = ?1",
        Some(Wanted::Interrupt) if !waits => {
            "update sessions set wanted = 'interrupt' where seq = ?1 and wanted is null"
        }
        _ => return Ok(()),
    };
    if let Some(seq) = number(connection, session)? {
        connection.prepare_cached(sql)?.execute([seq])?;
    }
    Ok(())
}

/// Counts failures in a row; whether there were too many.
fn count(connection: &Connection, schedule: i64, finished: &Finished) -> Result<bool> {
    let failed = finished.status == RunStatus::Failed;
    let (failures, enabled): (u32, bool) = connection
        .prepare_cached(
            "update schedules set failures = iif(?2, failures + 1, 0) where seq = ?1
             returning failures, enabled",
        )?
        .query_row(params![schedule, failed], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let too_many = enabled && failures >= finished.most_failures;
    if too_many {
        disable(connection, schedule, &finished.disabled)?;
    }
    Ok(too_many)
}
