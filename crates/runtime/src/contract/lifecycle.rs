//! From creation to removal.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::net::unix::pipe;

use super::room::GRACE;
use super::{Ground, Room, Server, Supervisor};
use crate::{ContainerId, Runtime, RuntimeError, State};

/// Two processes that will not leave by themselves: one in a session of its own, one below the
/// shell. Each holds a pipe open, by which the host sees whether it is still there.
const STUBBORN: &str = "
    trap '' TERM HUP INT
    mkfifo daemon child
    setsid sh -c 'exec 9<>daemon; echo ready; while :; do sleep 1; done' &
    sh -c 'exec 9<>child; echo ready; while :; do sleep 1; done' &
    wait";

async fn start_stubborn(supervisor: &mut Supervisor, room: &Room<'_>) {
    supervisor.start(STUBBORN, 2).await;
    // Another kernel has pipes of its own.
    if room.runtime.capabilities().host_sockets {
        assert!(is_held(&room.workspace("daemon")) && is_held(&room.workspace("child")));
    }
}

fn stubborn_are_gone(room: &Room<'_>) {
    assert!(!is_held(&room.workspace("daemon")), "the daemon lives");
    assert!(!is_held(&room.workspace("child")), "the child lives");
}

/// A pipe that nobody can write to any more is at its end.
fn is_held(path: &Path) -> bool {
    // Opened without waiting for a writer; then asked itself, not what an event loop knows of it.
    let pipe = pipe::OpenOptions::new().open_receiver(path).unwrap();
    let mut pipe = File::from(pipe.into_nonblocking_fd().unwrap());
    match pipe.read(&mut [0]) {
        Ok(0) => false,
        Err(error) if error.kind() == ErrorKind::WouldBlock => true,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn what_is_created_does_not_run_and_is_listed_with_its_project(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    let room = Room::new(runtime, ground);
    runtime.create(&room.spec).await.unwrap();
    let status = room.status().await.unwrap();
    assert_eq!(status.state, State::Created);
    assert_eq!((&status.id, &*status.project), (&room.spec.id, "a-project"));
    assert_eq!(runtime.list().await.unwrap(), [status]);
    assert!(!room.server.has_news(), "it runs");
    room.remove().await;
}

pub(super) async fn what_is_started_says_who_it_is_and_runs_commands(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    let mut room = Room::new(runtime, ground);
    let mut supervisor = room.up().await;
    assert_eq!(supervisor.hello.container_id, room.spec.id.as_str());
    assert_eq!(supervisor.hello.container_key, "key of the suite");
    assert_eq!(room.state().await, Some(State::Running));
    let finished = supervisor.run("echo out; echo err >&2; exit 7").await;
    assert_eq!((&*finished.stdout, &*finished.stderr), ("out\n", "err\n"));
    assert_eq!(finished.ended, oubliette_wire::ExitStatus::Code(7));
    let hostname = supervisor.run("hostname").await;
    assert_eq!(hostname.stdout, "a-host\n");
    room.remove().await;
}

pub(super) async fn starting_twice_starts_once(runtime: &dyn Runtime, ground: &Ground) {
    let mut room = Room::new(runtime, ground);
    let mut supervisor = room.up().await;
    runtime.start(&room.spec.id).await.unwrap();
    assert_eq!(supervisor.run("echo still").await.stdout, "still\n");
    assert!(!room.server.has_news(), "there are two");
    room.remove().await;
}

pub(super) async fn stopping_ends_daemons_and_what_ignores_the_signal(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    let mut room = Room::new(runtime, ground);
    let mut supervisor = room.up().await;
    start_stubborn(&mut supervisor, &room).await;
    let begun = Instant::now();
    room.stop().await;
    let took = begun.elapsed();
    assert!(took < GRACE + Duration::from_secs(20), "it took {took:?}");
    stubborn_are_gone(&room);
    supervisor.gone().await;
    assert_eq!(room.state().await, Some(State::Stopped));
    room.remove().await;
}

pub(super) async fn stopping_twice_and_before_the_start_is_fine(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    let mut room = Room::new(runtime, ground);
    runtime.create(&room.spec).await.unwrap();
    room.stop().await;
    assert_ne!(room.state().await, Some(State::Running));
    room.start().await;
    room.stop().await;
    room.stop().await;
    assert_eq!(room.state().await, Some(State::Stopped));
    room.remove().await;
}

pub(super) async fn a_restart_keeps_the_workspace_and_no_process(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    let mut room = Room::new(runtime, ground);
    let mut supervisor = room.up().await;
    supervisor.run("echo kept > file").await;
    supervisor.start("echo ready; exec sleep 1000", 1).await;
    let boot = supervisor.hello.boot_id.clone();
    room.stop().await;
    let mut supervisor = room.start().await;
    assert_ne!(supervisor.hello.boot_id, boot);
    assert_eq!(supervisor.hello.processes, []);
    assert_eq!(supervisor.run("cat file").await.stdout, "kept\n");
    assert_eq!(room.state().await, Some(State::Running));
    room.remove().await;
}

pub(super) async fn what_is_not_there_is_none_and_can_be_stopped_and_removed(
    runtime: &dyn Runtime,
    _: &Ground,
) {
    let id = ContainerId::new("no-such-container").unwrap();
    assert_eq!(runtime.inspect(&id).await.unwrap(), None);
    runtime.stop(&id, GRACE).await.unwrap();
    runtime.remove(&id).await.unwrap();
    for error in [
        runtime.start(&id).await.unwrap_err(),
        runtime.logs(&id, 10).await.unwrap_err(),
    ] {
        assert!(matches!(error, RuntimeError::NoContainer(_)), "{error:?}");
    }
}

pub(super) async fn removing_ends_what_runs_and_leaves_the_hosts_files(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    let mut room = Room::new(runtime, ground);
    let mut supervisor = room.up().await;
    supervisor.run("echo mine > file").await;
    start_stubborn(&mut supervisor, &room).await;
    room.remove().await;
    stubborn_are_gone(&room);
    supervisor.gone().await;
    let file = std::fs::read_to_string(room.workspace("file"));
    assert_eq!(file.unwrap(), "mine\n");
    // Twice is no error either.
    room.remove().await;
}

pub(super) async fn an_id_can_be_used_again(runtime: &dyn Runtime, ground: &Ground) {
    let mut room = Room::new(runtime, ground);
    let mut supervisor = room.up().await;
    supervisor.run("echo before > /tmp/before").await;
    room.remove().await;
    let mut supervisor = room.up().await;
    let finished = supervisor.run("cat /tmp/before || echo fresh").await;
    assert_eq!(finished.stdout, "fresh\n");
    room.remove().await;
}

pub(super) async fn creating_again_replaces_what_does_not_run(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    let mut room = Room::new(runtime, ground);
    runtime.create(&room.spec).await.unwrap();
    room.spec.project = "another-project".to_owned();
    room.env()
        .insert("OUBLIETTE_CONTAINER_KEY".to_owned(), "new".to_owned());
    let mut supervisor = room.up().await;
    assert_eq!(supervisor.hello.container_key, "new");
    assert_eq!(room.status().await.unwrap().project, "another-project");
    // What runs stays.
    runtime.create(&room.spec).await.unwrap();
    assert_eq!(supervisor.run("echo still").await.stdout, "still\n");
    room.stop().await;
    runtime.create(&room.spec).await.unwrap();
    assert_eq!(room.state().await, Some(State::Created));
    room.remove().await;
}

pub(super) async fn starts_and_stops_may_race(runtime: &dyn Runtime, ground: &Ground) {
    let mut room = Room::new(runtime, ground);
    let id = room.spec.id.clone();
    runtime.create(&room.spec).await.unwrap();
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
    room.stop().await;
    assert_ne!(room.state().await, Some(State::Running));
    // Those who said hello in the race are not asked any more.
    room.server = Server::open(&room.relay());
    let mut supervisor = room.start().await;
    assert_eq!(supervisor.run("echo well").await.stdout, "well\n");
    room.remove().await;
}

pub(super) async fn logs_hold_what_pid_1_wrote(runtime: &dyn Runtime, ground: &Ground) {
    let mut room = Room::new(runtime, ground);
    room.env().remove("OUBLIETTE_CONTAINER_KEY");
    runtime.create(&room.spec).await.unwrap();
    // The supervisor says what it misses and leaves; a driver may or may not notice.
    let _ = runtime.start(&room.spec.id).await;
    room.ended().await;
    assert_eq!(room.state().await, Some(State::Stopped));
    let logs = runtime.logs(&room.spec.id, 10).await.unwrap();
    assert!(logs.contains("OUBLIETTE_CONTAINER_KEY"), "{logs:?}");
    let none = runtime.logs(&room.spec.id, 0).await.unwrap();
    assert_eq!(none, "");
    room.remove().await;
}
