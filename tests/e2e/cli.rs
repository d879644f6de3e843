//! The command line.

mod commands;
mod sessions;
