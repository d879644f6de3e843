//! Sessions in SQLite.

mod row;
mod spawn;
mod step;

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{PermissionDecision, ProjectId, SessionId};
use rusqlite::{Connection, OptionalExtension, named_params, params};

use super::Sqlite;
use super::audit::append_audit_entry;
use super::convert::{ReadColumns, enum_from_string, enum_to_string, json_column, to_millis};
use crate::{
    AuditEntry, CommittedStep, DecisionOutcome, NewSession, Page, PendingDecision, Result, Session,
    SessionFilter, SessionMessage, SessionStep, SessionStore, SpawnOutcome, StopRequest,
    StoredCounts, TreeUsage, VisibleProjects,
};
use row::{COLUMNS, session};
pub(super) use row::{find, find_seq, find_with_seq};
pub(super) use spawn::{count_queued_bytes, queue_message, tree_usage};
pub(super) use step::append_events;

/// Selects the ids of a session and its descendants.
pub(super) const TREE: &str = "with recursive tree (id) as (
        select ?1 union select sessions.id from sessions join tree on parent_id = tree.id
    )";

#[async_trait]
impl SessionStore for Sqlite {
    async fn spawn_session(
        &self,
        new: &NewSession,
        audit: Option<AuditEntry>,
    ) -> Result<SpawnOutcome> {
        let new = new.clone();
        self.write(move |connection| {
            let spawned = spawn::spawn(connection, &new)?;
            if matches!(spawned, SpawnOutcome::New(_) | SpawnOutcome::Joined { .. }) {
                append_audit_entry(connection, audit)?;
            }
            Ok(spawned)
        })
        .await
    }

    async fn queue_message(
        &self,
        id: SessionId,
        message: &SessionMessage,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>> {
        let message = message.clone();
        self.write(move |connection| {
            let queued = queue_message(connection, id, &message)?;
            if queued.is_some() {
                append_audit_entry(connection, audit)?;
            }
            Ok(queued.map(|(session, resumed, _)| (session, resumed)))
        })
        .await
    }

    async fn stored_counts(&self) -> Result<StoredCounts> {
        self.read_blocking(|connection| {
            let mut by_status = connection.prepare_cached(
                "select status, count(*), total(cost_usd) from sessions group by status",
            )?;
            let rows = by_status.query_map([], |row| {
                let (status, count): (_, i64) = (row.parsed(0)?, row.get(1)?);
                Ok((status, count, row.get::<_, f64>(2)?))
            })?;
            let mut counts = StoredCounts::default();
            for row in rows {
                let (status, count, cost_usd) = row?;
                let count = u64::try_from(count).unwrap_or_default();
                counts.sessions.push((status, count));
                counts.cost_usd += cost_usd;
            }
            let count = |query: &str| -> Result<u64> {
                let count = connection
                    .prepare_cached(query)?
                    .query_row([], |row| row.get::<_, i64>(0))?;
                Ok(u64::try_from(count).unwrap_or_default())
            };
            counts.pending_caller_requests =
                count("select count(*) from caller_requests where outcome is null")?;
            counts.enabled_schedules = count("select count(*) from schedules where enabled")?;
            Ok(counts)
        })
        .await
    }

    async fn sessions_with_prefix(
        &self,
        project: Option<ProjectId>,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<Session>> {
        let project = project.map(|id| id.to_string());
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&format!(
                "select {COLUMNS} from sessions
                 where id >= ?1 and id < ?1 || 'g' and (?2 is null or project_id = ?2)
                 order by seq desc limit ?3"
            ))?;
            let rows = statement.query_map(params![prefix, project, limit], session)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }

    async fn session(&self, id: SessionId) -> Result<Option<Session>> {
        self.read(|connection| find(connection, id))
    }

    async fn sessions(
        &self,
        visible: VisibleProjects,
        filter: &SessionFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Session>> {
        let filter = filter.clone();
        let before: i64 = after.and_then(|text| text.parse().ok()).unwrap_or(i64::MAX);
        let rows = self
            .read_blocking(move |connection| {
                let project = match visible {
                    VisibleProjects::All => None,
                    VisibleProjects::Only(id) => Some(id.to_string()),
                };
                let mut statement = connection.prepare_cached(&format!(
                    "select {COLUMNS}, seq from sessions
                     where seq < :before
                       and (:project is null or project_id = :project)
                       and (:workspace is null or workspace_id = :workspace)
                       and (:status is null or status = :status)
                       and (:active is null or (ended_at is null) = :active)
                       and (:parent is null or parent_id = :parent)
                       and (:external is null or choices ->> 'external_id' = :external)
                       and (:change is null or choices ->> 'change_id' = :change)
                       and (:agent is null or agent = :agent)
                     order by seq desc limit :limit"
                ))?;
                let rows = statement.query_map(
                    named_params! {
                        ":before": before,
                        ":project": project,
                        ":workspace": filter.workspace_id.as_ref().map(|id| id.as_str()),
                        ":status": filter.status.map(|status| status.as_str()),
                        ":active": filter.active,
                        ":parent": filter.parent_id.map(|id| id.to_string()),
                        ":external": filter.external_id,
                        ":change": filter.change_id,
                        ":agent": filter.agent,
                        ":limit": limit + 1,
                    },
                    |row| Ok((session(row)?, row.get::<_, i64>(24)?)),
                )?;
                Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
            })
            .await?;
        let page = Page::from_rows(rows, limit, |(_, seq)| seq.to_string());
        Ok(Page {
            rows: page.rows.into_iter().map(|(session, _)| session).collect(),
            next: page.next,
        })
    }

    async fn first_prompts(
        &self,
        ids: &[SessionId],
        max_chars: u32,
    ) -> Result<HashMap<SessionId, String>> {
        let ids = ids.to_vec();
        self.read_blocking(move |connection| {
            let mut statement = connection.prepare_cached(
                "select substr(body ->> 'text', 1, ?2) from events
                 where session = (select seq from sessions where id = ?1) and kind = 'prompt'
                 order by idx limit 1",
            )?;
            let mut prompts = HashMap::new();
            for id in ids {
                let prompt = statement
                    .query_row(params![id.to_string(), max_chars], |row| row.get(0))
                    .optional()?;
                prompts.extend(prompt.map(|prompt| (id, prompt)));
            }
            Ok(prompts)
        })
        .await
    }

    async fn session_tree(&self, id: SessionId) -> Result<Vec<Session>> {
        self.read_blocking(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "{TREE} select {COLUMNS} from sessions where id in tree order by seq"
            ))?;
            let rows = statement.query_map([id.to_string()], session)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn tree_usage(&self, root: SessionId, now: Timestamp) -> Result<TreeUsage> {
        self.read(|connection| tree_usage(connection, root, now))
    }

    async fn unfinished_sessions(&self) -> Result<Vec<SessionId>> {
        self.read_blocking(|connection| {
            let mut statement = connection.prepare(
                "select id from sessions where live is not null or wanted is not null
                 union
                 select id from sessions where ended_at is null
                    and seq in (select session from messages)
                 union
                 select id from sessions where status in ('running', 'waiting')",
            )?;
            let rows = statement.query_map([], |row| row.parsed(0))?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn commit_step(&self, id: SessionId, step: SessionStep) -> Result<Option<CommittedStep>> {
        let events = step::serialize(&step.events)?;
        self.write(move |connection| step::commit(connection, id, &step, &events))
            .await
    }

    async fn request_stop(
        &self,
        ids: &[SessionId],
        request: StopRequest,
        audit: Option<AuditEntry>,
    ) -> Result<()> {
        let ids = ids.to_vec();
        self.write(move |connection| {
            let sql = match request {
                StopRequest::End => "update sessions set wanted = 'end' where id = ?1",
                StopRequest::Interrupt => {
                    "update sessions set wanted = 'interrupt' where id = ?1 and wanted is null"
                }
            };
            let mut statement = connection.prepare_cached(sql)?;
            for id in ids {
                statement.execute([id.to_string()])?;
            }
            append_audit_entry(connection, audit)
        })
        .await
    }

    async fn interrupt_turns(
        &self,
        root: SessionId,
        except: SessionId,
    ) -> Result<Vec<(SessionId, ProjectId)>> {
        self.write(move |connection| {
            let mut statement = connection.prepare_cached(
                "update sessions set wanted = 'interrupt'
                 where root_id = ?1 and id <> ?2 and wanted is null
                    and status in ('running', 'waiting')
                    and (waiting is null or waiting ->> 'kind' <> 'budget')
                 returning id, project_id",
            )?;
            let rows = statement.query_map([root.to_string(), except.to_string()], |row| {
                Ok((row.parsed(0)?, row.parsed(1)?))
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn next_message(&self, id: SessionId) -> Result<Option<SessionMessage>> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached(
                    "select messages.id, text, attachments, messages.created_at from messages
                     join sessions on session = seq where sessions.id = ?1
                     order by messages.id limit 1",
                )?
                .query_row([id.to_string()], |row| {
                    Ok(SessionMessage {
                        id: row.get(0)?,
                        text: row.get(1)?,
                        attachments: json_column(row, 2)?,
                        declaration: None,
                        change_id: None,
                        sender_scope: None,
                        wait_id: None,
                        created_at: row.time(3)?,
                    })
                })
                .optional()?)
        })
    }

    async fn queued_messages(&self, id: SessionId) -> Result<u32> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached(
                    "select count(*) from messages join sessions on session = seq
                     where sessions.id = ?1",
                )?
                .query_row([id.to_string()], |row| row.get(0))?)
        })
    }

    async fn agent_input(&self, id: SessionId) -> Result<Vec<(u64, Vec<u8>)>> {
        self.read_blocking(move |connection| {
            let mut statement = connection.prepare_cached(
                "select at, bytes from agent_input join sessions on session = seq
                 where id = ?1 order by at",
            )?;
            let rows = statement.query_map([id.to_string()], |row| {
                Ok((row.get::<_, i64>(0)? as u64, row.get(1)?))
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn decisions(&self, id: SessionId) -> Result<Vec<PendingDecision>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "select request_id, kind, detail, deadline, verdict, answer from decisions
                 join sessions on session = seq where id = ?1 order by deadline",
            )?;
            let rows = statement.query_map([id.to_string()], |row| {
                let verdict: Option<String> = row.get(4)?;
                Ok(PendingDecision {
                    request_id: row.get(0)?,
                    kind: enum_from_string(1, row.get(1)?)?,
                    detail: row.get(2)?,
                    deadline: row.time(3)?,
                    verdict: verdict.map(|word| enum_from_string(4, word)).transpose()?,
                    answer: row.get(5)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }

    async fn record_decision(
        &self,
        id: SessionId,
        request_id: &str,
        verdict: PermissionDecision,
        answer: Option<String>,
        now: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<DecisionOutcome> {
        let (request_id, verdict) = (request_id.to_owned(), enum_to_string(&verdict)?);
        self.write(move |connection| {
            let Some(seq) = find_seq(connection, id)? else {
                return Ok(DecisionOutcome::NoSuchRequest);
            };
            let decided = connection
                .prepare_cached(
                    "update decisions set verdict = ?3, answer = ?4
                     where session = ?1 and request_id = ?2 and verdict is null and deadline > ?5",
                )?
                .execute(params![seq, request_id, verdict, answer, to_millis(now)])?;
            if decided > 0 {
                append_audit_entry(connection, audit)?;
                return Ok(DecisionOutcome::Done);
            }
            let exists = connection
                .prepare_cached("select 1 from decisions where session = ?1 and request_id = ?2")?
                .exists(params![seq, request_id])?;
            Ok(if exists {
                DecisionOutcome::Late
            } else {
                DecisionOutcome::NoSuchRequest
            })
        })
        .await
    }

    async fn stored_bytes(&self) -> Result<HashMap<ProjectId, u64>> {
        self.read_blocking(|connection| {
            let mut statement = connection.prepare_cached(STORED_BYTES)?;
            let rows = statement.query_map([], |row| {
                let bytes: i64 = row.get(1)?;
                Ok((row.parsed(0)?, u64::try_from(bytes).unwrap_or(0)))
            })?;
            Ok(rows.collect::<rusqlite::Result<HashMap<_, _>>>()?)
        })
        .await
    }

    async fn remove_ended_sessions(
        &self,
        visible: VisibleProjects,
        before: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Vec<SessionId>> {
        self.write(move |connection| {
            let removed = remove_ended(connection, visible, before)?;
            append_audit_entry(connection, audit)?;
            Ok(removed)
        })
        .await
    }
}

/// The sizes are columns, of which most are in an index: no long text is read.
const STORED_BYTES: &str = "
    select project_id, sum(bytes) from (
        select project_id, log_bytes + queued_bytes + request_bytes as bytes from sessions
        union all
        select project_id, octet_length(tools)
        from caller_tools join sessions on seq = session
        union all
        -- A command also takes a row.
        select project_id, result_bytes + 200 from execs
        union all
        select project_id, octet_length(prompt)
        from schedule_targets join schedules on seq = schedule
        union all
        select coalesce(
                (select project_id from sessions where sessions.id = tokens.session),
                case when scope like 'project:%' then substr(scope, 9, 36) end
            ), outcome_bytes
        from tool_calls join tokens on tokens.id = token_id where outcome_bytes > 0
    ) where project_id is not null group by project_id";

/// Deletes leaves first: a parent is deleted once it has no children.
fn remove_ended(
    connection: &Connection,
    visible: VisibleProjects,
    before: Timestamp,
) -> Result<Vec<SessionId>> {
    let project = match visible {
        VisibleProjects::All => None,
        VisibleProjects::Only(id) => Some(id.to_string()),
    };
    let mut removed = Vec::new();
    loop {
        let mut statement = connection.prepare_cached(
            "delete from sessions
             where ended_at < ?1 and live is null and (?2 is null or project_id = ?2)
               and not exists (select 1 from sessions child where child.parent_id = sessions.id)
             returning id, root_id, cost_usd",
        )?;
        let rows = statement.query_map(params![to_millis(before), project], |row| {
            Ok((row.parsed(0)?, row.get(1)?, row.get(2)?))
        })?;
        let round = rows.collect::<rusqlite::Result<Vec<(SessionId, String, f64)>>>()?;
        if round.is_empty() {
            return Ok(removed);
        }
        for (id, root, cost) in round {
            // The cost of a removed session still counts for its tree.
            connection
                .prepare_cached("update sessions set cost_gone = cost_gone + ?2 where id = ?1")?
                .execute(params![root, cost])?;
            removed.push(id);
        }
    }
}
