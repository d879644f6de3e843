//! Schedules in SQLite.

mod firing;
mod row;
mod running;

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, RunId, ScheduleId, SessionId};
use rusqlite::{Connection, OptionalExtension, params};

use super::Sqlite;
use super::audit::append;
use super::convert::{Columns, time};
use super::projects::is_ready;
use super::sessions::word;
use crate::{
    AuditEntry, CallTurn, Changed, Finished, Firing, Lease, Message, Page, Result, Run, RunFilter,
    RunMark, Schedule, Schedules, Session, Target, Visible,
};
use row::{BRIEF, find, find_run, insert_targets, select, select_runs};
pub(super) use running::{Marked, begin_turn, cost, look, note};

fn all_ready(connection: &Connection, targets: &[Target]) -> Result<bool> {
    for target in targets {
        if !is_ready(connection, target.project_id)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn cursor(after: Option<&str>) -> i64 {
    after.and_then(|text| text.parse().ok()).unwrap_or(i64::MAX)
}

fn without_numbers<T>(page: Page<(i64, T)>) -> Page<T> {
    Page {
        rows: page.rows.into_iter().map(|(_, row)| row).collect(),
        next: page.next,
    }
}

/// A project that goes takes its targets along, and what ran for it. A schedule that is left without
/// any does not run any more.
pub(super) fn forget_project(connection: &Connection, project: ProjectId) -> Result<()> {
    let project = project.to_string();
    connection.execute(
        "delete from schedule_runs where project_id = ?1",
        [&project],
    )?;
    let removed = connection.execute(
        "delete from schedule_targets where project_id = ?1",
        [&project],
    )?;
    if removed > 0 {
        connection.execute(
            "update schedules set enabled = 0, next_at = null, revision = revision + 1,
                disabled_reason = 'its last target was deleted with its project; give it others \
                 with `schedule_update`'
             where enabled and not exists
                (select 1 from schedule_targets where schedule = schedules.seq)",
            [],
        )?;
    }
    Ok(())
}

fn insert(connection: &Connection, schedule: &Schedule) -> Result<()> {
    connection
        .prepare_cached(
            "insert into schedules (id, revision, name, cron_expr, timezone, prompt, enabled,
                overlap, session_behavior, missed_runs, owner_id, next_at, disabled_reason,
                failures, created_at, updated_at, owner_session)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
        )?
        .execute(params![
            schedule.id.to_string(),
            schedule.revision,
            schedule.name,
            schedule.cron_expr,
            schedule.timezone,
            schedule.prompt,
            schedule.enabled,
            word(&schedule.overlap)?,
            word(&schedule.session_behavior)?,
            word(&schedule.missed_runs)?,
            schedule.owner_id.to_string(),
            schedule.next_at.map(time),
            schedule.disabled_reason,
            schedule.failures,
            time(schedule.created_at),
            time(schedule.updated_at),
            schedule.owner_session.map(|id| id.to_string()),
        ])?;
    insert_targets(
        connection,
        connection.last_insert_rowid(),
        &schedule.targets,
    )
}

fn update(connection: &Connection, schedule: &Schedule) -> Result<Changed> {
    if !all_ready(connection, &schedule.targets)? {
        return Ok(Changed::NoSuchProject);
    }
    let Some((seq, stored)) = find(connection, schedule.id)? else {
        return Ok(Changed::Stale);
    };
    if stored.revision != schedule.revision {
        return Ok(Changed::Stale);
    }
    connection
        .prepare_cached(
            "update schedules set revision = revision + 1, name = ?2, cron_expr = ?3,
                timezone = ?4, prompt = ?5, enabled = ?6, overlap = ?7, session_behavior = ?8,
                missed_runs = ?9, owner_id = ?10, next_at = ?11, disabled_reason = ?12,
                failures = ?13, updated_at = ?14, owner_session = ?15
             where seq = ?1",
        )?
        .execute(params![
            seq,
            schedule.name,
            schedule.cron_expr,
            schedule.timezone,
            schedule.prompt,
            schedule.enabled,
            word(&schedule.overlap)?,
            word(&schedule.session_behavior)?,
            word(&schedule.missed_runs)?,
            schedule.owner_id.to_string(),
            schedule.next_at.map(time),
            schedule.disabled_reason,
            schedule.failures,
            time(schedule.updated_at),
            schedule.owner_session.map(|id| id.to_string()),
        ])?;
    connection
        .prepare_cached("delete from schedule_targets where schedule = ?1")?
        .execute([seq])?;
    let mut targets = schedule.targets.clone();
    for target in &mut targets {
        // A session that stands below another one is not for who does not.
        let same_owner = stored.owner_session == schedule.owner_session;
        let mut before = stored.targets.iter().filter(|_| same_owner);
        let before = before.find(|old| old.is_same_place(target));
        target.session_id = before.and_then(|old| old.session_id);
    }
    insert_targets(connection, seq, &targets)?;
    Ok(Changed::Done)
}

#[async_trait]
impl Schedules for Sqlite {
    async fn add_schedule(&self, schedule: &Schedule, audit: Option<AuditEntry>) -> Result<bool> {
        let schedule = schedule.clone();
        self.write(move |connection| {
            if !all_ready(connection, &schedule.targets)? {
                return Ok(false);
            }
            insert(connection, &schedule)?;
            append(connection, audit)?;
            Ok(true)
        })
        .await
    }

    async fn schedule(&self, id: ScheduleId) -> Result<Option<Schedule>> {
        self.look(|connection| Ok(find(connection, id)?.map(|(_, schedule)| schedule)))
    }

    async fn schedules(
        &self,
        visible: Visible,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Schedule>> {
        let before = cursor(after);
        let rows = self
            .scan(move |connection| match visible {
                Visible::All => select(
                    connection,
                    BRIEF,
                    "where seq < ?1 order by seq desc limit ?2",
                    params![before, limit + 1],
                ),
                Visible::Only(project) => select(
                    connection,
                    BRIEF,
                    "where seq < ?1 and seq in
                        (select schedule from schedule_targets where project_id = ?3)
                     order by seq desc limit ?2",
                    params![before, limit + 1, project.to_string()],
                ),
            })
            .await?;
        let page = Page::cut(rows, limit, |(seq, _)| seq.to_string());
        Ok(without_numbers(page))
    }

    async fn update_schedule(
        &self,
        schedule: &Schedule,
        audit: Option<AuditEntry>,
    ) -> Result<Changed> {
        let schedule = schedule.clone();
        self.write(move |connection| {
            let changed = update(connection, &schedule)?;
            if changed == Changed::Done {
                append(connection, audit)?;
            }
            Ok(changed)
        })
        .await
    }

    async fn remove_schedule(
        &self,
        id: ScheduleId,
        audit: Option<AuditEntry>,
    ) -> Result<Option<usize>> {
        self.write(move |connection| {
            let Some((seq, _)) = find(connection, id)? else {
                return Ok(None);
            };
            let unfinished: i64 = connection.query_row(
                "select count(*) from schedule_runs
                 where schedule = ?1 and status in ('queued', 'running')",
                [seq],
                |row| row.get(0),
            )?;
            connection.execute("delete from schedules where seq = ?1", [seq])?;
            append(connection, audit)?;
            Ok(Some(unfinished as usize))
        })
        .await
    }

    async fn next_due(&self) -> Result<Option<Timestamp>> {
        self.look(|connection| {
            let next = connection
                .prepare_cached(
                    "select next_at from schedules where next_at is not null
                     order by next_at limit 1",
                )?
                .query_row([], |row| row.time(0))
                .optional()?;
            Ok(next)
        })
    }

    async fn due_schedules(&self, now: Timestamp, limit: u32) -> Result<Vec<Schedule>> {
        self.scan(move |connection| {
            let due = select(
                connection,
                BRIEF,
                "where next_at <= ?1 order by next_at, seq limit ?2",
                params![time(now), limit],
            )?;
            Ok(due.into_iter().map(|(_, schedule)| schedule).collect())
        })
        .await
    }

    async fn fire(&self, firings: Vec<Firing>, audit: Option<AuditEntry>) -> Result<Vec<Run>> {
        self.write(move |connection| {
            let mut made = Vec::new();
            for firing in &firings {
                made.extend(firing::fire(connection, firing)?);
            }
            append(connection, audit)?;
            Ok(made)
        })
        .await
    }

    async fn claim_runs(&self, lease: &Lease, deadline: Timestamp, limit: u32) -> Result<Vec<Run>> {
        let lease = lease.clone();
        self.write(move |connection| running::claim(connection, &lease, deadline, limit))
            .await
    }

    async fn adopt_runs(&self, lease: &Lease) -> Result<Vec<Run>> {
        let lease = lease.clone();
        self.write(move |connection| running::adopt(connection, &lease))
            .await
    }

    async fn renew_runs(&self, lease: &Lease) -> Result<()> {
        let lease = lease.clone();
        self.write(move |connection| {
            connection
                .prepare_cached(
                    "update schedule_runs set lease_until = ?2
                     where status = 'running' and lease_by = ?1",
                )?
                .execute(params![lease.by, time(lease.until)])?;
            Ok(())
        })
        .await
    }

    async fn next_lease_end(&self, by: &str) -> Result<Option<Timestamp>> {
        let by = by.to_owned();
        self.look(|connection| {
            Ok(connection
                .prepare_cached(
                    "select min(lease_until) from schedule_runs
                     where status = 'running' and lease_by <> ?1",
                )?
                .query_row([by], |row| row.maybe_time(0))?)
        })
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>> {
        self.look(|connection| find_run(connection, id))
    }

    async fn queue_run(
        &self,
        mark: &RunMark,
        to: SessionId,
        message: &Message,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>> {
        let (mark, message) = (mark.clone(), message.clone());
        self.write(move |connection| {
            let queued = running::queue_run(connection, &mark, to, &message)?;
            if queued.is_some() {
                append(connection, audit)?;
            }
            Ok(queued)
        })
        .await
    }

    async fn run_turn(&self, id: RunId) -> Result<Option<CallTurn>> {
        self.look(|connection| running::run_turn(connection, id))
    }

    async fn finish_run(&self, id: RunId, finished: Finished) -> Result<Option<bool>> {
        self.write(move |connection| running::finish(connection, id, &finished))
            .await
    }

    async fn runs(
        &self,
        id: ScheduleId,
        filter: &RunFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Run>> {
        let before = cursor(after);
        let project = filter.project_id.map(|id| id.to_string());
        let rows = self
            .scan(move |connection| {
                select_runs(
                    connection,
                    "where schedule_runs.schedule = (select seq from schedules where id = ?1)
                        and schedule_runs.seq < ?2 and (?3 is null or project_id = ?3)
                     order by schedule_runs.seq desc limit ?4",
                    params![id.to_string(), before, project, limit + 1],
                )
            })
            .await?;
        let page = Page::cut(rows, limit, |(seq, _)| seq.to_string());
        Ok(without_numbers(page))
    }

    async fn trim_runs(&self, before: Timestamp, most: u32) -> Result<usize> {
        // Counting takes long where there are many, and the writer has others to serve.
        let crowded = self
            .scan(move |connection| {
                let mut statement = connection.prepare(
                    "select schedule from schedule_runs group by schedule having count(*) > ?1",
                )?;
                let rows = statement.query_map([most], |row| row.get(0))?;
                Ok(rows.collect::<rusqlite::Result<Vec<i64>>>()?)
            })
            .await?;
        self.write(move |connection| {
            let mut trimmed = connection.execute(
                "delete from schedule_runs
                 where ended_at < ?1 and status not in ('queued', 'running')",
                [time(before)],
            )?;
            let mut statement = connection.prepare(
                "delete from schedule_runs where schedule = ?1 and seq <=
                    (select seq from schedule_runs where schedule = ?1
                     order by seq desc limit 1 offset ?2)
                    and status not in ('queued', 'running')",
            )?;
            for schedule in crowded {
                trimmed += statement.execute(params![schedule, most])?;
            }
            Ok(trimmed)
        })
        .await
    }
}
