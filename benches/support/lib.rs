//! Shared by the benchmarks: cheap clients that check every reply, an echo server as the lower bound,
//! and tables of results.
//!
//! A time alone says more about the machine than about the product, so every benchmark measures a
//! baseline in the same round and prints the ratio. Times are not tested: a missed target is printed,
//! a wrong reply panics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark stops at the first failure"
)]

mod call;
pub mod chain;
mod client;
mod connection;
mod cpu;
pub mod echo;
pub mod egress;
mod projects;
pub mod statistics;
pub mod table;

pub use call::Call;
pub use client::{Client, Protocol, address, load};
pub use connection::{Connection, Reply};
pub use cpu::cpu_time;
pub use echo::Echo;
pub use projects::{create_project, create_projects};
pub use statistics::Sample;
pub use table::{Table, Targets};

/// Whether the command line has `--quick`.
pub fn is_quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

/// Whether the command line selects a case: it has no filter, or one that the name contains.
pub fn is_selected(name: &str) -> bool {
    let mut filters = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .peekable();
    filters.peek().is_none() || filters.any(|filter| name.contains(&filter))
}
