//! Making sessions and giving them messages.

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{Event, SessionId, Status, Transition};
use rusqlite::{Connection, OptionalExtension, params};

use super::row::{COLUMNS, find, insert, number, session, text};
use super::step::append_events;
use crate::sqlite::callers::declare;
use crate::sqlite::calls::{is_alive, made_before, note};
use crate::sqlite::convert::time;
use crate::sqlite::projects::is_ready;
use crate::sqlite::schedules::{self, Marked};
use crate::{Limit, Message, NewSession, Result, Session, Spawned, TreeLimits, TreeUse};

pub(super) fn spawn(connection: &Connection, new: &NewSession) -> Result<Spawned> {
    let wanted = &new.session;
    if !is_ready(connection, wanted.project_id)? || !has_workspace(connection, wanted)? {
        return Ok(Spawned::Gone);
    }
    if let Some(mark) = &new.run {
        match schedules::look(connection, mark)? {
            Marked::Ready => {}
            Marked::Before(session) => {
                let resumed = false;
                return Ok(Spawned::Joined { session, resumed });
            }
            Marked::Gone => return Ok(Spawned::Gone),
        }
    }
    if new.join
        && let Some(there) = newest(connection, wanted)?
    {
        let Some(message) = &new.message else {
            let resumed = false;
            let session = Box::new(there);
            return Ok(Spawned::Joined { session, resumed });
        };
        let queued = queue(connection, there.id, message)?;
        return Ok(match queued {
            Some((session, resumed, _)) => Spawned::Joined {
                session: Box::new(session),
                resumed,
            },
            None => Spawned::Gone,
        });
    }
    if let (Some(parent), Some(call)) = (wanted.parent_id, new.call)
        && let Some(there) = made_before(connection, parent, call)?
    {
        return Ok(Spawned::Joined {
            session: Box::new(there),
            resumed: false,
        });
    }
    if let Some(parent) = wanted.parent_id {
        let Some(parent) = find(connection, parent)?.filter(is_alive) else {
            return Ok(Spawned::Gone);
        };
        if let Some(limit) = over(connection, &parent, wanted.created_at, &new.limits)? {
            return Ok(Spawned::OverLimit(limit));
        }
        count(connection, parent.root_id, wanted.created_at)?;
    }
    let seq = insert(connection, wanted)?;
    let declaration = new.message.as_ref().and_then(|m| m.declaration.as_ref());
    if let Some(declaration) = declaration {
        declare(connection, seq, wanted, declaration, wanted.created_at)?;
    }
    append_events(
        connection,
        seq,
        wanted.created_at,
        &[Event::status(Status::Created)],
    )?;
    if let Some(message) = &new.message {
        let added = add_message(connection, seq, message)?;
        if let (Some(parent), Some(call)) = (wanted.parent_id, new.call) {
            note(connection, parent, call, seq, added, wanted.created_at)?;
        }
        if let Some(mark) = &new.run {
            let before = schedules::cost(connection, wanted)?;
            schedules::note(connection, mark, wanted, added, before)?;
        }
    }
    if let Some(parent) = wanted.parent_id
        && let Some(parent) = number(connection, parent)?
    {
        let spawned = Event::ChildSpawned {
            child_id: wanted.id,
            agent: wanted.agent.clone(),
        };
        append_events(connection, parent, wanted.created_at, &[spawned])?;
    }
    let made = find(connection, wanted.id)?;
    Ok(made.map_or(Spawned::Gone, |session| Spawned::New(Box::new(session))))
}

fn has_workspace(connection: &Connection, session: &Session) -> Result<bool> {
    Ok(connection
        .prepare_cached("select 1 from workspaces where project_id = ?1 and id = ?2")?
        .exists(params![
            session.project_id.to_string(),
            session.workspace_id.as_str()
        ])?)
}

fn newest(connection: &Connection, like: &Session) -> Result<Option<Session>> {
    Ok(connection
        .prepare_cached(&format!(
            "select {COLUMNS} from sessions
             where project_id = ?1 and workspace_id = ?2 and parent_id is null and agent = ?3
             order by seq desc limit 1"
        ))?
        .query_row(
            params![
                like.project_id.to_string(),
                like.workspace_id.as_str(),
                like.agent
            ],
            session,
        )
        .optional()?)
}

/// The first limit that one more session below `parent` would break.
fn over(
    connection: &Connection,
    parent: &Session,
    now: Timestamp,
    limits: &TreeLimits,
) -> Result<Option<Limit>> {
    let used = tree_use(connection, parent.root_id, now)?;
    let cost_limit = used.cost_limit.unwrap_or(limits.cost_usd);
    Ok(if parent.depth + 1 > limits.depth {
        Some(Limit::Depth)
    } else if used.sessions >= limits.sessions {
        Some(Limit::Sessions)
    } else if used.cost_usd >= cost_limit {
        Some(Limit::Cost)
    } else if used.spawned_last_minute >= limits.spawns_per_minute {
        Some(Limit::Rate)
    } else {
        None
    })
}

pub(in crate::sqlite) fn tree_use(
    connection: &Connection,
    root: SessionId,
    now: Timestamp,
) -> Result<TreeUse> {
    let minute_ago = now - SignedDuration::from_secs(60);
    Ok(connection
        .prepare_cached(
            "select max(count(*), 1 + coalesce(max(spawned), 0)), total(cost_usd) + total(cost_gone),
                    max(cost_limit),
                    (select count(*) from spawns where at > ?2
                        and root = (select seq from sessions where id = ?1))
             from sessions where root_id = ?1",
        )?
        .query_row(params![root.to_string(), time(minute_ago)], |row| {
            Ok(TreeUse {
                sessions: row.get(0)?,
                cost_usd: row.get(1)?,
                cost_limit: row.get(2)?,
                spawned_last_minute: row.get(3)?,
            })
        })?)
}

/// Counts one more session of a tree.
fn count(connection: &Connection, root: SessionId, at: Timestamp) -> Result<()> {
    let Some(root) = number(connection, root)? else {
        return Ok(());
    };
    connection
        .prepare_cached("update sessions set spawned = spawned + 1 where seq = ?1")?
        .execute([root])?;
    let minute_ago = at - SignedDuration::from_secs(60);
    connection
        .prepare_cached("delete from spawns where root = ?1 and at <= ?2")?
        .execute(params![root, time(minute_ago)])?;
    connection
        .prepare_cached("insert into spawns (root, at) values (?1, ?2)")?
        .execute(params![root, time(at)])?;
    Ok(())
}

/// Queues a message. A session that had ended goes on; whether it had. Also the message's number.
pub(in crate::sqlite) fn queue(
    connection: &Connection,
    id: SessionId,
    message: &Message,
) -> Result<Option<(Session, bool, i64)>> {
    let (Some(seq), Some(there)) = (number(connection, id)?, find(connection, id)?) else {
        return Ok(None);
    };
    if let Some(declaration) = &message.declaration {
        declare(connection, seq, &there, declaration, message.created_at)?;
    }
    let added = add_message(connection, seq, message)?;
    if let Some(change) = &message.change_id {
        connection
            .prepare_cached(
                "update sessions set choices = json_set(choices, '$.change_id', ?2) where seq = ?1",
            )?
            .execute(params![seq, change])?;
    }
    let resumed = there.status.after(Transition::Resumed);
    if let Some(status) = resumed {
        connection
            .prepare_cached(
                "update sessions set status = ?2, error = null, ended_at = null, updated_at = ?3,
                    wanted = null
                 where seq = ?1",
            )?
            .execute(params![seq, status.as_str(), time(message.created_at)])?;
        append_events(
            connection,
            seq,
            message.created_at,
            &[Event::status(status)],
        )?;
    }
    let now = find(connection, id)?;
    Ok(now.map(|session| (session, resumed.is_some(), added)))
}

fn add_message(connection: &Connection, seq: i64, message: &Message) -> Result<i64> {
    connection
        .prepare_cached(
            "insert into messages (session, text, attachments, created_at)
             values (?1, ?2, ?3, ?4)",
        )?
        .execute(params![
            seq,
            message.text,
            text(&message.attachments)?,
            time(message.created_at)
        ])?;
    Ok(connection.last_insert_rowid())
}
