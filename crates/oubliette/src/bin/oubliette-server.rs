//! `oubliette-server` executes `oubliette serve` from the same directory. It links no other crate, so that a
//! release build is not twice as long and large.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let program = std::env::current_exe().map(|own| own.with_file_name("oubliette"));
    let program = program.unwrap_or_else(|_| "oubliette".into());
    let error = Command::new(&program)
        .arg("serve")
        .args(std::env::args_os().skip(1))
        .exec();
    eprintln!(
        "error: cannot start {}: {error}; install `oubliette` in the same directory",
        program.display()
    );
    ExitCode::FAILURE
}
