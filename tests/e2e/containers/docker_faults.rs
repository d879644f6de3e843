//! A container engine that is gone, slow, restarted, or without the image: calls that depend on it report
//! it, all others work, and when the engine is back nothing is lost.

use std::process::Command;
use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use serde_json::json;
use support::{
    DockerProxy, DockerState, Modern, Server, ServerOptions, binary, docker_options, eventually,
};

/// A server that reaches the engine only through this proxy.
fn server_behind(proxy: &DockerProxy) -> Server {
    let mut options = docker_options("");
    options.env = vec![("DOCKER_HOST".to_owned(), proxy.host())];
    Server::start_with(options)
}

async fn build(admin: &Modern) {
    let kind = json!({ "container_type": "base" });
    admin.call("image_rebuild", kind).await.ok();
}

#[test(needs(docker))]
async fn without_its_image_a_container_is_refused_with_what_to_configure() {
    let config = "runtime = \"docker\"\n[container_types.base]\nimage = \"no-such-image:7\"\n";
    let server = Server::start_with(ServerOptions {
        config: config.to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let id = admin.project("one").await;
    for tool in ["container_start", "container_exec"] {
        let call = json!({ "project_id": id, "command": "true" });
        let call = match tool {
            "container_exec" => call,
            _ => json!({ "project_id": id }),
        };
        let refused = admin.call(tool, call).await;
        for part in ["no-such-image:7", "[container_types.base]"] {
            assert!(refused.sentence().contains(part), "{}", refused.sentence());
        }
    }
    let project = json!({ "project_id": id });
    admin.call("project_delete", project).await.ok();
    server.assert_nothing_left().await;
}

#[test(needs(docker), multi_thread)]
async fn an_engine_that_starts_after_the_server_is_found() {
    let proxy = DockerProxy::new(DockerState::Closed);
    let server = server_behind(&proxy);
    let admin = server.admin();
    let id = admin.project("one").await;
    let start = json!({ "project_id": id });
    let refused = admin.call("container_start", start.clone()).await;
    assert!(
        refused.sentence().contains("is it running"),
        "{}",
        refused.sentence()
    );
    proxy.set(DockerState::Works);
    let found = eventually(Duration::from_secs(30), async || {
        let kind = json!({ "container_type": "base" });
        !admin.call("image_rebuild", kind).await.is_error()
    });
    assert!(found.await, "it is not looked for");
    assert_eq!(
        admin.call("container_start", start).await.ok()["started"],
        true
    );

    // `down` fails while the engine is gone, and succeeds later.
    let down = || {
        let mut command = Command::new(binary());
        command
            .args(["down", "--remove", "--yes", "--data-dir"])
            .arg(server.home());
        command.env("DOCKER_HOST", proxy.host()).output()
    };
    proxy.set(DockerState::Closed);
    let failed = tokio::task::block_in_place(down).unwrap();
    let errors = String::from_utf8_lossy(&failed.stderr);
    assert!(
        !failed.status.success() && errors.contains("is it running"),
        "{errors}"
    );
    assert_eq!(server.leftovers().containers.len(), 1);
    proxy.set(DockerState::Works);
    let done = tokio::task::block_in_place(down).unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    server.assert_only_left(&[id]).await;
}

#[test(needs(docker))]
async fn running_containers_work_while_the_engine_is_gone_or_silent() {
    let proxy = DockerProxy::new(DockerState::Works);
    let mut server = server_behind(&proxy);
    let admin = server.admin();
    build(&admin).await;
    let (one, two) = (admin.project("one").await, admin.project("two").await);
    admin.exec(&one, "true").await;
    let running = tokio::spawn({
        let (admin, one) = (admin.clone(), one.clone());
        let command = "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo done";
        async move { admin.exec(&one, command).await }
    });
    let begun = server.workspace(&one).join("begun");
    assert!(eventually(Duration::from_secs(20), async || begun.exists()).await);

    proxy.set(DockerState::Closed);
    assert_eq!(admin.exec(&one, "echo fine").await["stdout"], "fine\n");
    for (tool, id) in [("container_start", &two), ("container_stop", &one)] {
        let refused = admin.call(tool, json!({ "project_id": id })).await;
        let sentence = refused.sentence();
        assert!(sentence.contains("is it running"), "{tool}: {sentence}");
    }

    proxy.set(DockerState::Hangs);
    let waiting = tokio::spawn({
        let (admin, two) = (admin.clone(), two.clone());
        async move { admin.exec(&two, "echo late").await }
    });
    let begun = Instant::now();
    assert_eq!(
        admin.exec(&one, "touch go; echo fine").await["stdout"],
        "fine\n"
    );
    assert_eq!(running.await.unwrap()["stdout"], "done\n");
    // Less than the time after which a request to a silent engine is given up.
    assert!(
        begun.elapsed() < scaled(Duration::from_secs(25)),
        "it was held up"
    );
    assert!(!waiting.is_finished());
    proxy.set(DockerState::Works);
    assert_eq!(waiting.await.unwrap()["stdout"], "late\n");

    // A project that is deleted meanwhile is gone at once, and its container when it can be.
    proxy.set(DockerState::Closed);
    let deleted = admin
        .call("project_delete", json!({ "project_id": two }))
        .await;
    assert!(
        deleted.sentence().contains("the server retries"),
        "{}",
        deleted.text
    );
    let shown = admin
        .call("project_get", json!({ "project_id": two }))
        .await;
    assert!(shown.sentence().contains("not found"));
    // A server that restarts meanwhile loses nothing.
    server.kill();
    server.start_again();
    let admin = server.admin();
    assert!(admin.call("project_list", json!({})).await.ok()["projects"][0].is_object());
    proxy.set(DockerState::Works);
    let back = eventually(Duration::from_secs(30), async || {
        let call = json!({ "project_id": one, "command": "echo back" });
        let ran = admin.call("container_exec", call).await;
        !ran.is_error() && ran.ok()["stdout"] == "back\n"
    });
    assert!(back.await);
    let removed = eventually(Duration::from_secs(60), async || {
        server.leftovers().containers.len() == 1
    });
    assert!(removed.await, "{}", server.leftovers());
    let project = json!({ "project_id": one });
    admin.call("project_delete", project).await.ok();
    server.assert_nothing_left().await;
}

#[test(needs(docker))]
async fn a_container_that_the_engine_ends_is_reported_and_started_again() {
    let server = support::server_with("docker", "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let running = tokio::spawn({
        let (admin, id) = (admin.clone(), id.clone());
        let call = json!({ "project_id": id, "command": "touch begun; sleep 600" });
        async move { admin.call("container_exec", call).await }
    });
    let begun = server.workspace(&id).join("begun");
    assert!(eventually(Duration::from_secs(20), async || begun.exists()).await);
    // As a restart of the engine does it.
    let killed = Instant::now();
    support::kill_containers(server.home());
    let reply = running.await.unwrap();
    assert!(reply.sentence().contains("ended"), "{}", reply.text);
    assert!(killed.elapsed() < scaled(Duration::from_secs(60)));
    assert_eq!(admin.exec(&id, "echo again").await["stdout"], "again\n");
}
