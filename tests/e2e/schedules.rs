//! Schedules and their runs.

mod crashes;
mod runs;
