//! Limits, where the runtime reports that it enforces them.

use oubliette_wire::ExitStatus;

use super::{Fixture, TestContainer};
use crate::{Enforcement, Runtime};

pub(super) async fn memory_is_limited_and_the_supervisor_survives(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    if runtime.capabilities().memory_limit != Enforcement::Enforced {
        return;
    }
    let mut container = TestContainer::new(runtime, fixture);
    container.spec.limits.memory_bytes = Some(64 << 20);
    let mut supervisor = container.create_and_start().await;
    let allowed = supervisor
        .run("dd if=/dev/zero of=/dev/null bs=16M count=1")
        .await;
    assert_eq!(allowed.ended, ExitStatus::Code(0), "{}", allowed.stderr);
    let exceeding = supervisor
        .run("dd if=/dev/zero of=/dev/null bs=256M count=1; echo $?")
        .await;
    assert_eq!(exceeding.stdout, "137\n", "{}", exceeding.stderr);
    assert_eq!(supervisor.run("echo still").await.stdout, "still\n");
    container.remove().await;
}

pub(super) async fn processes_are_limited_and_the_supervisor_survives(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    if runtime.capabilities().process_limit != Enforcement::Enforced {
        return;
    }
    let mut container = TestContainer::new(runtime, fixture);
    container.spec.limits.processes = Some(32);
    let mut supervisor = container.create_and_start().await;
    // The inner shell ends when it cannot fork; the outer one prints that.
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
    assert!((10..32).contains(&lines.len()), "{} processes", lines.len());
    assert_eq!(supervisor.run("echo still").await.stdout, "still\n");
    container.remove().await;
}

pub(super) async fn more_processors_than_the_host_has_is_not_an_error(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let mut container = TestContainer::new(runtime, fixture);
    container.spec.limits.cpus = Some(10_000.0);
    let mut supervisor = container.create_and_start().await;
    assert_eq!(supervisor.run("echo well").await.stdout, "well\n");
    container.remove().await;
}
