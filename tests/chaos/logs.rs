//! What the servers logged: the lines that explain defects, and files with all of them.

use std::path::{Path, PathBuf};

/// Names a directory for the logs of a run; without it they are kept only if there are defects.
const LOG_DIR: &str = "OUBLIETTE_CHAOS_LOGS";
/// Of each kind of line.
const MAX_PRINTED_LINES: usize = 40;
/// Lines that are printed after a run.
const PRINTED: [&str; 3] = ["\"internal error\"", "panicked", "actor failed"];

/// Prints the lines that explain defects, with the number of their server, and returns how many lines tell of
/// a panic.
pub(crate) fn print_relevant(logs: &[String]) -> usize {
    let mut panics = 0;
    for kind in PRINTED {
        let numbered = logs.iter().enumerate();
        let found: Vec<(usize, &str)> = numbered
            .flat_map(|(number, log)| log.lines().map(move |line| (number, line)))
            .filter(|(_, line)| line.contains(kind))
            .collect();
        for (number, line) in found.iter().take(MAX_PRINTED_LINES) {
            println!("LOG of server {number}: {line}");
        }
        if found.len() > MAX_PRINTED_LINES {
            println!(
                "LOG: {} more lines with {kind}",
                found.len() - MAX_PRINTED_LINES
            );
        }
        if kind == "panicked" {
            panics = found.len();
        }
    }
    panics
}

/// Writes the logs to a directory outside the small disk, if they are wanted or there are defects.
pub(crate) fn keep(logs: &[String], outer_temp: &Path, has_defects: bool) {
    let wanted = std::env::var_os(LOG_DIR).map(PathBuf::from);
    if wanted.is_none() && !has_defects {
        return;
    }
    let name = format!("oubliette-chaos-logs-{}", std::process::id());
    let directory = wanted.unwrap_or_else(|| outer_temp.join(name));
    std::fs::create_dir_all(&directory).unwrap();
    for (number, log) in logs.iter().enumerate() {
        std::fs::write(directory.join(format!("server-{number}.log")), log).unwrap();
    }
    println!(
        "the logs of {} servers are in {}",
        logs.len(),
        directory.display()
    );
}
