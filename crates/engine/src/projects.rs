//! Projects: named places for work.

pub(crate) mod changes;
pub(crate) mod create;
pub(crate) mod delete;
mod fields;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod options;
pub(crate) mod tasks;
pub(crate) mod update;
mod view;
