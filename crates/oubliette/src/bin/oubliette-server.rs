//! `oubliette serve` under a name of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    arguments.insert(1.min(arguments.len()), "serve".into());
    oubliette::run(arguments)
}
