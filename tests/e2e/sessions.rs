//! Sessions: turns, trees, faults and crashes.

mod children;
mod crashes;
mod faults;
mod relay;
mod tools;
mod turns;
