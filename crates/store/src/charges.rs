//! What sessions cost by the count of the gate.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{SessionId, Usage};

use crate::Result;

/// What one session is charged.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionCharge {
    pub session: SessionId,
    /// What is added to its usage.
    pub usage: Usage,
    pub cost_usd: f64,
    /// The model that was called last.
    pub model: Option<String>,
    /// Whether something of it is an estimate.
    pub is_estimate: bool,
}

/// A session that was charged, with the root of its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChargedSession {
    pub session: SessionId,
    pub root_id: SessionId,
}

#[async_trait]
pub trait ChargeStore {
    /// The offset in the gate's journal up to which charges have been counted.
    async fn charges_read(&self) -> Result<u64>;

    /// Adds charges to their sessions, with an event in the log of each, and moves the offset from `after` to `read`,
    /// all in one transaction. Changes nothing and returns none if the offset is not `after`. Sessions that do not exist
    /// any more are left out.
    async fn add_charges(
        &self,
        charges: Vec<SessionCharge>,
        after: u64,
        read: u64,
        at: Timestamp,
    ) -> Result<Vec<ChargedSession>>;
}
