//! The command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    oubliette::run(std::env::args_os().collect())
}
