//! Sessions: turns, trees, faults and crashes.

mod agent_reports;
mod budget;
mod children;
mod crashes;
mod faults;
mod joining;
mod memory;
mod relay;
mod settings;
mod stalled_turns;
mod tools;
mod turns;
mod waiting;
