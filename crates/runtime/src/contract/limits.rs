//! Limits, where the runtime says that they hold.

use oubliette_wire::ExitStatus;

use super::{Ground, Room};
use crate::{Enforcement, Runtime};

pub(super) async fn memory_is_bounded_and_the_supervisor_survives(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    if runtime.capabilities().memory_limit != Enforcement::Enforced {
        return;
    }
    let mut room = Room::new(runtime, ground);
    room.spec.limits.memory_bytes = Some(64 << 20);
    let mut supervisor = room.up().await;
    let within = supervisor
        .run("dd if=/dev/zero of=/dev/null bs=16M count=1")
        .await;
    assert_eq!(within.ended, ExitStatus::Code(0), "{}", within.stderr);
    let beyond = supervisor
        .run("dd if=/dev/zero of=/dev/null bs=256M count=1; echo $?")
        .await;
    assert_eq!(beyond.stdout, "137\n", "{}", beyond.stderr);
    assert_eq!(supervisor.run("echo still").await.stdout, "still\n");
    room.remove().await;
}

pub(super) async fn processes_are_bounded_and_the_supervisor_survives(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    if runtime.capabilities().process_limit != Enforcement::Enforced {
        return;
    }
    let mut room = Room::new(runtime, ground);
    room.spec.limits.processes = Some(32);
    let mut supervisor = room.up().await;
    // A shell that cannot fork ends; the one around it says so.
    let script = "
        (i=0
        while [ $i -lt 100 ]; do
            sleep 1000 >/dev/null 2>&1 &
            i=$((i+1))
            echo $i
        done) 2>/dev/null
        echo ended";
    let finished = supervisor.run(script).await;
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.last(), Some(&"ended"));
    assert!((10..32).contains(&lines.len()), "{} of them", lines.len());
    assert_eq!(supervisor.run("echo still").await.stdout, "still\n");
    room.remove().await;
}

pub(super) async fn more_processors_than_there_are_is_no_error(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    let mut room = Room::new(runtime, ground);
    room.spec.limits.cpus = Some(10_000.0);
    let mut supervisor = room.up().await;
    assert_eq!(supervisor.run("echo well").await.stdout, "well\n");
    room.remove().await;
}
