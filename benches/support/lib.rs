//! What the benchmarks share: cheap clients that check every reply, an echo server as the limit,
//! and tables of what was measured.
//!
//! A figure alone says more about the machine than about the product, so every benchmark measures
//! the limit beside it in the same round and prints the ratio. Timings are no test: a missed aim
//! is printed, a wrong reply panics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark that cannot go on stops"
)]

mod call;
pub mod chain;
mod client;
mod connection;
mod cpu;
pub mod echo;
pub mod figures;
mod projects;
pub mod table;

pub use call::Call;
pub use client::{Client, Era, address, load};
pub use connection::{Connection, Reply};
pub use cpu::cpu_time;
pub use echo::Echo;
pub use figures::Sample;
pub use projects::{make_project, make_projects};
pub use table::{Aims, Table};

/// Whether the command line asks for a short run.
pub fn is_quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

/// Whether the command line asks for this one: it names a part of it, or nothing.
pub fn is_wanted(name: &str) -> bool {
    let mut parts = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .peekable();
    parts.peek().is_none() || parts.any(|part| name.contains(&part))
}
