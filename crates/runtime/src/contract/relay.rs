//! The socket of the server in the container, over restarts of the server.

use oubliette_wire::ExitStatus;

use super::{Ground, Room, Server};
use crate::Runtime;

pub(super) async fn a_server_that_comes_back_finds_the_same_processes(
    runtime: &dyn Runtime,
    ground: &Ground,
) {
    let mut room = Room::new(runtime, ground);
    let mut supervisor = room.up().await;
    let script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; exit 3";
    let id = supervisor.start(script, 1).await;
    let boot = supervisor.hello.boot_id.clone();
    // Another socket in the same directory, as a server makes when it starts again.
    drop(supervisor);
    let relay = room.relay();
    room.server = Server::open(&relay);
    let mut supervisor = room.server.supervisor().await;
    assert_eq!(supervisor.hello.boot_id, boot);
    let [process] = supervisor.hello.processes.as_slice() else {
        panic!("{:?}", supervisor.hello.processes);
    };
    assert_eq!((&process.process_id, &process.exited), (&id, &None));
    std::fs::write(room.workspace("go"), "").unwrap();
    let exited = super::soon("the exit", supervisor.exit_of(&id)).await;
    assert_eq!(exited.ended, ExitStatus::Code(3));
    assert_eq!(supervisor.run("echo well").await.stdout, "well\n");
    room.remove().await;
}
