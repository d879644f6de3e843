//! Charges in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{Event, Usage};
use rusqlite::{Connection, OptionalExtension, params};

use super::Sqlite;
use super::convert::{ReadColumns, to_json};
use super::sessions::append_events;
use crate::{ChargeStore, ChargedSession, Result, SessionCharge};

fn read_offset(connection: &Connection) -> Result<u64> {
    let offset: i64 = connection
        .prepare_cached("select charges_read from gate_journal where id = 1")?
        .query_row([], |row| row.get(0))?;
    Ok(offset.cast_unsigned())
}

fn add(
    connection: &Connection,
    charge: &SessionCharge,
    at: Timestamp,
) -> Result<Option<ChargedSession>> {
    let found = connection
        .prepare_cached("select seq, root_id, usage, cost_usd from sessions where id = ?1")?
        .query_row([charge.session.to_string()], |row| {
            let usage: String = row.get(2)?;
            let cost: f64 = row.get(3)?;
            Ok((row.get::<_, i64>(0)?, row.parsed(1)?, usage, cost))
        })
        .optional()?;
    let Some((seq, root_id, usage, cost)) = found else {
        return Ok(None);
    };
    let usage: Usage = serde_json::from_str(&usage).unwrap_or_default();
    let usage = usage.saturating_add(charge.usage);
    let cost = cost + charge.cost_usd;
    connection
        .prepare_cached("update sessions set usage = ?2, cost_usd = ?3 where seq = ?1")?
        .execute(params![seq, to_json(&usage)?, cost])?;
    let event = Event::Usage {
        usage,
        cost_usd: (usage.unpriced_turns == 0).then_some(cost),
        model: charge.model.clone(),
        context_used: None,
        context_size: None,
        is_estimate: charge.is_estimate,
    };
    append_events(connection, seq, at, &[event])?;
    Ok(Some(ChargedSession {
        session: charge.session,
        root_id,
    }))
}

#[async_trait]
impl ChargeStore for Sqlite {
    async fn charges_read(&self) -> Result<u64> {
        self.read(read_offset)
    }

    async fn add_charges(
        &self,
        charges: Vec<SessionCharge>,
        after: u64,
        read: u64,
        at: Timestamp,
    ) -> Result<Vec<ChargedSession>> {
        self.write(move |connection| {
            if read_offset(connection)? != after {
                return Ok(Vec::new());
            }
            connection
                .prepare_cached("update gate_journal set charges_read = ?1 where id = 1")?
                .execute([read.cast_signed()])?;
            let charged = charges.iter().map(|charge| add(connection, charge, at));
            charged.filter_map(Result::transpose).collect()
        })
        .await
    }
}
