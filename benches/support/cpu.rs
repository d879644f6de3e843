//! The CPU time of a process, which does not depend on other load of the machine.

use std::time::Duration;

/// The CPU time of all threads of a process that still run.
pub fn cpu_time(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = threads.filter_map(|thread| {
        // A thread can end meanwhile.
        let schedstat = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        schedstat.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}
