//! What the server and the gate say to each other about the gateway, in lines, over a connection of its own to the
//! control socket.
//!
//! Fields are only added, and absent ones have a default: either side may be older.

use serde::{Deserialize, Serialize};

use super::grants::SessionGrants;

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToGate {
    /// Replaces the grants of a session; answered with `done`.
    Set { request: u64, grants: SessionGrants },
}

/// From the gate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToServer {
    /// The first message.
    Hello {
        /// Another one for each gate.
        gate: String,
    },
    Done {
        request: u64,
    },
    /// The journal of charges has grown to this offset.
    Charged {
        end: u64,
    },
}
