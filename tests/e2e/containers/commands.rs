//! Commands in real containers, with every runtime that must be there.

use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{Server, runtime_name, server_with, wait_until};

#[test(runtimes)]
async fn a_command_runs_with_its_input_environment_and_workspace(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    // The tiny image that Docker is tested with has no git.
    let parameters = json!({ "name": "one", "init_git": runtime_name(runtime) != "docker" });
    let made = admin.call("project_create", parameters).await;
    let id = made.ok()["project_id"].as_str().unwrap().to_owned();
    let result = admin.exec(&id, "echo out; echo err >&2; exit 3").await;
    assert_eq!(
        (&result["stdout"], &result["stderr"], &result["exit_code"]),
        (&json!("out\n"), &json!("err\n"), &json!(3)),
        "{runtime}"
    );
    let listed = admin.exec(&id, json!(["echo", "a b", "$HOME"])).await;
    assert_eq!(listed["stdout"], "a b $HOME\n");
    let parameters = json!({ "command": "cat; echo $A", "stdin": "in\n", "env": { "A": "1" } });
    assert_eq!(admin.exec_with(&id, parameters).await["stdout"], "in\n1\n");
    let printed = admin.exec(&id, "pwd; echo hello > file").await;
    assert_eq!(printed["stdout"], "/workspace\n", "{printed}");
    let file = server.workspace(&id).join("file");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "hello\n");
    let other = json!({ "command": "pwd", "workspace_id": "two", "create_workspace": true });
    assert_eq!(
        admin.exec_with(&id, other).await["stdout"],
        "/workspaces/two\n"
    );
}

#[test(runtimes)]
async fn commands_that_fail_to_start_are_killed_or_time_out_are_reported(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let missing = admin.exec(&id, json!(["/no/such/program"])).await;
    assert_eq!(missing["exit_code"], 127, "{missing}");
    assert!(
        missing["stderr"]
            .as_str()
            .unwrap()
            .contains("/no/such/program")
    );
    let denied = admin.exec(&id, json!(["/etc"])).await;
    assert_eq!(denied["exit_code"], 126, "{denied}");
    let killed = admin.exec(&id, "kill -9 $$").await;
    assert_eq!(killed["exit_code"], 137, "{killed}");

    let slow = json!({ "command": "echo begun; trap '' TERM; sleep 1000", "timeout_seconds": 5 });
    let started = Instant::now();
    let ended = admin.exec_with(&id, slow).await;
    assert_eq!(
        (&ended["timed_out"], &ended["exit_code"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!(ended["stdout"], "begun\n");
    assert!(started.elapsed() < scaled(Duration::from_secs(40)));
    let left = admin
        .exec(&id, "ps 2>/dev/null | grep -c 'sleep 100[0]'; true")
        .await;
    assert!(
        left["stdout"].as_str().unwrap().trim().starts_with('0'),
        "{runtime} {left}"
    );

    let started = Instant::now();
    let behind = admin.exec(&id, "sleep 300 & echo done").await;
    assert_eq!(
        (&behind["stdout"], &behind["exit_code"]),
        (&json!("done\n"), &json!(0))
    );
    assert!(
        started.elapsed() < scaled(Duration::from_secs(20)),
        "a child held the command open"
    );
}

#[test(runtimes)]
async fn output_above_a_mebibyte_is_cut_and_marked_as_truncated(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let command = "head -c 50000000 /dev/zero | tr '\\0' x; exit 4";
    let flood = admin.exec(&id, command).await;
    assert_eq!(flood["exit_code"], 4);
    assert_eq!(flood["truncated"], true);
    assert_eq!(flood["stdout"].as_str().unwrap().len(), 1 << 20);
}

#[test(needs(sandbox))]
async fn long_output_has_its_beginning_and_end_and_a_link_to_all_of_it() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let whole: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    for exec_id in [json!(null), json!("a/name?of#mine")] {
        let command = "seq 20000; seq 20000 >&2; exit 3";
        let call = json!({ "project_id": "one", "command": command, "exec_id": exec_id });
        let reply = admin.call("container_exec", call).await;
        let ran = reply.ok().clone();
        assert_eq!(
            (&ran["exit_code"], &ran["truncated"]),
            (&json!(3), &json!(false))
        );
        for stream in ["stdout", "stderr"] {
            let text = ran[stream].as_str().unwrap();
            assert!(
                text.starts_with("1\n2\n") && text.ends_with("\n20000\n"),
                "{text}"
            );
            assert!(
                text.contains("bytes left out") && text.len() < 30_000,
                "{}",
                text.len()
            );
        }
        let links: Vec<&Value> = reply.body["result"]["content"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|block| block["type"] == "resource_link")
            .collect();
        assert_eq!(links.len(), 2, "{}", reply.text);
        for link in links {
            let read = admin
                .send("resources/read", json!({ "uri": link["uri"] }))
                .await;
            assert_eq!(read.body["result"]["contents"][0]["text"], whole, "{link}");
        }
    }
    let run = async |command: &str| {
        let call = json!({ "project_id": id, "command": command });
        admin.call("container_exec", call).await.ok().clone()
    };
    let short = run("seq 1000").await;
    assert!(short["rest_uri"].is_null() && !short["stdout"].as_str().unwrap().contains("left out"));

    // Only those who may run commands in the project read what they wrote.
    let uri = run("seq 20000").await["rest_uri"].clone();
    let other = admin.project("two").await;
    for scope in ["read".to_owned(), format!("project:{other}")] {
        let reader = server.with_key(&admin.token(&scope).await);
        let refused = reader.send("resources/read", json!({ "uri": uri })).await;
        assert!(
            refused.body["error"].is_object(),
            "{scope}: {}",
            refused.text
        );
    }
}

#[test(runtimes)]
async fn a_command_survives_server_kills_and_every_line_arrives_once(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    admin.exec(&id, "true").await;
    let script = "i=0; while [ $i -lt 10000 ]; do echo $i; i=$((i+1)); \
                  [ $((i % 100)) = 0 ] && sleep 0.02; done; echo end > finished; true";
    let call = json!({
        "project_id": id, "command": script, "exec_id": "count", "timeout_seconds": 120,
        "full": true,
    });
    let running = tokio::spawn({
        let (admin, call) = (admin.clone(), call.clone());
        async move {
            let request = json!({ "name": "container_exec", "arguments": call });
            admin.try_send("tools/call", request).await
        }
    });
    // Killed twice in the middle, and each time the caller simply asks again.
    for _ in 0..2 {
        server.admin().exec(&id, "sleep 0.4").await;
        server.kill();
        server.start_again();
    }
    let _ = running.await;
    let joined = server.admin().call("container_exec", call.clone()).await;
    let expected: String = (0..10_000).map(|n| format!("{n}\n")).collect();
    assert!(
        joined.ok()["stdout"] == json!(expected),
        "{runtime}: lines were lost or doubled"
    );
    assert_eq!(joined.ok()["exit_code"], 0);
    let again = server.admin().call("container_exec", call).await;
    assert_eq!(again.ok(), joined.ok(), "a repeated call joins the first");
}

#[test(runtimes)]
async fn containers_are_started_stopped_and_leave_nothing_when_their_project_is_deleted(
    runtime: &str,
) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let project = json!({ "project_id": id });
    let started = admin.call("container_start", project.clone()).await;
    assert_eq!(started.ok()["started"], true);
    assert_eq!(started.ok()["runtime"], json!(runtime_name(runtime)));
    assert_eq!(
        admin.call("container_start", project.clone()).await.ok()["started"],
        false
    );
    admin
        .exec(&id, "echo kept > /root/note; echo x > here")
        .await;
    assert_eq!(
        admin.call("container_stop", project.clone()).await.ok()["stopped"],
        true
    );
    assert_eq!(
        admin.call("container_stop", project.clone()).await.ok()["stopped"],
        false
    );
    assert_eq!(
        admin.exec(&id, "cat /root/note here").await["stdout"],
        "kept\nx\n"
    );
    admin.call("container_logs", project.clone()).await.ok();
    admin.call("project_delete", project).await.ok();
    let entries = std::fs::read_dir(server.home().join("run/c"))
        .unwrap()
        .count();
    assert_eq!(entries, 0, "{runtime}");
    assert!(!server.home().join("projects").join(&id).exists());
}

#[test(runtimes)]
async fn concurrent_calls_of_a_named_command_run_it_once(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let call = json!({
        "project_id": id, "exec_id": "once", "stdin": "in\n",
        "command": "cat; echo ran >> times; sleep 0.5; echo done",
    });
    let callers = (0..8).map(|_| {
        let (admin, call) = (admin.clone(), call.clone());
        tokio::spawn(async move { admin.call("container_exec", call).await.ok().clone() })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert_eq!(caller.await.unwrap()["stdout"], "in\ndone\n", "{runtime}");
    }
    let times = std::fs::read_to_string(server.workspace(&id).join("times")).unwrap();
    assert_eq!(times, "ran\n", "{runtime}");
}

#[test(each(sandbox))]
async fn an_exec_id_of_another_command_is_an_error_and_a_repeated_call_says_that_it_joined(
    runtime: &str,
) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let call = |command: Value, stdin: &str| {
        let call = json!({
            "project_id": id, "exec_id": "job1", "command": command, "stdin": stdin,
        });
        admin.call("container_exec", call)
    };
    let first = call(json!("cat; echo ran >> times"), "in").await;
    assert_eq!(first.ok()["stdout"], "in");
    assert_eq!(first.ok().get("joined"), None);
    let again = call(json!("cat; echo ran >> times"), "in").await;
    assert_eq!(again.ok()["stdout"], "in");
    assert_eq!(again.ok()["joined"], true);
    assert!(again.ok()["started_at"].is_string(), "{}", again.text);
    for (command, stdin) in [
        (json!("echo other"), "in"),
        (json!("cat; echo ran >> times"), "other"),
        (json!(["cat; echo ran >> times"]), "in"),
    ] {
        let refused = call(command, stdin).await;
        let sentence = refused.sentence();
        assert!(
            sentence.contains("`job1` belongs to another command")
                && sentence.contains("exit code 0"),
            "{sentence}"
        );
    }
    // The name alone joins, also one that still runs when the server is restarted.
    let by_name = |name: &str| json!({ "project_id": id, "exec_id": name });
    let joined = admin.call("container_exec", by_name("job1")).await;
    assert_eq!(joined.ok()["stdout"], "in");
    assert_eq!(joined.ok()["joined"], true);
    let missing = admin.call("container_exec", by_name("job2")).await;
    let sentence = missing.sentence();
    assert!(sentence.contains("`job2` not found"), "{sentence}");
    let long = json!({
        "project_id": id, "exec_id": "long",
        "command": "echo begun; touch begun; until test -e go; do sleep 0.05; done; echo done",
    });
    let running = tokio::spawn({
        let admin = admin.clone();
        async move {
            let request = json!({ "name": "container_exec", "arguments": long });
            admin.try_send("tools/call", request).await
        }
    });
    let begun = server.workspace(&id).join("begun");
    wait_until("the command", async || begun.exists()).await;
    server.kill();
    let _ = running.await;
    server.start_again();
    std::fs::write(server.workspace(&id).join("go"), "").unwrap();
    let joined = server.admin().call("container_exec", by_name("long")).await;
    assert_eq!(joined.ok()["stdout"], "begun\ndone\n");
    assert_eq!(joined.ok()["joined"], true);
    let times = std::fs::read_to_string(server.workspace(&id).join("times")).unwrap();
    assert_eq!(times, "ran\n");
}

#[test(mounted_runtimes)]
async fn no_process_inside_can_change_the_relay_socket(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    for attempt in [
        "touch /mcp/x",
        "rm -f /mcp/relay.sock",
        "mkdir /mcp/d",
        "mv /mcp/relay.sock /mcp/y",
    ] {
        let result = admin.exec(&id, attempt).await;
        assert_ne!(result["exit_code"], 0, "{runtime}: {attempt} worked");
    }
    assert_eq!(admin.exec(&id, "echo still").await["stdout"], "still\n");
}

#[test(each(sandbox))]
async fn rebuilding_makes_containers_start_afresh_and_keeps_files(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    admin
        .exec(&id, "echo x > /etc/installed; echo y > kept")
        .await;
    let running = tokio::spawn({
        let (admin, id) = (admin.clone(), id.clone());
        async move { admin.exec(&id, "touch begun; sleep 600").await }
    });
    wait_until("the command", async || {
        server.workspace(&id).join("begun").exists()
    })
    .await;
    let project = json!({ "project_id": id });
    let busy = admin.call("image_rebuild", project.clone()).await;
    assert!(busy.sentence().contains("force"), "{}", busy.sentence());
    running.abort();
    // Its caller has left, so the command is ended, and the container is free.
    let free = async {
        while admin
            .call("image_rebuild", project.clone())
            .await
            .is_error()
        {
            support::pause().await;
        }
    };
    tokio::time::timeout(scaled(Duration::from_secs(60)), free)
        .await
        .expect("the command still runs");
    admin.exec(&id, "echo x > /etc/installed").await;
    let forced = json!({ "container_type": "base", "force": true });
    let rebuilt = admin.call("image_rebuild", forced).await;
    assert_eq!(rebuilt.ok()["containers_removed"], 1);
    let after = admin
        .exec(&id, "cat kept; test -e /etc/installed || echo fresh")
        .await;
    assert_eq!(after["stdout"], "y\nfresh\n");
    let shown = admin.call("project_get", project).await;
    assert_eq!(shown.ok()["container_status"], "running");
    let options = admin.call("project_options", json!({})).await;
    assert_eq!(
        options.ok()["runtimes"][0]["name"],
        json!(runtime_name(runtime))
    );
}

#[test]
async fn without_a_runtime_containers_are_refused_and_projects_work() {
    let server = server_with("none", "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let refused = admin
        .call("container_start", json!({ "project_id": id }))
        .await;
    assert!(
        refused.sentence().contains("none"),
        "{}",
        refused.sentence()
    );
    admin
        .call("project_delete", json!({ "project_id": id }))
        .await
        .ok();
}

#[test(runtimes)]
async fn idle_containers_are_stopped_and_the_next_use_starts_them(runtime: &str) {
    let server: Server = server_with(runtime, "[containers]\nidle_seconds = 1\n").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    admin.exec(&id, "true").await;
    let stopped = async {
        loop {
            let logs = admin
                .call("container_logs", json!({ "project_id": id }))
                .await;
            if logs.ok()["status"] == "stopped" {
                return;
            }
            support::pause().await;
        }
    };
    tokio::time::timeout(scaled(Duration::from_secs(30)), stopped)
        .await
        .expect("it never stops");
    assert_eq!(admin.exec(&id, "echo back").await["stdout"], "back\n");
}

#[test(each(sandbox))]
async fn a_named_command_without_a_caller_keeps_its_container_running(runtime: &str) {
    let mut server = server_with(runtime, "[containers]\nidle_seconds = 1\n").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let call = |name: &str| {
        json!({
            "project_id": id, "exec_id": name, "timeout_seconds": 60,
            "command": format!("touch {name}; sleep 10; echo {name} is done"),
        })
    };
    // One whose caller leaves, and one whose server dies.
    for name in ["left", "killed"] {
        let (caller, call) = (server.admin(), call(name));
        let calling = tokio::spawn(async move {
            let request = json!({ "name": "container_exec", "arguments": call });
            caller.try_send("tools/call", request).await
        });
        let begun = server.workspace(&id).join(name);
        let begun = support::eventually(Duration::from_secs(20), async || begun.exists());
        assert!(begun.await);
        if name == "killed" {
            server.kill();
            server.start_again();
        }
        calling.abort();
    }
    // Long after the container would have been stopped as idle, while the newest command runs.
    let end = Instant::now() + Duration::from_millis(3500);
    while Instant::now() < end {
        let logs = json!({ "project_id": id });
        let logs = server.admin().call("container_logs", logs).await;
        let is_stopped = logs.ok()["status"] == "stopped" && Instant::now() < end;
        assert!(!is_stopped, "the container was stopped under a command");
        support::pause().await;
    }
    for name in ["left", "killed"] {
        let joined = server.admin().call("container_exec", call(name)).await;
        assert_eq!(joined.ok()["stdout"], format!("{name} is done\n"));
    }
}
