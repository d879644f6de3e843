//! The gateway: agents reach their models by plain HTTP on loopback of their container, with a placeholder key. The
//! gate puts the real key into the request, sends it to the provider over TLS, and counts what it takes. Git repositories
//! are reached in the same way ([`git`]).
//!
//! Real keys are in the memory of the gate only: the server sends them over its private socket, and they are in no
//! argument, variable, file or log of the gate. They are sent to the address that belongs to their credential and to
//! no other.

mod body;
mod bounds;
mod buffer;
mod call;
mod charges;
mod connector;
mod git;
mod grants;
pub(crate) mod link;
mod link_client;
mod meter;
mod open_calls;
mod protocol;
mod provider;
mod request;
mod reservations;
mod serve;
mod settlement;
mod strict;
#[cfg(test)]
mod tests;
mod usage_filter;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

pub use charges::{CHARGES_DIR, Charge, read_charges, remove_read_charges};
pub use git::GitGrant;
pub use grants::{Grant, GrantedSecret, SessionGrants, placeholder_id};
pub use link_client::{GatewayLink, GatewayReceiver, GatewaySender};
pub use meter::TokenCounts;
pub use protocol::ToServer;
pub use provider::Provider;
pub use reservations::{BudgetWaits, Reservation};
pub(crate) use serve::serve;

use body::BodyLimits;
pub(crate) use buffer::BufferPool;
use charges::ChargeJournal;
use connector::Connector;
use grants::Grants;
use reservations::Reservations;

use crate::resolver::Resolver;

/// Where the gateway of a container listens.
pub const GATEWAY_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 3129);

/// Of the head of a request or response.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 128;
/// Connections to one provider that wait for the next request.
const MAX_IDLE_CONNECTIONS: usize = 32;
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Bounds of requests and responses.
#[derive(Debug, Clone, Copy)]
struct GatewayLimits {
    /// Of a request that is read before it is sent.
    max_call_bytes: usize,
    request: BodyLimits,
    response: BodyLimits,
    /// From the end of the request to the head of the response: a model may think for long before it answers.
    response_head: Duration,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            max_call_bytes: 32 << 20,
            request: BodyLimits {
                max_bytes: 512 << 20,
                idle: Duration::from_secs(60),
            },
            response: BodyLimits {
                max_bytes: 256 << 20,
                idle: Duration::from_secs(600),
            },
            response_head: Duration::from_secs(900),
        }
    }
}

type RequestBody = UnsyncBoxBody<Bytes, io::Error>;
/// Sends requests to providers and git hosts. Each container has its own: a connection that a container has used is
/// never used for the request of another one.
pub(crate) type UpstreamClient = Client<Connector, RequestBody>;

/// What all requests of a gate share.
pub(crate) struct Gateway {
    /// Another one for each gate.
    pub(crate) id: String,
    pub(crate) grants: Grants,
    charges: ChargeJournal,
    pub(crate) reservations: Reservations,
    connector: Connector,
    pub(crate) buffered: BufferPool,
    limits: GatewayLimits,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Gateway {
    pub(crate) fn new(data_dir: &Path, resolver: Resolver) -> io::Result<Self> {
        Self::with_limits(data_dir, resolver, GatewayLimits::default())
    }

    fn with_limits(data_dir: &Path, resolver: Resolver, limits: GatewayLimits) -> io::Result<Self> {
        let started = jiff::Timestamp::now().as_nanosecond();
        let id = format!("{}-{started}", std::process::id());
        let directory = data_dir.join(CHARGES_DIR);
        Ok(Self {
            grants: Grants::default(),
            // First: it charges what an earlier gate has left open.
            charges: ChargeJournal::start(&directory)?,
            reservations: Reservations::new(&id, &directory)?,
            id,
            connector: Connector::new(resolver)?,
            buffered: BufferPool::of_gate(),
            limits,
        })
    }

    /// The client of a new container.
    pub(crate) fn new_client(&self) -> UpstreamClient {
        Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            .http1_max_buf_size(MAX_HEAD_BYTES)
            .http1_max_headers(MAX_HEADERS)
            .build(self.connector.clone())
    }
}
