//! Projects: their operations, and the verbs that several operations share.

pub(crate) mod changes;
pub(crate) mod create;
pub(crate) mod delete;
mod fields;
pub(crate) mod get;
pub(crate) mod list;
mod openspec;
pub(crate) mod options;
mod purge;
pub(crate) mod push;
pub(crate) mod tasks;
pub(crate) mod update;
mod view;

use crate::Engine;

/// Handle for the verbs of projects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Projects<'a> {
    pub(crate) engine: &'a Engine,
}
