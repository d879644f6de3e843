//! One test per fact about what the inside of a sandbox can and cannot see and do.

use crate::support::{Host, in_modes};

fn host_processes_are_invisible(host: &Host) {
    let sandbox = host.start("a");
    assert_eq!(sandbox.read("cat /proc/1/comm"), "test-init");
    let count: usize = sandbox.read("ls -d /proc/[0-9]* | wc -l").parse().unwrap();
    assert!(count < 8, "{count} processes");
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(host_processes_are_invisible: root, user, bwrap);
