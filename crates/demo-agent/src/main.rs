//! The agent as a binary of its own, for its tests; people get it inside `oubliette`.

use std::process::ExitCode;

fn main() -> ExitCode {
    oubliette_demo_agent::run(std::env::args_os().skip(1))
}
