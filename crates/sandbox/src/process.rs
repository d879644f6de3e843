//! Processes as the supervisor needs them, which is PID 1 of a sandbox: starting with pipes or a
//! terminal as any user, collecting whatever has ended, and signalling whole trees.
//!
//! Nothing here waits for one child: a PID 1 has one reaper, which must see every exit.

mod child;
mod reap;
mod signal;
mod spawn;

pub use reap::{Exit, Exited, reap, wait_any};
pub use signal::{kill_tree, protect_self, wait_for_termination};
pub use spawn::{ProcessSpec, SpawnError, SpawnStep, Spawned, Streams, TerminalSize, User, spawn};
