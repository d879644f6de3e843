//! The way from an agent without a key to the key of the server, tried from end to end.

use std::time::Duration;

use serde_json::json;
use support::{eventually, run_cli, server_with, stderr};

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// What an agent makes: a draft of a workspace, as a server names it, that is deeper than a stack, and a loop
/// that takes the server's port as soon as it is free.
fn attack(port: u16) -> String {
    format!(
        "import os, socket, itertools\n\
         os.chdir('/workspaces')\n\
         os.mkdir('.new-01234567-89ab-4cde-8f01-23456789abcd')\n\
         os.chdir('.new-01234567-89ab-4cde-8f01-23456789abcd')\n\
         for _ in range(30000):\n\
         \x20 os.mkdir('d'); os.chdir('d')\n\
         open('/workspace/deep', 'w').write('made')\n\
         for i in itertools.count():\n\
         \x20 s = socket.socket()\n\
         \x20 s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
         \x20 try:\n\
         \x20   s.bind(('127.0.0.1', {port})); s.listen()\n\
         \x20   open('/workspace/bound', 'w').write('x')\n\
         \x20   c, _ = s.accept(); open('/workspace/received', 'wb').write(c.recv(65536))\n\
         \x20 except OSError: pass\n\
         \x20 finally: s.close()\n\
         \x20 open('/workspace/rounds.new', 'w').write(str(i)); os.rename('/workspace/rounds.new', '/workspace/rounds')\n"
    )
}

#[test(each(sandbox), limit = 300)]
async fn an_agent_without_a_key_neither_ends_the_server_nor_takes_its_place(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    // The network in which a container could reach the server's port at all.
    let made = json!({ "name": "one", "network": "host" });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let workspace = server.workspace(&project);
    let port = server.base().rsplit(':').next().unwrap().parse().unwrap();
    std::fs::write(workspace.join("attack.py"), attack(port)).unwrap();
    let start = "/sh mkdir -p /workspaces; nohup setsid python3 attack.py >attack.log 2>&1 & \
                 until [ -e rounds ]; do sleep 0.05; done";
    let session = admin.spawn(&project, start).await;
    admin.turn(&session, 1).await;
    assert!(workspace.join("deep").exists(), "the draft was not made");

    // A new workspace sweeps the drafts of dead servers.
    let child = json!({ "message": "/say hello", "create_workspace": true });
    admin
        .message(&session, &format!("/tool session_message {child}"))
        .await;
    admin.turn(&session, 2).await;
    let drafts = workspace.with_file_name("workspaces");
    let swept = eventually(WAIT_TIMEOUT, async || {
        let mut entries = std::fs::read_dir(&drafts).unwrap().flatten();
        !entries.any(|entry| entry.file_name().to_string_lossy().starts_with(".new-"))
    });
    assert!(swept.await, "the draft is left: {}", server.log());
    assert_eq!(server.has_exited(), None, "{}", server.log());

    // The server dies all the same, and a person uses the command line.
    server.kill();
    let rounds = || std::fs::read_to_string(workspace.join("rounds")).unwrap_or_default();
    let before = rounds();
    let tried = eventually(WAIT_TIMEOUT, async || rounds() != before);
    assert!(tried.await, "the container no longer tries the port");
    let listed = run_cli(server.home(), &["project", "list"]).await;
    assert!(!listed.status.success(), "{}", stderr(&listed));
    assert!(
        !workspace.join("bound").exists(),
        "a container has the server's port"
    );
    assert!(
        !workspace.join("received").exists(),
        "a container was sent something"
    );
    server.start_again();
    assert_eq!(server.admin().session(&session).await["status"], "idle");
}
