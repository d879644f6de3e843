//! What the server and the gate say to each other about the gateway, in lines, over a connection of its own to the
//! control socket.
//!
//! Fields are only added, and absent ones have a default: either side may be older.

use serde::{Deserialize, Serialize};

use super::grants::SessionGrants;
use super::meter::TokenCounts;
use super::reservations::Reservation;

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToGate {
    /// Replaces the grants of a session; answered with `done`.
    Set { request: u64, grants: SessionGrants },
    /// A call may be sent: the budget has room for these tokens of it.
    Reserved {
        reservation: u64,
        tokens: TokenCounts,
    },
    /// A call has to wait.
    Held { reservation: u64 },
    /// A call is not sent.
    Refused { reservation: u64, reason: String },
}

/// From the gate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToServer {
    /// The first message.
    Hello {
        /// Another one for each gate.
        gate: String,
        /// The calls that are at their providers.
        #[serde(default)]
        reservations: Vec<Reservation>,
        /// The calls that wait.
        #[serde(default)]
        asked: Vec<Reservation>,
    },
    Done {
        request: u64,
    },
    /// The journal of charges has grown to this offset.
    Charged {
        end: u64,
    },
    /// Asks for room in the budget, before a call is sent.
    Reserve(Reservation),
    /// A call has ended, or is not sent any more. What it cost is in the journal of charges before this offset.
    Released {
        reservation: u64,
        end: u64,
    },
}
