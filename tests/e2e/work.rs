//! Files of workspaces, and what sessions did to them.

mod checkpoints;
mod files;
mod rewind;
mod transfers;
