//! The one way out of a container with the network `policy`.
//!
//! The **gate** ([`process`]) is a process of its own on the host, one per data directory. It outlives the server:
//! it has the rules of each container, and decides alone, except about hosts that the rules say to ask for
//! ([`Question`]) and about budgets. It resolves names, checks every address, connects to one that was checked, and copies bytes. Its [`gateway`] sends the
//! requests of agents to their models, with keys that no container has. The **tunnel** ([`tunnel`]) is a process in each container: a resolver, listeners
//! and an HTTP proxy on loopback, which carry connections to the gate over a socket. The gate trusts nothing that
//! the tunnel says.
//!
//! This crate knows no engine, no store and no transport of the server.

mod check;
mod client_hello;
mod connection;
mod container;
mod control;
mod control_client;
mod copy;
mod dns;
pub mod gateway;
mod host_address;
mod journal;
mod limits;
mod lines;
pub mod process;
mod protocol;
mod questions;
mod resolver;
mod socket;
#[cfg(target_os = "linux")]
pub mod tunnel;

pub use check::check;
pub use control::{Denial, GateStatus, Registration};
pub use control_client::{ControlClient, GateCommand, GateReports, own_build, stop};
pub use journal::{JOURNAL_DIR, JournalEntry, JournalEvent, journal_files, read_journal};
pub use protocol::Way;
pub use questions::{Answer, Question};
pub use resolver::Resolver;

/// The name of the socket in the directory that a container sees as `/mcp`.
pub const EGRESS_SOCKET_NAME: &str = "egress.sock";
/// Where the HTTP proxy of a container listens.
pub const PROXY_ADDRESS: std::net::SocketAddrV4 =
    std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 3128);
