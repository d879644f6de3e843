//! The stand-alone binary, for images and for hosts that are not Linux.

use std::process::ExitCode;

fn main() -> ExitCode {
    oubliette_client::run(std::env::args_os().collect())
}
