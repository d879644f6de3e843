//! From creation to removal.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::net::unix::pipe;

use super::container::GRACE;
use super::{Fixture, RelayServer, Supervisor, TestContainer};
use crate::{RunState, Runtime};

/// Two processes that ignore signals: one in its own session, one below the shell. Each holds a pipe
/// open, by which the host sees whether it still exists.
const STUBBORN: &str = "
    trap '' TERM HUP INT
    mkfifo daemon child
    setsid sh -c 'exec 9<>daemon; echo ready; while :; do sleep 1; done' &
    sh -c 'exec 9<>child; echo ready; while :; do sleep 1; done' &
    wait";

async fn start_stubborn(supervisor: &mut Supervisor, container: &TestContainer<'_>) {
    supervisor.start(STUBBORN, 2).await;
    // Pipes do not work across two kernels.
    if container.runtime.capabilities().host_sockets {
        assert!(
            is_held(&container.workspace_path("daemon"))
                && is_held(&container.workspace_path("child"))
        );
    }
}

fn assert_stubborn_ended(container: &TestContainer<'_>) {
    assert!(
        !is_held(&container.workspace_path("daemon")),
        "the daemon still runs"
    );
    assert!(
        !is_held(&container.workspace_path("child")),
        "the child still runs"
    );
}

/// Whether a process has the pipe open for writing.
fn is_held(path: &Path) -> bool {
    // Opened without waiting for a writer, and read without the event loop's cached readiness.
    let pipe = pipe::OpenOptions::new().open_receiver(path).unwrap();
    let mut pipe = File::from(pipe.into_nonblocking_fd().unwrap());
    match pipe.read(&mut [0]) {
        Ok(0) => false,
        Err(error) if error.kind() == ErrorKind::WouldBlock => true,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn a_started_container_authenticates_and_runs_commands(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let mut container = TestContainer::new(runtime, fixture);
    let mut supervisor = container.create_and_start().await;
    assert_eq!(
        supervisor.handshake.container_id,
        container.spec.id.as_str()
    );
    assert_eq!(supervisor.handshake.container_key, "key of the suite");
    assert_eq!(container.state().await, Some(RunState::Running));
    let finished = supervisor.run("echo out; echo err >&2; exit 7").await;
    assert_eq!((&*finished.stdout, &*finished.stderr), ("out\n", "err\n"));
    assert_eq!(finished.ended, oubliette_wire::ExitStatus::Code(7));
    let hostname = supervisor.run("hostname").await;
    assert_eq!(hostname.stdout, "a-host\n");
    container.remove().await;
}

pub(super) async fn starting_twice_starts_once(runtime: &dyn Runtime, fixture: &Fixture) {
    let mut container = TestContainer::new(runtime, fixture);
    let mut supervisor = container.create_and_start().await;
    runtime.start(&container.spec.id).await.unwrap();
    assert_eq!(supervisor.run("echo still").await.stdout, "still\n");
    assert!(!container.server.has_connection(), "it was started twice");
    container.remove().await;
}

pub(super) async fn stopping_ends_daemons_and_processes_that_ignore_the_signal(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let mut container = TestContainer::new(runtime, fixture);
    let mut supervisor = container.create_and_start().await;
    start_stubborn(&mut supervisor, &container).await;
    let started = Instant::now();
    container.stop().await;
    let took = started.elapsed();
    assert!(took < GRACE + Duration::from_secs(20), "it took {took:?}");
    assert_stubborn_ended(&container);
    supervisor.wait_until_disconnected().await;
    assert_eq!(container.state().await, Some(RunState::Stopped));
    container.remove().await;
}

pub(super) async fn stopping_twice_or_before_the_start_is_not_an_error(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let mut container = TestContainer::new(runtime, fixture);
    runtime.create(&container.spec).await.unwrap();
    container.stop().await;
    assert_ne!(container.state().await, Some(RunState::Running));
    container.start().await;
    container.stop().await;
    container.stop().await;
    assert_eq!(container.state().await, Some(RunState::Stopped));
    container.remove().await;
}

pub(super) async fn a_restart_keeps_the_workspace_and_ends_every_process(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let mut container = TestContainer::new(runtime, fixture);
    let mut supervisor = container.create_and_start().await;
    supervisor.run("echo kept > file").await;
    supervisor.start("echo ready; exec sleep 1000", 1).await;
    let boot = supervisor.handshake.boot_id.clone();
    container.stop().await;
    let mut supervisor = container.start().await;
    assert_ne!(supervisor.handshake.boot_id, boot);
    assert_eq!(supervisor.handshake.processes, []);
    assert_eq!(supervisor.run("cat file").await.stdout, "kept\n");
    assert_eq!(container.state().await, Some(RunState::Running));
    container.remove().await;
}

pub(super) async fn removing_ends_every_process_and_keeps_the_hosts_files(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let mut container = TestContainer::new(runtime, fixture);
    let mut supervisor = container.create_and_start().await;
    supervisor.run("echo mine > file").await;
    start_stubborn(&mut supervisor, &container).await;
    container.remove().await;
    assert_stubborn_ended(&container);
    supervisor.wait_until_disconnected().await;
    let file = std::fs::read_to_string(container.workspace_path("file"));
    assert_eq!(file.unwrap(), "mine\n");
    // Removing twice is not an error.
    container.remove().await;
}

pub(super) async fn an_id_can_be_used_again(runtime: &dyn Runtime, fixture: &Fixture) {
    let mut container = TestContainer::new(runtime, fixture);
    let mut supervisor = container.create_and_start().await;
    supervisor.run("echo before > /tmp/before").await;
    container.remove().await;
    let mut supervisor = container.create_and_start().await;
    let finished = supervisor.run("cat /tmp/before || echo fresh").await;
    assert_eq!(finished.stdout, "fresh\n");
    container.remove().await;
}

pub(super) async fn creating_again_replaces_a_stopped_container(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let mut container = TestContainer::new(runtime, fixture);
    runtime.create(&container.spec).await.unwrap();
    container.spec.project = "another-project".to_owned();
    container
        .env()
        .insert("OUBLIETTE_CONTAINER_KEY".to_owned(), "new".to_owned());
    let mut supervisor = container.create_and_start().await;
    assert_eq!(supervisor.handshake.container_key, "new");
    assert_eq!(container.status().await.unwrap().project, "another-project");
    // A running container stays as it is.
    runtime.create(&container.spec).await.unwrap();
    assert_eq!(supervisor.run("echo still").await.stdout, "still\n");
    container.stop().await;
    runtime.create(&container.spec).await.unwrap();
    assert_eq!(container.state().await, Some(RunState::Created));
    container.remove().await;
}

pub(super) async fn starts_and_stops_may_race(runtime: &dyn Runtime, fixture: &Fixture) {
    let mut container = TestContainer::new(runtime, fixture);
    let id = container.spec.id.clone();
    runtime.create(&container.spec).await.unwrap();
    for _ in 0..3 {
        let raced = tokio::join!(
            runtime.start(&id),
            runtime.stop(&id, Duration::ZERO),
            runtime.start(&id),
            runtime.stop(&id, GRACE),
        );
        for outcome in [raced.0, raced.1, raced.2, raced.3] {
            outcome.unwrap();
        }
    }
    container.stop().await;
    assert_ne!(container.state().await, Some(RunState::Running));
    // Supervisors that connected during the race are ignored.
    container.server = RelayServer::open(&container.relay_dir());
    let mut supervisor = container.start().await;
    assert_eq!(supervisor.run("echo well").await.stdout, "well\n");
    container.remove().await;
}

pub(super) async fn logs_contain_the_output_of_pid_1(runtime: &dyn Runtime, fixture: &Fixture) {
    let mut container = TestContainer::new(runtime, fixture);
    container.env().remove("OUBLIETTE_CONTAINER_KEY");
    runtime.create(&container.spec).await.unwrap();
    // The supervisor prints what is missing and exits; a driver may or may not report that.
    let _ = runtime.start(&container.spec.id).await;
    container.wait_until_ended().await;
    assert_eq!(container.state().await, Some(RunState::Stopped));
    let logs = runtime.logs(&container.spec.id, 10).await.unwrap();
    assert!(logs.contains("OUBLIETTE_CONTAINER_KEY"), "{logs:?}");
    let none = runtime.logs(&container.spec.id, 0).await.unwrap();
    assert_eq!(none, "");
    container.remove().await;
}
