//! What a process has computed so far, whatever else the machine was doing.

use std::time::Duration;

/// The time that all threads of a process which still live have spent on a processor.
pub fn cpu_time(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = threads.filter_map(|thread| {
        // A thread may end while we look.
        let figures = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        figures.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}
