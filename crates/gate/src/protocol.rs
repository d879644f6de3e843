//! What the tunnel in a container and the gate say to each other: one line each way, then bytes.
//!
//! Containers outlive the server and the gate, so either side may be older: fields are only added, and absent ones
//! have a default.

use serde::{Deserialize, Serialize};

/// Of a request or reply.
pub(crate) const MAX_LINE_BYTES: usize = 4096;

/// The first line of a connection to the gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Asks for a connection; the bytes after the reply are the connection's.
    Open {
        host: String,
        port: u16,
        #[serde(default)]
        way: Way,
    },
    /// Asks whether a name gets an address inside. Nothing is looked up outside.
    Lookup { name: String },
    /// Asks for the gateway to models; the bytes after the reply are requests of HTTP/1.1.
    Gateway,
}

/// How a program came to the tunnel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// By a name that the tunnel's resolver gave an address.
    #[default]
    Name,
    /// By the HTTP proxy.
    Proxy,
    /// By the gateway to models.
    Gateway,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Opened,
    Found {
        /// Ports besides the usual ones that rules name for this host.
        #[serde(default)]
        ports: Vec<u16>,
    },
    Refused {
        kind: RefusalKind,
        /// A sentence for people.
        reason: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RefusalKind {
    /// The rules of the container do not allow it.
    Denied,
    /// The container has too many connections or questions at once.
    Limit,
    /// The host could not be found or reached.
    Failed,
}
