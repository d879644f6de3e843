//! The command line.

mod agent_install;
mod attach;
mod background;
mod clients;
mod commands;
mod consistency;
mod crashed_server;
mod install;
mod lists;
mod ps;
mod sessions;
mod stdio;
mod transcripts;
mod up_and_down;
mod words;
