//! Limits are enforced, or reported as not enforced.

use oubliette_sandbox::{LimitMechanism, ResourceLimits};

use crate::support::{Host, Mode, in_modes};

fn limits() -> ResourceLimits {
    ResourceLimits {
        memory_bytes: Some(96 << 20),
        cpus: Some(0.5),
        processes: Some(64),
    }
}

fn a_process_that_uses_too_much_memory_is_killed_and_the_sandbox_stays(host: &Host) {
    let mut spec = host.spec("a");
    spec.limits = limits();
    let sandbox = host.launch(spec);
    let applied = &sandbox.running.enforced().limits.memory;
    assert!(
        matches!(applied, LimitMechanism::CgroupV1 | LimitMechanism::CgroupV2),
        "{applied:?}"
    );
    let output = sandbox.sh("exec tail /dev/zero >/dev/null");
    assert_eq!(output.signal, Some(9), "{output:?}");
    assert_eq!(sandbox.read("echo still here"), "still here");
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(a_process_that_uses_too_much_memory_is_killed_and_the_sandbox_stays: root);

fn a_fork_bomb_is_limited(host: &Host) {
    let mut spec = host.spec("a");
    spec.limits.processes = Some(64);
    let sandbox = host.launch(spec);
    let applied = &sandbox.running.enforced().limits.processes;
    match host.mode {
        Mode::Root => assert!(
            matches!(applied, LimitMechanism::CgroupV1 | LimitMechanism::CgroupV2),
            "{applied:?}"
        ),
        Mode::User | Mode::Bwrap => assert_eq!(*applied, LimitMechanism::Rlimit),
    }
    sandbox.sh("i=0; while [ $i -lt 200 ]; do sleep 31337 >/dev/null 2>&1 & i=$((i+1)); done");
    // With shell builtins only: at the limit no process can be started.
    let counted = sandbox.read("n=0; for p in /proc/[0-9]*; do n=$((n+1)); done; echo $n");
    let count: usize = counted.parse().unwrap();
    assert!((30..=64).contains(&count), "{count} processes");
    assert!(!sandbox.can("true & true & true & true & wait"));
    let started = std::time::Instant::now();
    sandbox.remove();
    assert!(started.elapsed() < std::time::Duration::from_secs(10));
    host.assert_nothing_left();
}
in_modes!(a_fork_bomb_is_limited: root, user, bwrap);

fn limits_that_cannot_be_enforced_are_reported(host: &Host) {
    let mut spec = host.spec("a");
    spec.limits = limits();
    let sandbox = host.launch(spec);
    let applied = &sandbox.running.enforced().limits;
    for limit in [&applied.memory, &applied.cpus] {
        let enforced = matches!(limit, LimitMechanism::CgroupV1 | LimitMechanism::CgroupV2);
        let reported =
            matches!(limit, LimitMechanism::NotEnforced { reason } if !reason.is_empty());
        assert!(enforced || reported, "{limit:?}");
    }
    assert_ne!(applied.processes, LimitMechanism::NotRequested);
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(limits_that_cannot_be_enforced_are_reported: root, user, bwrap);

fn resource_limits_stay_below_the_hosts(host: &Host) {
    let sandbox = host.start("a");
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let inside: u64 = sandbox.read("ulimit -Hn").parse().unwrap();
    assert!(own.maximum.is_none_or(|hard| inside <= hard));
    assert_eq!(sandbox.read("ulimit -Hc"), "0");
    sandbox.remove();
}
in_modes!(resource_limits_stay_below_the_hosts: root, user, bwrap);
