//! Schedules in SQLite.

mod firing;
mod row;
mod running;

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, RunId, ScheduleId, SessionId};
use rusqlite::{Connection, OptionalExtension, params};

use super::Sqlite;
use super::audit::append_audit_entry;
use super::convert::{ReadColumns, to_millis};
use super::projects::is_ready;
use crate::{
    AuditEntry, CallTurn, FinishedRun, Firing, Lease, MAX_SCHEDULE_PROMPT_BYTES, MAX_SCHEDULES,
    Page, Result, RunBinding, RunFilter, Schedule, ScheduleRun, ScheduleStore, ScheduleTarget,
    ScheduleUpdate, Session, SessionMessage, StoreError, VisibleProjects,
};
use row::{brief_columns, find, find_run, insert, insert_targets, select, select_runs, update_row};
pub(super) use running::{RunBindingState, bind_run, check_binding, record_turn_start, tree_cost};

fn all_projects_ready(connection: &Connection, targets: &[ScheduleTarget]) -> Result<bool> {
    for target in targets {
        if !is_ready(connection, target.project_id)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Refuses a schedule with which one of its projects would have more than its share of them. `stored` is
/// the one that it replaces: what does not grow is not refused.
fn check_share(
    connection: &Connection,
    schedule: &Schedule,
    stored: Option<(i64, &Schedule)>,
) -> Result<()> {
    for target in &schedule.targets {
        let project = target.project_id;
        let had = stored.filter(|(_, stored)| {
            let mut targets = stored.targets.iter();
            targets.any(|target| target.project_id == project)
        });
        if had.is_some_and(|(_, had)| had.prompt.len() >= schedule.prompt.len()) {
            continue;
        }
        let (count, bytes): (u32, i64) = connection
            .prepare_cached(
                "select count(*), coalesce(sum(octet_length(prompt)), 0) from schedules
                 where seq in (select schedule from schedule_targets where project_id = ?1)
                   and seq is not ?2",
            )?
            .query_row(
                params![project.to_string(), stored.map(|(seq, _)| seq)],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
        let prompt_bytes = u64::try_from(bytes).unwrap_or(0);
        let is_full = count >= MAX_SCHEDULES
            || prompt_bytes + schedule.prompt.len() as u64 > MAX_SCHEDULE_PROMPT_BYTES;
        if is_full {
            return Err(StoreError::TooManySchedules {
                project,
                count,
                prompt_bytes,
            });
        }
    }
    Ok(())
}

fn parse_cursor(after: Option<&str>) -> i64 {
    after.and_then(|text| text.parse().ok()).unwrap_or(i64::MAX)
}

fn without_seq<T>(page: Page<(i64, T)>) -> Page<T> {
    Page {
        rows: page.rows.into_iter().map(|(_, row)| row).collect(),
        next: page.next,
    }
}

/// Deletes the targets and runs of a project, and disables schedules that have no targets left.
pub(super) fn remove_project_targets(connection: &Connection, project: ProjectId) -> Result<()> {
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
                disabled_reason = 'its last target was deleted with its project; set new targets \
                 with `schedule_update`'
             where enabled and not exists
                (select 1 from schedule_targets where schedule = schedules.seq)",
            [],
        )?;
    }
    Ok(())
}

fn update(connection: &Connection, schedule: &Schedule) -> Result<ScheduleUpdate> {
    if !all_projects_ready(connection, &schedule.targets)? {
        return Ok(ScheduleUpdate::NoSuchProject);
    }
    let Some((seq, stored)) = find(connection, schedule.id)? else {
        return Ok(ScheduleUpdate::Stale);
    };
    if stored.revision != schedule.revision {
        return Ok(ScheduleUpdate::Stale);
    }
    check_share(connection, schedule, Some((seq, &stored)))?;
    let updated = Schedule {
        id: stored.id,
        revision: stored.revision + 1,
        created_at: stored.created_at,
        ..schedule.clone()
    };
    update_row(connection, seq, &updated)?;
    connection
        .prepare_cached("delete from schedule_targets where schedule = ?1")?
        .execute([seq])?;
    let mut targets = schedule.targets.clone();
    for target in &mut targets {
        // A child session of one owner must not be used by another owner.
        let same_owner = stored.owner_session == schedule.owner_session;
        let mut candidates = stored.targets.iter().filter(|_| same_owner);
        let old = candidates.find(|old| old.has_same_workspace(target));
        target.session_id = old.and_then(|old| old.session_id);
    }
    insert_targets(connection, seq, &targets)?;
    Ok(ScheduleUpdate::Done)
}

#[async_trait]
impl ScheduleStore for Sqlite {
    async fn add_schedule(&self, schedule: &Schedule, audit: Option<AuditEntry>) -> Result<bool> {
        let schedule = schedule.clone();
        self.write(move |connection| {
            if !all_projects_ready(connection, &schedule.targets)? {
                return Ok(false);
            }
            check_share(connection, &schedule, None)?;
            insert(connection, &schedule)?;
            append_audit_entry(connection, audit)?;
            Ok(true)
        })
        .await
    }

    async fn schedule(&self, id: ScheduleId) -> Result<Option<Schedule>> {
        self.read(|connection| Ok(find(connection, id)?.map(|(_, schedule)| schedule)))
    }

    async fn schedules(
        &self,
        visible: VisibleProjects,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Schedule>> {
        let before = parse_cursor(after);
        let rows = self
            .read_blocking(move |connection| match visible {
                VisibleProjects::All => select(
                    connection,
                    &brief_columns(),
                    "where seq < ?1 order by seq desc limit ?2",
                    params![before, limit + 1],
                ),
                VisibleProjects::Only(project) => select(
                    connection,
                    &brief_columns(),
                    "where seq < ?1 and seq in
                        (select schedule from schedule_targets where project_id = ?3)
                     order by seq desc limit ?2",
                    params![before, limit + 1, project.to_string()],
                ),
            })
            .await?;
        let page = Page::from_rows(rows, limit, |(seq, _)| seq.to_string());
        Ok(without_seq(page))
    }

    async fn update_schedule(
        &self,
        schedule: &Schedule,
        audit: Option<AuditEntry>,
    ) -> Result<ScheduleUpdate> {
        let schedule = schedule.clone();
        self.write(move |connection| {
            let outcome = update(connection, &schedule)?;
            if outcome == ScheduleUpdate::Done {
                append_audit_entry(connection, audit)?;
            }
            Ok(outcome)
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
            append_audit_entry(connection, audit)?;
            Ok(Some(unfinished as usize))
        })
        .await
    }

    async fn next_due_at(&self) -> Result<Option<Timestamp>> {
        self.read(|connection| {
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
        self.read_blocking(move |connection| {
            let due = select(
                connection,
                &brief_columns(),
                "where next_at <= ?1 order by next_at, seq limit ?2",
                params![to_millis(now), limit],
            )?;
            Ok(due.into_iter().map(|(_, schedule)| schedule).collect())
        })
        .await
    }

    async fn fire_schedules(
        &self,
        firings: Vec<Firing>,
        audit: Option<AuditEntry>,
    ) -> Result<Vec<ScheduleRun>> {
        self.write(move |connection| {
            let mut created = Vec::new();
            for firing in &firings {
                created.extend(firing::fire(connection, firing)?);
            }
            append_audit_entry(connection, audit)?;
            Ok(created)
        })
        .await
    }

    async fn claim_runs(
        &self,
        lease: &Lease,
        deadline: Timestamp,
        limit: u32,
    ) -> Result<Vec<ScheduleRun>> {
        let lease = lease.clone();
        self.write(move |connection| running::claim(connection, &lease, deadline, limit))
            .await
    }

    async fn adopt_runs(&self, lease: &Lease) -> Result<Vec<ScheduleRun>> {
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
                .execute(params![lease.holder, to_millis(lease.until)])?;
            Ok(())
        })
        .await
    }

    async fn next_lease_end(&self, holder: &str) -> Result<Option<Timestamp>> {
        let holder = holder.to_owned();
        self.read(|connection| {
            Ok(connection
                .prepare_cached(
                    "select min(lease_until) from schedule_runs
                     where status = 'running' and lease_by <> ?1",
                )?
                .query_row([holder], |row| row.optional_time(0))?)
        })
    }

    async fn schedule_run(&self, id: RunId) -> Result<Option<ScheduleRun>> {
        self.read(|connection| find_run(connection, id))
    }

    async fn queue_run(
        &self,
        binding: &RunBinding,
        to: SessionId,
        message: &SessionMessage,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>> {
        let (binding, message) = (binding.clone(), message.clone());
        self.write(move |connection| {
            let queued = running::queue_run(connection, &binding, to, &message)?;
            if queued.is_some() {
                append_audit_entry(connection, audit)?;
            }
            Ok(queued)
        })
        .await
    }

    async fn run_turn(&self, id: RunId) -> Result<Option<CallTurn>> {
        self.read(|connection| running::run_turn(connection, id))
    }

    async fn finish_run(&self, id: RunId, finished: FinishedRun) -> Result<Option<bool>> {
        self.write(move |connection| running::finish(connection, id, &finished))
            .await
    }

    async fn schedule_runs(
        &self,
        id: ScheduleId,
        filter: &RunFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<ScheduleRun>> {
        let before = parse_cursor(after);
        let project = filter.project_id.map(|id| id.to_string());
        let rows = self
            .read_blocking(move |connection| {
                select_runs(
                    connection,
                    "where schedule_runs.schedule = (select seq from schedules where id = ?1)
                        and schedule_runs.seq < ?2 and (?3 is null or project_id = ?3)
                     order by schedule_runs.seq desc limit ?4",
                    params![id.to_string(), before, project, limit + 1],
                )
            })
            .await?;
        let page = Page::from_rows(rows, limit, |(seq, _)| seq.to_string());
        Ok(without_seq(page))
    }

    async fn trim_runs(&self, before: Timestamp, max_runs: u32) -> Result<usize> {
        // Counting many runs takes long and must not block the writer.
        let over_limit = self
            .read_blocking(move |connection| {
                let mut statement = connection.prepare(
                    "select schedule from schedule_runs group by schedule having count(*) > ?1",
                )?;
                let rows = statement.query_map([max_runs], |row| row.get(0))?;
                Ok(rows.collect::<rusqlite::Result<Vec<i64>>>()?)
            })
            .await?;
        self.write(move |connection| {
            let mut trimmed = connection.execute(
                "delete from schedule_runs
                 where ended_at < ?1 and status not in ('queued', 'running')",
                [to_millis(before)],
            )?;
            let mut statement = connection.prepare(
                "delete from schedule_runs where schedule = ?1 and seq <=
                    (select seq from schedule_runs where schedule = ?1
                     order by seq desc limit 1 offset ?2)
                    and status not in ('queued', 'running')",
            )?;
            for schedule in over_limit {
                trimmed += statement.execute(params![schedule, max_runs])?;
            }
            Ok(trimmed)
        })
        .await
    }
}
