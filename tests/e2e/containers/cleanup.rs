//! Removed containers leave nothing on the machine, however they ended.

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::{Modern, Server, cli, images, runtime_name, server_with};

/// A project whose container runs, with something in it that outlives the command which began it.
async fn busy(admin: &Modern, name: &str) -> String {
    let id = admin.project(name).await;
    let command = "(setsid sleep 1000 >/dev/null 2>&1 &) ; echo x > /tmp/f; echo $PPID";
    let call = json!({ "project_id": id, "command": command });
    let ran = admin.call("container_exec", call).await;
    assert_eq!(ran.ok()["exit_code"], 0, "{}", ran.text);
    id
}

async fn delete(admin: &Modern, id: &str) {
    let call = json!({ "project_id": id });
    admin.call("project_delete", call).await.ok();
}

/// Asserts that `leftovers` finds running containers.
fn shows_containers(server: &Server, runtime: &str, count: usize) {
    let leftovers = server.leftovers();
    // A supervisor and its daemon each.
    assert!(leftovers.processes.len() >= 2 * count, "{leftovers}");
    match runtime_name(runtime) {
        "docker" => assert_eq!(leftovers.containers.len(), count, "{leftovers}"),
        _ => assert!(leftovers.groups.len() >= count, "{leftovers}"),
    }
    assert!(leftovers.files.len() >= count, "{leftovers}");
    assert_eq!(leftovers.projects.len(), count, "{leftovers}");
}

#[test(runtimes)]
async fn projects_that_are_deleted_leave_nothing_on_the_machine(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let ids = [busy(&admin, "one").await, busy(&admin, "two").await];
    let three = busy(&admin, "three").await;
    shows_containers(&server, runtime, 3);
    let stop = json!({ "project_id": three });
    admin.call("container_stop", stop).await.ok();
    delete(&admin, &three).await;
    server.kill();
    shows_containers(&server, runtime, 2);
    server.start_again();
    let call = json!({ "project_id": ids[0], "command": "cat /tmp/f" });
    let same = server.admin().call("container_exec", call).await;
    assert_eq!(same.ok()["stdout"], "x\n", "the container was not kept");
    for id in &ids {
        delete(&server.admin(), id).await;
    }
    server.assert_nothing_left().await;
}

#[test(runtimes)]
async fn taking_a_data_directory_down_leaves_only_files_of_projects(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    for round in ["running", "killed"] {
        let admin = server.admin();
        let ids = vec![
            busy(&admin, &format!("{round} 1")).await,
            busy(&admin, &format!("{round} 2")).await,
        ];
        if round == "killed" {
            server.kill();
        }
        let down = cli(server.home(), ["down", "--remove", "--yes"]);
        let errors = String::from_utf8_lossy(&down.stderr);
        assert!(down.status.success(), "{errors}");
        server.assert_only_left(&ids).await;
        assert_eq!(images(server.home()), Vec::<Value>::new());
        server.kill();
        server.start_again();
        if runtime_name(runtime) == "docker" {
            let again = json!({ "container_type": "base" });
            server.admin().call("image_rebuild", again).await.ok();
        }
        for id in &ids {
            delete(&server.admin(), id).await;
        }
        server.assert_nothing_left().await;
    }
}

#[test(needs(sandbox), limit = 240)]
async fn a_hundred_containers_at_once_start_run_commands_and_are_removed() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin().kept_alive();
    let names: Vec<String> = (0..100).map(|n| format!("p{n}")).collect();
    let ids = join_all(names.iter().map(|name| admin.project(name))).await;
    let exec = async |id: &String, command: String| {
        let call = json!({ "project_id": id, "command": command, "timeout_seconds": 60 });
        let ran = admin.call("container_exec", call).await;
        ran.ok()["stdout"].as_str().unwrap().to_owned()
    };
    let started = join_all(ids.iter().map(|id| exec(id, format!("echo {id} > mine")))).await;
    assert!(started.iter().all(String::is_empty));
    let read = join_all(
        ids.iter()
            .map(|id| exec(id, "cat mine; hostname".to_owned())),
    )
    .await;
    for (id, read) in ids.iter().zip(&read) {
        assert!(read.starts_with(&format!("{id}\n")), "{id} read {read}");
    }
    assert!(server.leftovers().groups.len() >= 100);
    join_all(ids.iter().map(|id| delete(&admin, id))).await;
    server.assert_nothing_left().await;
}
