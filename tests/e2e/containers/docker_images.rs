//! Images of Docker: built when they are needed, rebuilt on request, and errors that say what to configure.

use serde_json::{Value, json};
use support::{
    Modern, Reply, Server, ServerOptions, docker_options, eventually, server_with, userland,
    wait_until,
};

fn server(config: &str) -> Server {
    Server::start_with(ServerOptions {
        config: format!("runtime = \"docker\"\n{config}"),
        ..ServerOptions::default()
    })
}

/// A call that asks for progress.
async fn call_with_progress(admin: &Modern, tool: &str, arguments: Value) -> Reply {
    let call = json!({
        "name": tool, "arguments": arguments, "_meta": { "progressToken": "p" },
    });
    admin.send("tools/call", call).await
}

#[test(needs(docker))]
async fn an_image_is_built_at_its_first_use_with_progress() {
    let server = Server::start_with(docker_options(""));
    let admin = server.admin();
    let id = admin.project("one").await;
    let project = json!({ "project_id": id });
    let started = call_with_progress(&admin, "container_start", project).await;
    assert_eq!(started.ok()["started"], true);
    assert!(
        started.text.contains("notifications/progress"),
        "{}",
        started.text
    );
    // Of many lines at once only some are sent, and a build from the engine's cache has them at once.
    let is_of_build = |words: &&str| started.text.contains(*words);
    let shown = ["\"Step ", "Successfully tagged"].iter().any(is_of_build);
    assert!(shown, "{}", started.text);
    assert_eq!(admin.exec(&id, "echo fine").await["stdout"], "fine\n");
    // Several first uses at once build one image.
    let server = Server::start_with(docker_options(""));
    let admin = server.admin();
    let (one, two) = (admin.project("one").await, admin.project("two").await);
    let (one, two) = tokio::join!(admin.exec(&one, "echo 1"), admin.exec(&two, "echo 2"));
    assert_eq!(
        (&one["stdout"], &two["stdout"]),
        (&json!("1\n"), &json!("2\n"))
    );
}

#[test(needs(docker), limit = 300)]
async fn the_types_base_and_dev_are_built_from_dockerfiles_in_the_binary() {
    let base = userland();
    let args = format!("build_args = {{ BASE = \"{base}\", NODE = \"{base}\" }}\n");
    let config = format!("[container_types.base]\n{args}[container_types.dev]\n{args}");
    let server = server(&config);
    let admin = server.admin();
    for (kind, package) in [("base", "ripgrep"), ("dev", "build-essential")] {
        let made = json!({ "name": kind, "container_type": kind });
        let made = admin.call("project_create", made).await;
        let id = made.ok()["project_id"].as_str().unwrap().to_owned();
        let script = format!("grep -c {package} /apt-get.log; git config --system safe.directory");
        let ran = admin.exec(&id, script).await;
        assert_eq!(ran["stdout"], "1\n*\n", "{kind}: {ran}");
        if kind == "dev" {
            assert_eq!(admin.exec(&id, "node && npm").await["exit_code"], 0);
        }
    }
}

#[test(needs(docker))]
async fn errors_about_images_say_what_to_configure() {
    // A registry that does not answer, as on a machine without a network.
    let config = "[container_types.base]\nbuild_args = { BASE = \"localhost:1/no-such:1\" }\n\
                  [container_types.mine]\n";
    let server = server(config);
    let admin = server.admin();
    for (kind, parts) in [
        ("base", ["[container_types.base]", "BASE = "]),
        ("mine", ["[container_types.mine]", "dockerfile = "]),
    ] {
        let made = json!({ "name": kind, "container_type": kind });
        let made = admin.call("project_create", made).await;
        let start = json!({ "project_id": made.ok()["project_id"] });
        let refused = admin.call("container_start", start).await;
        for part in parts {
            assert!(refused.sentence().contains(part), "{}", refused.sentence());
        }
    }
}

#[test(needs(docker))]
async fn a_rebuild_reports_its_log_waits_for_commands_and_replaces_containers() {
    let server = server_with("docker", "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let project = json!({ "project_id": id });
    admin
        .exec(&id, "echo x > /tmp/installed; echo y > kept")
        .await;
    let command = |file: &str| format!("touch {file}; sleep 600");
    let running = tokio::spawn({
        let (admin, id, command) = (admin.clone(), id.clone(), command("begun"));
        async move { admin.exec(&id, command).await }
    });
    let workspace = server.workspace(&id);
    wait_until("the command", async || workspace.join("begun").exists()).await;
    for call in [project.clone(), json!({ "container_type": "base" })] {
        let busy = admin.call("image_rebuild", call).await;
        let sentence = busy.sentence();
        assert!(
            sentence.contains("in use") && sentence.contains("force"),
            "{sentence}"
        );
    }
    running.abort();
    // Its caller has left, so the command is ended, and the container is free.
    let mut rebuilt = None;
    let is_free = eventually(std::time::Duration::from_secs(20), async || {
        let reply = call_with_progress(&admin, "image_rebuild", project.clone()).await;
        let is_free = !reply.is_error();
        rebuilt = Some(reply);
        is_free
    });
    assert!(is_free.await, "the command still runs");
    let rebuilt = rebuilt.unwrap();
    let output = rebuilt.ok();
    assert_eq!(output["container_type"], "base");
    assert_eq!(output["containers_removed"], 1);
    assert!(
        output["image"].as_str().unwrap().contains("-base"),
        "{output}"
    );
    let log = output["log"].as_str().unwrap();
    assert!(
        log.contains("Step 1/") && log.contains("Successfully"),
        "{log}"
    );
    assert!(
        rebuilt.text.contains("notifications/progress"),
        "{}",
        rebuilt.text
    );
    let seen = "cat kept; test -e /tmp/installed || echo fresh";
    assert_eq!(admin.exec(&id, seen).await["stdout"], "y\nfresh\n");

    // With `force` the command is ended.
    let running = tokio::spawn({
        let (admin, id, command) = (admin.clone(), id.clone(), command("again"));
        async move { admin.try_exec(&id, json!({ "command": command })).await }
    });
    wait_until("the command", async || workspace.join("again").exists()).await;
    let forced = json!({ "container_type": "base", "force": true });
    let forced = admin.call("image_rebuild", forced).await;
    assert_eq!(forced.ok()["containers_removed"], 1);
    let ended = running.await.unwrap();
    assert!(
        ended.is_error() || ended.ok()["exit_code"] != 0,
        "{}",
        ended.text
    );
    assert_eq!(admin.exec(&id, "cat kept").await["stdout"], "y\n");
}

#[test(needs(docker))]
async fn a_failed_rebuild_shows_the_builders_error_and_keeps_containers() {
    let context = tempfile::tempdir().unwrap();
    let dockerfile = context.path().join("Dockerfile");
    let base = userland();
    std::fs::write(&dockerfile, format!("FROM {base}\n")).unwrap();
    let path = dockerfile.display();
    let server = server(&format!(
        "[container_types.base]\ndockerfile = \"{path}\"\n"
    ));
    let admin = server.admin();
    let id = admin.project("one").await;
    admin.exec(&id, "echo x > /tmp/installed").await;
    std::fs::write(
        &dockerfile,
        format!("FROM {base}\nRUN echo oh no; exit 7\n"),
    )
    .unwrap();
    let failed = admin
        .call("image_rebuild", json!({ "project_id": id }))
        .await;
    assert!(failed.sentence().contains("7"), "{}", failed.sentence());
    assert_eq!(admin.exec(&id, "cat /tmp/installed").await["stdout"], "x\n");
}
