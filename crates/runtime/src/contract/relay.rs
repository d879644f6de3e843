//! The relay socket in the container across restarts of the server.

use oubliette_wire::ExitStatus;

use super::{Fixture, RelayServer, TestContainer};
use crate::Runtime;

pub(super) async fn a_restarted_server_finds_the_same_processes(
    runtime: &dyn Runtime,
    fixture: &Fixture,
) {
    let mut container = TestContainer::new(runtime, fixture);
    let mut supervisor = container.create_and_start().await;
    let script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; exit 3";
    let id = supervisor.start(script, 1).await;
    let boot = supervisor.handshake.boot_id.clone();
    // A new socket in the same directory, as a restarted server makes.
    drop(supervisor);
    let relay = container.relay_dir();
    container.server = RelayServer::open(&relay);
    let mut supervisor = container.server.supervisor().await;
    assert_eq!(supervisor.handshake.boot_id, boot);
    let [process] = supervisor.handshake.processes.as_slice() else {
        panic!("{:?}", supervisor.handshake.processes);
    };
    assert_eq!((&process.process_id, &process.exited), (&id, &None));
    std::fs::write(container.workspace_path("go"), "").unwrap();
    let exited =
        super::within_timeout("the exit of the script", supervisor.wait_for_exit(&id)).await;
    assert_eq!(exited.ended, ExitStatus::Code(3));
    assert_eq!(supervisor.run("echo well").await.stdout, "well\n");
    container.remove().await;
}
