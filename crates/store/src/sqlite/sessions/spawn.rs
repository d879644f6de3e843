//! Creates sessions and queues messages.

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{Event, Scope, SessionId, Status, Transition, narrow};
use rusqlite::{Connection, params};

use super::row::{COLUMNS, find, find_seq, find_with_seq, insert, session};
use super::step::append_events;
use crate::sqlite::callers::{declare_tools, has_tools_of_others};
use crate::sqlite::calls::{find_called_session, insert_call, insert_wait, is_active};
use crate::sqlite::convert::{to_json, to_millis};
use crate::sqlite::projects::is_ready;
use crate::sqlite::schedules::{self, RunBindingState};
use crate::{
    JoinFilter, MAX_QUEUED_BYTES, NewSession, Result, Session, SessionMessage, SessionTreeLimits,
    SpawnOutcome, StoreError, TreeLimit, TreeUsage,
};

/// How many of the newest sessions of a workspace are searched for one that a message can join.
const MAX_JOIN_CANDIDATES: u32 = 1000;

pub(super) fn spawn(connection: &Connection, new: &NewSession) -> Result<SpawnOutcome> {
    let session = &new.session;
    if !is_ready(connection, session.project_id)? || !has_workspace(connection, session)? {
        return Ok(SpawnOutcome::Gone);
    }
    if let Some(binding) = &new.run {
        match schedules::check_binding(connection, binding)? {
            RunBindingState::Ready => {}
            RunBindingState::Existing(session) => {
                let resumed = false;
                return Ok(SpawnOutcome::Joined { session, resumed });
            }
            RunBindingState::Gone => return Ok(SpawnOutcome::Gone),
        }
    }
    if let Some(filter) = &new.join
        && let Some(existing) = newest_root(connection, session, filter)?
    {
        let Some(message) = &new.message else {
            let resumed = false;
            let session = Box::new(existing);
            return Ok(SpawnOutcome::Joined { session, resumed });
        };
        let queued = queue_message(connection, existing.id, message)?;
        return Ok(match queued {
            Some((session, resumed, _)) => SpawnOutcome::Joined {
                session: Box::new(session),
                resumed,
            },
            None => SpawnOutcome::Gone,
        });
    }
    if let (Some(parent), Some(call)) = (session.parent_id, new.call)
        && let Some(existing) = find_called_session(connection, parent, call)?
    {
        return Ok(SpawnOutcome::Joined {
            session: Box::new(existing),
            resumed: false,
        });
    }
    if let Some(parent) = session.parent_id {
        let Some(parent) = find(connection, parent)?.filter(is_active) else {
            return Ok(SpawnOutcome::Gone);
        };
        if let Some(limit) = exceeded_limit(connection, &parent, session.created_at, &new.limits)? {
            return Ok(SpawnOutcome::OverLimit(limit));
        }
        count_spawn(connection, parent.root_id, session.created_at)?;
    }
    let seq = insert(connection, session)?;
    let declaration = new.message.as_ref().and_then(|m| m.declaration.as_ref());
    if let Some(declaration) = declaration {
        declare_tools(connection, seq, session, declaration, session.created_at)?;
    }
    let mut events = vec![Event::status(Status::Created)];
    events.extend(new.events.iter().cloned());
    append_events(connection, seq, session.created_at, &events)?;
    if let Some(message) = &new.message {
        let message_id = insert_message(connection, seq, message)?;
        if let (Some(parent), Some(call)) = (session.parent_id, new.call) {
            insert_call(
                connection,
                parent,
                call,
                seq,
                message_id,
                session.created_at,
            )?;
        }
        if let Some(binding) = &new.run {
            let before = schedules::tree_cost(connection, session)?;
            schedules::bind_run(connection, binding, session, message_id, before)?;
        }
    }
    if let Some(parent) = session.parent_id
        && let Some(parent) = find_seq(connection, parent)?
    {
        let spawned = Event::ChildSpawned {
            child_id: session.id,
            agent: session.agent.clone(),
        };
        append_events(connection, parent, session.created_at, &[spawned])?;
    }
    let created = find(connection, session.id)?;
    Ok(created.map_or(SpawnOutcome::Gone, |session| {
        SpawnOutcome::New(Box::new(session))
    }))
}

fn has_workspace(connection: &Connection, session: &Session) -> Result<bool> {
    Ok(connection
        .prepare_cached("select 1 from workspaces where project_id = ?1 and id = ?2")?
        .exists(params![
            session.project_id.to_string(),
            session.workspace_id.as_str()
        ])?)
}

fn newest_root(
    connection: &Connection,
    like: &Session,
    filter: &JoinFilter,
) -> Result<Option<Session>> {
    let mut statement = connection.prepare_cached(&format!(
        "select {COLUMNS} from sessions
         where project_id = ?1 and workspace_id = ?2 and parent_id is null
         order by seq desc limit {MAX_JOIN_CANDIDATES}"
    ))?;
    let place = params![like.project_id.to_string(), like.workspace_id.as_str()];
    let mut rows = statement.query(place)?;
    while let Some(row) = rows.next()? {
        let found = session(row)?;
        if !filter.matches(&found) {
            continue;
        }
        // Who sends a message can have the agent call its tools, which act for someone else.
        if !has_tools_of_others(connection, &found, like.owner_id, like.created_at)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the first limit that another child of `parent` would exceed.
fn exceeded_limit(
    connection: &Connection,
    parent: &Session,
    now: Timestamp,
    limits: &SessionTreeLimits,
) -> Result<Option<TreeLimit>> {
    let usage = tree_usage(connection, parent.root_id, now)?;
    let cost_limit = usage.cost_limit.unwrap_or(limits.cost_usd);
    Ok(if parent.depth + 1 > limits.depth {
        Some(TreeLimit::Depth)
    } else if usage.sessions >= limits.sessions {
        Some(TreeLimit::Sessions)
    } else if usage.cost_usd >= cost_limit {
        Some(TreeLimit::Cost)
    } else if usage.spawned_last_minute >= limits.spawns_per_minute {
        Some(TreeLimit::Rate)
    } else {
        None
    })
}

pub(in crate::sqlite) fn tree_usage(
    connection: &Connection,
    root: SessionId,
    now: Timestamp,
) -> Result<TreeUsage> {
    let minute_ago = now - SignedDuration::from_secs(60);
    Ok(connection
        .prepare_cached(
            "select max(count(*), 1 + coalesce(max(spawned), 0)), total(cost_usd) + total(cost_gone),
                    max(cost_limit), coalesce(sum(usage ->> 'unpriced_turns'), 0),
                    (select count(*) from spawns where at > ?2
                        and root = (select seq from sessions where id = ?1))
             from sessions where root_id = ?1",
        )?
        .query_row(params![root.to_string(), to_millis(minute_ago)], |row| {
            Ok(TreeUsage {
                sessions: row.get(0)?,
                cost_usd: row.get(1)?,
                cost_limit: row.get(2)?,
                unpriced_turns: row.get(3)?,
                spawned_last_minute: row.get(4)?,
            })
        })?)
}

/// Counts a new session of a tree.
fn count_spawn(connection: &Connection, root: SessionId, at: Timestamp) -> Result<()> {
    let Some(root) = find_seq(connection, root)? else {
        return Ok(());
    };
    connection
        .prepare_cached("update sessions set spawned = spawned + 1 where seq = ?1")?
        .execute([root])?;
    let minute_ago = at - SignedDuration::from_secs(60);
    connection
        .prepare_cached("delete from spawns where root = ?1 and at <= ?2")?
        .execute(params![root, to_millis(minute_ago)])?;
    connection
        .prepare_cached("insert into spawns (root, at) values (?1, ?2)")?
        .execute(params![root, to_millis(at)])?;
    Ok(())
}

/// Queues a message and resumes an ended session. Returns the changed session, whether it was resumed,
/// and the id of the message.
pub(in crate::sqlite) fn queue_message(
    connection: &Connection,
    id: SessionId,
    message: &SessionMessage,
) -> Result<Option<(Session, bool, i64)>> {
    let Some((seq, session)) = find_with_seq(connection, id)? else {
        return Ok(None);
    };
    if let Some(declaration) = &message.declaration {
        declare_tools(connection, seq, &session, declaration, message.created_at)?;
    }
    if let (Some(granted), Some(sender)) = (session.choices.granted, message.sender_scope) {
        narrow_grant(connection, seq, granted, sender)?;
    }
    let message_id = insert_message(connection, seq, message)?;
    if let Some(change) = &message.change_id {
        connection
            .prepare_cached(
                "update sessions set choices = json_set(choices, '$.change_id', ?2) where seq = ?1",
            )?
            .execute(params![seq, change])?;
    }
    let resumed = session.status.after(Transition::Resumed);
    if let Some(status) = resumed {
        connection
            .prepare_cached(
                "update sessions set status = ?2, error = null, ended_at = null, updated_at = ?3,
                    wanted = null
                 where seq = ?1",
            )?
            .execute(params![seq, status.as_str(), to_millis(message.created_at)])?;
        append_events(
            connection,
            seq,
            message.created_at,
            &[Event::status(status)],
        )?;
    }
    let changed = find(connection, id)?;
    Ok(changed.map(|session| (session, resumed.is_some(), message_id)))
}

/// Narrows what the agent of a session may be given to the scope of someone who directs it.
fn narrow_grant(connection: &Connection, seq: i64, granted: Scope, sender: Scope) -> Result<()> {
    let narrowed = narrow(granted, [Some(sender)]);
    if narrowed != Some(granted) {
        connection
            .prepare_cached(
                "update sessions set choices = json_set(choices, '$.granted', ?2) where seq = ?1",
            )?
            .execute(params![seq, narrowed.map(|scope| scope.to_string())])?;
    }
    Ok(())
}

fn insert_message(connection: &Connection, seq: i64, message: &SessionMessage) -> Result<i64> {
    let attachments = to_json(&message.attachments)?;
    let bytes = (message.text.len() + attachments.len()) as u64;
    let queued_bytes: i64 = connection
        .prepare_cached(
            "select coalesce(sum(queued_bytes), 0) from sessions
             where project_id = (select project_id from sessions where seq = ?1)
               and queued_bytes > 0",
        )?
        .query_row([seq], |row| row.get(0))?;
    let queued_bytes = u64::try_from(queued_bytes).unwrap_or(0);
    // One message is always accepted: its own size has a limit.
    if queued_bytes > 0 && queued_bytes + bytes > MAX_QUEUED_BYTES {
        return Err(StoreError::QueueFull { queued_bytes });
    }
    connection
        .prepare_cached("update sessions set queued_bytes = queued_bytes + ?2 where seq = ?1")?
        .execute(params![seq, bytes as i64])?;
    connection
        .prepare_cached(
            "insert into messages (session, text, attachments, created_at)
             values (?1, ?2, ?3, ?4)",
        )?
        .execute(params![
            seq,
            message.text,
            attachments,
            to_millis(message.created_at)
        ])?;
    let message_id = connection.last_insert_rowid();
    if let Some(wait_id) = message.wait_id {
        insert_wait(connection, seq, wait_id, message_id, message.created_at)?;
    }
    Ok(message_id)
}

/// Counts the messages of a session again after some were removed.
pub(in crate::sqlite) fn count_queued_bytes(connection: &Connection, seq: i64) -> Result<()> {
    connection
        .prepare_cached(
            "update sessions set queued_bytes = (
                select coalesce(sum(octet_length(text) + octet_length(attachments)), 0)
                from messages where session = ?1
             ) where seq = ?1",
        )?
        .execute([seq])?;
    Ok(())
}
