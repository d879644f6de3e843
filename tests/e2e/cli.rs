//! The command line.

mod commands;
mod lists;
mod sessions;
mod stdio;
mod words;
