//! Signals to whole trees of processes, and what PID 1 does about its own.

use std::collections::HashMap;
use std::fs;
use std::io;

use rustix::process::{DumpableBehavior, Pid, Signal};

/// How often the tree is read again while it grows under the hand.
const ROUNDS: usize = 8;

/// Signals a process, its group and session, and every descendant that can be found.
pub fn kill_tree(pid: i32, signal: i32) -> io::Result<()> {
    let (Some(root), Some(signal)) = (Pid::from_raw(pid), Signal::from_named_raw(signal)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut done = Vec::new();
    for _ in 0..ROUNDS {
        let found: Vec<i32> = tree_of(pid)
            .into_iter()
            .filter(|pid| !done.contains(pid))
            .collect();
        if found.is_empty() {
            break;
        }
        // Gone already is as good as signalled.
        let _ = rustix::process::kill_process_group(root, signal);
        for pid in found {
            if let Some(target) = Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(target, signal);
            }
            done.push(pid);
        }
        if signal != Signal::KILL {
            break;
        }
    }
    Ok(())
}

struct Row {
    parent: i32,
    group: i32,
    session: i32,
}

/// The processes that belong to a tree, this process and PID 1 never among them.
fn tree_of(root: i32) -> Vec<i32> {
    let table = table();
    let belongs = |mut pid: i32| {
        // Bounded, because the table was not read at one moment.
        for _ in 0..table.len() {
            let Some(row) = table.get(&pid) else {
                return false;
            };
            if pid == root || row.group == root || row.session == root {
                return true;
            }
            pid = row.parent;
        }
        false
    };
    let own = std::process::id() as i32;
    let mut found: Vec<i32> = table.keys().copied().filter(|pid| belongs(*pid)).collect();
    found.retain(|pid| *pid != own && *pid != 1);
    found
}

fn table() -> HashMap<i32, Row> {
    let mut table = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        // The name in parentheses may itself hold parentheses and spaces.
        let after = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
        let mut numbers = after
            .split_ascii_whitespace()
            .skip(1)
            .map(str::parse::<i32>);
        if let (Some(Ok(parent)), Some(Ok(group)), Some(Ok(session))) =
            (numbers.next(), numbers.next(), numbers.next())
        {
            let row = Row {
                parent,
                group,
                session,
            };
            table.insert(pid, row);
        }
    }
    table
}

/// Keeps other processes out of this one's memory, environment and open files. PID 1 calls it
/// before it starts anything.
pub fn protect_self() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(
        DumpableBehavior::NotDumpable,
    )?)
}

/// Blocks until this process is asked to end. As PID 1 it gets no signal that it does not wait for.
pub fn wait_for_termination() {
    // SAFETY: the set is initialised by `sigemptyset` before its use, and outlives the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        let mut received = 0;
        libc::sigwait(&raw const set, &raw mut received);
    }
}
