//! One test in a process of its own: started, watched, and ended with all it started.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Test;

/// How long after its limit a test may still clean up, at most as long as the limit.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// The exit code of a test that returned. It is not 0, so that a test whose process exits early, for
/// example by `std::process::exit(0)`, is not taken for one that passed.
const RETURNED_EXIT_CODE: u8 = 86;

/// Whether this is the status of a process that was started with `--in-process` and the name of a test, and the test returned.
pub fn has_returned(status: ExitStatus) -> bool {
    status.code() == Some(RETURNED_EXIT_CODE.into())
}

static TEST_LIMIT: OnceLock<Duration> = OnceLock::new();

/// The limit of the test that runs in this process.
pub(crate) fn limit_of_this_test() -> Duration {
    TEST_LIMIT.get().copied().unwrap_or(Duration::MAX)
}

/// Runs a test or a helper in this process.
pub(crate) fn run_here(path: &str) -> ExitCode {
    let Some(test) = inventory::iter::<Test>().find(|test| test.path() == path) else {
        eprintln!("no test or helper is named {path}");
        return ExitCode::from(2);
    };
    let _ = TEST_LIMIT.set(test.limit());
    (test.run)();
    if test.is_helper {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(RETURNED_EXIT_CODE)
    }
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    /// Why, in a few words.
    Failed(String),
}

#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) outcome: Outcome,
    pub(crate) output: String,
    pub(crate) duration: Duration,
}

/// Runs a test in a process of its own.
pub(crate) fn run(test: &Test, env: &[(&str, OsString)], no_capture: bool) -> Finished {
    let started = Instant::now();
    let mut captured = None;
    let outcome = start(test, env, no_capture, &mut captured).map_or_else(
        |error| Outcome::Failed(format!("its process does not start: {error}")),
        |mut child| wait(&mut child, test.limit()),
    );
    let duration = started.elapsed();
    Finished {
        outcome,
        output: captured.map(read_end).unwrap_or_default(),
        duration,
    }
}

fn start(
    test: &Test,
    env: &[(&str, OsString)],
    no_capture: bool,
    captured: &mut Option<File>,
) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--in-process")
        .arg(test.path())
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null());
    if !no_capture {
        let file = tempfile::tempfile()?;
        command.stdout(file.try_clone()?).stderr(file.try_clone()?);
        *captured = Some(file);
    }
    command.spawn()
}

fn wait(child: &mut Child, limit: Duration) -> Outcome {
    let deadline = Instant::now() + limit + CLEANUP_TIMEOUT.min(limit);
    loop {
        match child.try_wait() {
            Ok(Some(status)) if has_returned(status) => return Outcome::Passed,
            Ok(Some(status)) => return Outcome::Failed(describe(status)),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                kill_tree(child);
                return Outcome::Failed(format!("killed: it exceeded its limit of {limit:?}"));
            }
            Err(error) => return Outcome::Failed(format!("its process is lost: {error}")),
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        // The exit code of a panic in `main`.
        Some(101) => String::new(),
        Some(0) => "its process exited before the test returned".to_owned(),
        _ => status.to_string(),
    }
}

/// Kills a process and its descendants, for example the servers that a test started.
fn kill_tree(child: &mut Child) {
    let mut pids = vec![child.id().cast_signed()];
    let parents = parents();
    let mut next = 0;
    while next < pids.len() {
        let parent = pids[next];
        let children = parents.iter().filter(|(_, of)| *of == parent);
        pids.extend(children.map(|(pid, _)| *pid));
        next += 1;
    }
    for pid in pids.into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = child.wait();
}

/// Every process and its parent, where the system has `/proc`.
fn parents() -> Vec<(i32, i32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parent = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name before it is in parentheses and may contain anything.
        let (_, fields) = stat.rsplit_once(')')?;
        Some((pid, fields.split_whitespace().nth(1)?.parse().ok()?))
    };
    entries.filter_map(parent).collect()
}

/// The end of what a test printed.
fn read_end(mut file: File) -> String {
    let mut bytes = Vec::new();
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let start = length.saturating_sub(MAX_OUTPUT_BYTES);
    if file.seek(SeekFrom::Start(start)).is_ok() {
        let _ = file.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
