//! Commands without an `exec_id` whose server is killed: they run on, within their limits.

use std::time::Duration;

use serde_json::{Value, json};
use support::{Modern, Server, server_with, wait_until};
use tokio::task::JoinHandle;

/// A call whose answer is lost with its server.
fn call_in_background(admin: &Modern, project: &str, mut call: Value) -> JoinHandle<()> {
    call["project_id"] = json!(project);
    let admin = admin.clone();
    tokio::spawn(async move {
        let call = json!({ "name": "container_exec", "arguments": call });
        admin.try_send("tools/call", call).await;
    })
}

async fn container_log(server: &Server, project: &str) -> String {
    let call = json!({ "project_id": project, "lines": 10_000 });
    let reply = server.admin().call("container_logs", call).await;
    reply.ok()["logs"].as_str().unwrap().to_owned()
}

async fn wait_for_file(server: &Server, project: &str, name: &str) {
    let path = server.workspace(project).join(name);
    wait_until(name, async || path.exists()).await;
}

#[test(runtimes)]
async fn an_unnamed_command_outlives_its_server_and_its_output_is_in_the_log(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let script = "cat > input; touch begun; i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; \
                  cat input; echo last words >&2; touch finished; exit 7";
    let lost = call_in_background(
        &admin,
        &id,
        json!({ "command": script, "stdin": "input\n" }),
    );
    // More than the supervisor keeps: it ends only if a server reads on.
    let flood = "head -c 5000000 /dev/zero | tr '\\0' x; touch flooded";
    let flooding =
        format!("touch flooding; while [ ! -e begun ]; do sleep 0.05; done; sleep 1; {flood}");
    let flooded = call_in_background(&admin, &id, json!({ "command": flooding }));
    wait_for_file(&server, &id, "flooding").await;
    wait_for_file(&server, &id, "begun").await;
    server.kill();
    lost.await.unwrap();
    flooded.await.unwrap();
    server.start_again();
    wait_for_file(&server, &id, "finished").await;
    wait_for_file(&server, &id, "flooded").await;
    wait_until("the log", async || {
        let log = container_log(&server, &id).await;
        log.contains("exit code 7") && log.contains("exit code 0")
    })
    .await;
    let log = container_log(&server, &id).await;
    let expected: String = (0..30).map(|n| format!("line {n}\n")).collect();
    let expected = format!("{expected}input\nlast words\n");
    assert!(log.contains(&expected), "{runtime}: {log:.2000}");
    assert!(log.contains("truncated"), "{runtime}: {log:.2000}");

    // The supervisor has forgotten them: the next server finds nothing to collect.
    server.kill();
    server.start_again();
    assert_eq!(server.admin().exec(&id, "echo on").await["stdout"], "on\n");
    let log = container_log(&server, &id).await;
    assert_eq!(
        log.matches("exit code").count(),
        2,
        "{runtime}: {log:.2000}"
    );
}

#[test(runtimes)]
async fn the_time_limit_of_an_unnamed_command_outlives_its_server(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    admin.exec(&id, "true").await;
    let command = "touch begun; while :; do sleep 0.1; date +%N > alive; done";
    let call = json!({ "command": command, "timeout_seconds": 4 });
    let lost = call_in_background(&admin, &id, call);
    // Its server dies before it has sent the whole input, which no one can complete.
    let pipe = "touch waiting; while [ ! -e go ]; do sleep 0.1; done; cat > copy; touch copied";
    let input = "x".repeat(500_000);
    let starved = call_in_background(&admin, &id, json!({ "command": pipe, "stdin": input }));
    wait_for_file(&server, &id, "alive").await;
    wait_for_file(&server, &id, "waiting").await;
    server.kill();
    lost.await.unwrap();
    starved.await.unwrap();
    server.start_again();
    wait_until("both ends", async || {
        let log = container_log(&server, &id).await;
        log.contains("time limit") && log.contains("input was lost")
    })
    .await;
    std::fs::write(server.workspace(&id).join("go"), "").unwrap();
    let check = "a=$(cat alive); sleep 0.5; [ \"$a\" = \"$(cat alive)\" ] && echo ended; ls copied";
    let seen = server.admin().exec(&id, check).await;
    assert_eq!(seen["stdout"], "ended\n", "{runtime}: {seen}");
}

#[test(each(sandbox))]
async fn an_unnamed_command_of_a_dead_server_keeps_its_container_running(runtime: &str) {
    let mut server = server_with(runtime, "[containers]\nidle_seconds = 1\n").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let lost = call_in_background(
        &admin,
        &id,
        json!({ "command": "touch begun; sleep 4; touch finished" }),
    );
    wait_for_file(&server, &id, "begun").await;
    server.kill();
    lost.await.unwrap();
    server.start_again();
    wait_for_file(&server, &id, "finished").await;
    // Then it is idle.
    let stopped = support::eventually(Duration::from_secs(30), async || {
        let logs = json!({ "project_id": id });
        let logs = server.admin().call("container_logs", logs).await;
        logs.ok()["status"] == "stopped"
    });
    assert!(stopped.await);
}
