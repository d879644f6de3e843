//! Real agents in real containers, and the keys and tools that agents get.

mod background;
mod failures;
mod forks;
mod full_session;
mod keys;
mod kills;
mod levels;
mod matrix;
pub(crate) mod oubliette_tools;
mod relay_tools;
mod tables;
