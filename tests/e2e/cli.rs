//! The command line.

mod commands;
mod sessions;
mod stdio;
mod words;
