//! Sessions in SQLite.

mod row;
mod spawn;
mod step;

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{PermissionDecision, SessionId};
use rusqlite::{Connection, OptionalExtension, named_params, params};

use super::Sqlite;
use super::audit::append;
use super::convert::{Columns, time};
use crate::{
    AuditEntry, Decided, Decision, Message, NewSession, Page, Result, Session, SessionFilter,
    Sessions, Spawned, Step, Stepped, TreeUse, Visible, Wanted,
};
use row::{COLUMNS, session};
pub(super) use row::{find, find_numbered, from_word, json, number, text, word};
pub(super) use spawn::{queue, tree_use};
pub(super) use step::append_events;

/// A session and everything below it.
pub(super) const TREE: &str = "with recursive tree (id) as (
        select ?1 union select sessions.id from sessions join tree on parent_id = tree.id
    )";

#[async_trait]
impl Sessions for Sqlite {
    async fn spawn_session(&self, new: &NewSession, audit: Option<AuditEntry>) -> Result<Spawned> {
        let new = new.clone();
        self.write(move |connection| {
            let spawned = spawn::spawn(connection, &new)?;
            if matches!(spawned, Spawned::New(_) | Spawned::Joined { .. }) {
                append(connection, audit)?;
            }
            Ok(spawned)
        })
        .await
    }

    async fn queue_message(
        &self,
        id: SessionId,
        message: &Message,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>> {
        let message = message.clone();
        self.write(move |connection| {
            let queued = queue(connection, id, &message)?;
            if queued.is_some() {
                append(connection, audit)?;
            }
            Ok(queued.map(|(session, resumed, _)| (session, resumed)))
        })
        .await
    }

    async fn session(&self, id: SessionId) -> Result<Option<Session>> {
        self.look(|connection| find(connection, id))
    }

    async fn sessions(
        &self,
        visible: Visible,
        filter: &SessionFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Session>> {
        let filter = filter.clone();
        let before: i64 = after.and_then(|text| text.parse().ok()).unwrap_or(i64::MAX);
        let rows = self
            .scan(move |connection| {
                let project = match visible {
                    Visible::All => None,
                    Visible::Only(id) => Some(id.to_string()),
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
        let page = Page::cut(rows, limit, |(_, seq)| seq.to_string());
        Ok(Page {
            rows: page.rows.into_iter().map(|(session, _)| session).collect(),
            next: page.next,
        })
    }

    async fn tree(&self, id: SessionId) -> Result<Vec<Session>> {
        self.scan(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "{TREE} select {COLUMNS} from sessions where id in tree order by seq"
            ))?;
            let rows = statement.query_map([id.to_string()], session)?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
        .await
    }

    async fn tree_use(&self, root: SessionId, now: Timestamp) -> Result<TreeUse> {
        self.look(|connection| tree_use(connection, root, now))
    }

    async fn unsettled_sessions(&self) -> Result<Vec<SessionId>> {
        self.scan(|connection| {
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

    async fn step(&self, id: SessionId, step: Step) -> Result<Option<Stepped>> {
        let events = step::bodies(&step.events)?;
        self.write(move |connection| step::step(connection, id, &step, &events))
            .await
    }

    async fn want(
        &self,
        ids: &[SessionId],
        wanted: Wanted,
        audit: Option<AuditEntry>,
    ) -> Result<()> {
        let ids = ids.to_vec();
        self.write(move |connection| {
            let sql = match wanted {
                Wanted::End => "update sessions set wanted = 'end' where id = ?1",
                Wanted::Interrupt => {
                    "update sessions set wanted = 'interrupt' where id = ?1 and wanted is null"
                }
            };
            let mut statement = connection.prepare_cached(sql)?;
            for id in ids {
                statement.execute([id.to_string()])?;
            }
            append(connection, audit)
        })
        .await
    }

    async fn next_message(&self, id: SessionId) -> Result<Option<Message>> {
        self.look(|connection| {
            Ok(connection
                .prepare_cached(
                    "select messages.id, text, attachments, messages.created_at from messages
                     join sessions on session = seq where sessions.id = ?1
                     order by messages.id limit 1",
                )?
                .query_row([id.to_string()], |row| {
                    Ok(Message {
                        id: row.get(0)?,
                        text: row.get(1)?,
                        attachments: json(row, 2)?,
                        declaration: None,
                        change_id: None,
                        created_at: row.time(3)?,
                    })
                })
                .optional()?)
        })
    }

    async fn queued_messages(&self, id: SessionId) -> Result<u32> {
        self.look(|connection| {
            Ok(connection
                .prepare_cached(
                    "select count(*) from messages join sessions on session = seq
                     where sessions.id = ?1",
                )?
                .query_row([id.to_string()], |row| row.get(0))?)
        })
    }

    async fn agent_input(&self, id: SessionId) -> Result<Vec<(u64, Vec<u8>)>> {
        self.scan(move |connection| {
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

    async fn decisions(&self, id: SessionId) -> Result<Vec<Decision>> {
        self.look(|connection| {
            let mut statement = connection.prepare_cached(
                "select request_id, kind, detail, deadline, verdict, answer from decisions
                 join sessions on session = seq where id = ?1 order by deadline",
            )?;
            let rows = statement.query_map([id.to_string()], |row| {
                let verdict: Option<String> = row.get(4)?;
                Ok(Decision {
                    request_id: row.get(0)?,
                    kind: from_word(1, row.get(1)?)?,
                    detail: row.get(2)?,
                    deadline: row.time(3)?,
                    verdict: verdict.map(|word| from_word(4, word)).transpose()?,
                    answer: row.get(5)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }

    async fn decide(
        &self,
        id: SessionId,
        request_id: &str,
        verdict: PermissionDecision,
        answer: Option<String>,
        now: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Decided> {
        let (request_id, verdict) = (request_id.to_owned(), word(&verdict)?);
        self.write(move |connection| {
            let Some(seq) = number(connection, id)? else {
                return Ok(Decided::NoSuchRequest);
            };
            let decided = connection
                .prepare_cached(
                    "update decisions set verdict = ?3, answer = ?4
                     where session = ?1 and request_id = ?2 and verdict is null and deadline > ?5",
                )?
                .execute(params![seq, request_id, verdict, answer, time(now)])?;
            if decided > 0 {
                append(connection, audit)?;
                return Ok(Decided::Done);
            }
            let there = connection
                .prepare_cached("select 1 from decisions where session = ?1 and request_id = ?2")?
                .exists(params![seq, request_id])?;
            Ok(match there {
                true => Decided::Late,
                false => Decided::NoSuchRequest,
            })
        })
        .await
    }

    async fn remove_ended(
        &self,
        visible: Visible,
        before: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Vec<SessionId>> {
        self.write(move |connection| {
            let removed = remove_ended(connection, visible, before)?;
            append(connection, audit)?;
            Ok(removed)
        })
        .await
    }
}

/// Leaves first: a parent goes when nothing is below it any more.
fn remove_ended(
    connection: &Connection,
    visible: Visible,
    before: Timestamp,
) -> Result<Vec<SessionId>> {
    let project = match visible {
        Visible::All => None,
        Visible::Only(id) => Some(id.to_string()),
    };
    let mut removed = Vec::new();
    loop {
        let mut statement = connection.prepare_cached(
            "delete from sessions
             where ended_at < ?1 and live is null and (?2 is null or project_id = ?2)
               and not exists (select 1 from sessions child where child.parent_id = sessions.id)
             returning id, root_id, cost_usd",
        )?;
        let rows = statement.query_map(params![time(before), project], |row| {
            Ok((row.parsed(0)?, row.get(1)?, row.get(2)?))
        })?;
        let round = rows.collect::<rusqlite::Result<Vec<(SessionId, String, f64)>>>()?;
        if round.is_empty() {
            return Ok(removed);
        }
        for (id, root, cost) in round {
            // What a tree has spent stays spent.
            connection
                .prepare_cached("update sessions set cost_gone = cost_gone + ?2 where id = ?1")?
                .execute(params![root, cost])?;
            removed.push(id);
        }
    }
}
