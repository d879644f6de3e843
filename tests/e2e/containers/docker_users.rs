//! The users of Docker's containers: agents and commands are not root, and the server's user can use
//! and remove every file.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use serde_json::json;
use support::{RootlessDocker, RunAs, Server, docker_options, server_with, wait_until};

const UID: u32 = 65_431;
const GID: u32 = 65_430;

/// A server of an ordinary user, who may use the engine.
async fn server_of_user() -> Server {
    let socket = std::fs::metadata("/var/run/docker.sock").unwrap();
    let mut options = docker_options("");
    options.run_as = Some(RunAs {
        uid: UID,
        gid: GID,
        group: socket.gid(),
    });
    let server = Server::start_with(options);
    let kind = json!({ "container_type": "base" });
    server.admin().call("image_rebuild", kind).await.ok();
    server
}

const PROBE: &str = "id -u; id -g; grep CapEff /proc/self/status; touch made ~/made; \
                     echo to stderr > /dev/stderr; echo to stdout > /dev/stdout";

#[test(needs(docker, root), limit = 300)]
async fn a_server_of_an_ordinary_user_owns_all_files() {
    let server = server_of_user().await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let ran = admin.exec(&id, PROBE).await;
    let expected = format!("{UID}\n{GID}\nCapEff:\t0000000000000000\nto stdout\n");
    assert_eq!(ran["stdout"], expected, "{ran}");
    assert_eq!(ran["stderr"], "to stderr\n", "{ran}");
    let project = server.home().join("projects").join(&id);
    for file in ["workspace/made", "home/made"] {
        let found = std::fs::metadata(project.join(file)).unwrap();
        assert_eq!((found.uid(), found.gid()), (UID, GID), "{file}");
    }
    // A terminal belongs to the user, too.
    let terminal = json!({
        "command": "echo hello > $(tty); exit 3", "exec_id": "terminal", "wait_seconds": 20,
        "terminal": { "rows": 24, "columns": 80 },
    });
    let reply = admin.try_exec(&id, terminal).await;
    assert!(
        reply.ok()["stdout"].as_str().unwrap().contains("hello"),
        "{}",
        reply.text
    );
    // An agent is the same user.
    let session = admin.spawn(&id, "/sh id -u > agent").await;
    admin.turn(&session, 1).await;
    let seen = std::fs::read_to_string(project.join("workspace/agent")).unwrap();
    assert_eq!(seen.trim(), UID.to_string());

    let gone = json!({ "project_id": id });
    admin.call("project_delete", gone).await.ok();
    server.assert_nothing_left().await;
}

#[test(needs(docker, root), limit = 300)]
async fn files_of_root_are_given_to_the_user_or_removed() {
    let server = server_of_user().await;
    let admin = server.admin();
    // As a version that ran commands as root left them.
    let make_rooted = |directory: &std::path::Path| {
        let inner = directory.join("rooted/inner");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("file"), "x").unwrap();
        for path in [directory.join("rooted"), inner] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
    };
    let id = admin.project("one").await;
    let workspace = server.workspace(&id);
    make_rooted(&workspace);
    let used = admin
        .exec(&id, "cat rooted/inner/file; rm -r rooted; ls")
        .await;
    assert_eq!(
        (&used["stdout"], &used["exit_code"]),
        (&json!("x"), &json!(0)),
        "{used}"
    );

    make_rooted(&workspace);
    let gone = json!({ "project_id": id });
    admin.call("project_delete", gone).await.ok();
    server.assert_nothing_left().await;

    // Deleted before, by a server that could not remove them.
    let mut server = server;
    server.kill();
    make_rooted(&server.home().join("projects/.deleted"));
    server.start_again();
    let trash = server.home().join("projects/.deleted/rooted");
    wait_until("the removal", async || !trash.exists()).await;
}

/// In the engine of an ordinary user, that user is root in containers, and only there.
#[test(needs(docker, root), limit = 300)]
async fn in_rootless_docker_the_user_owns_all_files() {
    let user = RunAs {
        uid: UID,
        gid: GID,
        group: GID,
    };
    let engine = RootlessDocker::start(user);
    let mut options = docker_options("");
    options.run_as = Some(user);
    options.env = vec![("DOCKER_HOST".to_owned(), engine.host())];
    let mut server = Server::start_with(options);
    let admin = server.admin();
    let kind = json!({ "container_type": "base" });
    admin.call("image_rebuild", kind).await.ok();
    let id = admin.project("one").await;
    let ran = admin.exec(&id, "id -u; id -g; touch made ~/made").await;
    assert_eq!(ran["stdout"], "0\n0\n", "{ran}");
    let session = admin.spawn(&id, "/sh id -u > agent; chmod 000 agent").await;
    assert_eq!(admin.turn(&session, 1).await["stop_reason"], "end_turn");
    let project = server.home().join("projects").join(&id);
    for file in ["workspace/made", "workspace/agent", "home/made"] {
        let found = std::fs::metadata(project.join(file)).unwrap();
        assert_eq!((found.uid(), found.gid()), (UID, GID), "{file}");
    }
    // A server that starts again finds the container.
    server.kill();
    server.start_again();
    let again = server.admin().exec(&id, "ls made").await;
    assert_eq!(again["stdout"], "made\n", "{again}");

    let gone = json!({ "project_id": id });
    server.admin().call("project_delete", gone).await.ok();
    server.assert_nothing_left().await;
}

#[test(needs(docker, root))]
async fn under_a_root_server_every_project_has_an_unprivileged_user_of_its_own() {
    let server = server_with("docker", "").await;
    let admin = server.admin();
    let mut users = Vec::new();
    for name in ["one", "two"] {
        let id = admin.project(name).await;
        let workspace = server.workspace(&id);
        std::fs::create_dir(workspace.join("made-by-server")).unwrap();
        let ran = admin.exec(&id, PROBE).await;
        let uid: u32 = ran["stdout"]
            .as_str()
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(uid >= 65_536, "{ran}");
        assert!(
            ran["stdout"]
                .as_str()
                .unwrap()
                .contains("CapEff:\t0000000000000000"),
            "{ran}"
        );
        for file in ["made", "made-by-server"] {
            assert_eq!(
                std::fs::metadata(workspace.join(file)).unwrap().uid(),
                uid,
                "{file}"
            );
        }
        // In a container made anew, and for files that the server's user put there meanwhile.
        let project = json!({ "project_id": id });
        admin.call("container_stop", project.clone()).await.ok();
        std::fs::write(workspace.join("new"), "").unwrap();
        chown(workspace.join("new"), Some(0), Some(0)).unwrap();
        let again = admin
            .exec(&id, "id -u; echo x > made && echo x > new && echo fine")
            .await;
        assert_eq!(again["stdout"], format!("{uid}\nfine\n"), "{again}");
        users.push(uid);
    }
    assert_ne!(users[0], users[1]);
}
