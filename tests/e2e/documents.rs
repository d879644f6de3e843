//! The documents are true: their commands are run as they stand, and their examples have the results shown.

mod commands;
mod examples;
mod page;

pub(crate) use page::install_demo_as;
