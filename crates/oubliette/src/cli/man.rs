//! Manual pages of all commands, for packages.

use std::path::{Path, PathBuf};

use clap::{Arg, Command, value_parser};

use crate::failure::Failure;
use crate::terminal::output;
use crate::terminal::{self, output::note};

pub(super) fn command() -> Command {
    Command::new("man")
        .about("Write manual pages of all commands to a directory")
        .hide(true)
        .arg(
            Arg::new("DIR")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Directory for the pages; created if it does not exist"),
        )
}

pub(super) fn run(command: Command, directory: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::with_cause(format!("cannot write to {}", directory.display()), &error)
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(command, directory).map_err(failed)?;
    if output::is_json() {
        terminal::print_json(&serde_json::json!({ "directory": directory }));
    } else {
        note!("Wrote the manual pages to {}.", directory.display());
    }
    Ok(())
}
