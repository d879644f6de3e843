//! Agents that lie, hang, flood and die, and everything else that can go wrong around them.

use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{Modern, Server, ServerOptions, StalledReader};

/// Shorter than the server waits for a supervisor to reconnect, longer than a busy machine takes.
const STOP_NOTICE_TIMEOUT: Duration = Duration::from_secs(12);

const DEMO: &str = "exec /usr/local/bin/oubliette-client demo-agent";

/// A server whose configuration has an agent `odd` that is this shell script.
async fn with_agent(script: &str, config: &str) -> (Server, Modern, String) {
    let agent = format!(
        "runtime = \"sandbox\"\n{config}\n[agents.odd]\ncommand = \"/bin/sh\"\nargs = {}\n",
        json!(["-c", script])
    );
    let server = Server::start_with(ServerOptions {
        config: agent,
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = json!({ "name": "one", "agent": "odd" });
    let project = admin.call("project_create", project).await;
    let project = project.ok()["project_id"].as_str().unwrap().to_owned();
    (server, admin, project)
}

async fn first_completion(admin: &Modern, project: &str, prompt: &str) -> (String, Value) {
    let session = admin.spawn(project, prompt).await;
    let completion = admin.turn(&session, 1).await;
    (session, completion)
}

#[test(needs(sandbox))]
async fn a_missing_agent_is_refused_with_the_install_command() {
    let (_server, admin, project) = with_agent(DEMO, "").await;
    let spawn = json!({ "project_id": project, "prompt": "hi", "agent": "codex" });
    let refused = admin.call("session_spawn", spawn).await;
    let error = refused.sentence();
    assert!(error.contains("oubliette agent install codex"), "{error}");
    let listed = admin.call("session_list", json!({})).await;
    assert_eq!(listed.ok()["sessions"], json!([]));
}

#[test(needs(sandbox))]
async fn an_agent_that_dies_while_it_starts_is_quoted_and_can_be_tried_again() {
    // Step by step: before anything, after initialize, after session/new, in the mode request.
    for (step, lines) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
        let reply = r#"read l; case $l in *initialize*) echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}';; *session/new*) echo '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}';; esac; "#;
        let script = format!("{} echo 'out of cheese' >&2; exit 7", reply.repeat(lines));
        let (_server, admin, project) = with_agent(&script, "").await;
        let (session, completion) = first_completion(&admin, &project, "hi").await;
        let error = completion["error"].as_str().unwrap();
        assert!(error.contains("exit code 7"), "step {step}: {error}");
        assert!(error.contains("out of cheese"), "step {step}: {error}");
        admin.status(&session, "failed").await;
        let again = admin.message(&session, "once more").await;
        assert_eq!(again["resumed"], true);
        assert_eq!(admin.turn(&session, 2).await["stop_reason"], "error");
    }
}

#[test(needs(sandbox))]
async fn an_agent_that_does_not_start_in_time_fails_the_turn() {
    let (_server, admin, project) =
        with_agent("exec sleep 1000", "[sessions]\nstart_seconds = 1\n").await;
    let (_, completion) = first_completion(&admin, &project, "hi").await;
    let error = completion["error"].as_str().unwrap();
    assert!(error.contains("within 1 seconds"), "{error}");
}

#[test(needs(sandbox))]
async fn noise_and_lines_of_fifty_megabytes_do_no_harm() {
    let script = format!(
        "echo 'Welcome to the agent!'; head -c 50000000 /dev/zero | tr '\\0' x; echo; {DEMO}"
    );
    let (_server, admin, project) = with_agent(&script, "").await;
    let (session, completion) = first_completion(&admin, &project, "/say fine").await;
    assert_eq!(completion["text"], "fine");
    let prompt =
        "/garbage one\n/garbage two\n/sh head -c 3000000 /dev/zero | tr '\\0' y\n/say still fine";
    admin.message(&session, prompt).await;
    let completion = admin.turn(&session, 2).await;
    assert!(
        completion["text"]
            .as_str()
            .unwrap()
            .starts_with("still fine")
    );
    let log = admin.log(&session).await;
    assert!(
        log.iter().any(|e| e["type"] == "log"),
        "the noise is in the log"
    );
    let result = log.iter().find(|e| e["type"] == "tool_result").unwrap();
    assert!(result["output"].as_str().unwrap().len() <= 256 << 10);

    // In the middle of a turn.
    let big = "( head -c 50000000 /dev/zero | tr '\\0' z; echo ) > /proc/$PPID/fd/1";
    admin
        .message(&session, &format!("/sh {big}\n/say and now"))
        .await;
    let completion = admin.turn(&session, 3).await;
    assert!(
        completion["text"].as_str().unwrap().starts_with("and now"),
        "{completion}"
    );
    let log = admin.log(&session).await;
    assert!(
        log.iter()
            .any(|e| e["message"].as_str().is_some_and(|m| m.contains("16 MiB")))
    );
}

#[test(needs(sandbox))]
async fn an_agent_that_exits_in_mid_turn_fails_the_session_which_a_message_resumes() {
    let (_server, admin, project) = with_agent(DEMO, "").await;
    let prompt = "/say half\n/stderr the roof is on fire\n/exit 3\n/say never";
    let (session, completion) = first_completion(&admin, &project, prompt).await;
    assert_eq!(
        (&completion["stop_reason"], &completion["text"]),
        (&json!("error"), &json!("half"))
    );
    let error = completion["error"].as_str().unwrap();
    assert!(
        error.contains("exit code 3") && error.contains("the roof is on fire"),
        "{error}"
    );
    admin.status(&session, "failed").await;
    let log = admin.log(&session).await;
    let errors: Vec<_> = log.iter().filter(|e| e["type"] == "error").collect();
    let [event] = errors[..] else {
        panic!("one event tells of the failure: {errors:?}");
    };
    assert!(
        event["message"].as_str().unwrap().contains("exit code 3"),
        "{event}"
    );
    let page = json!({ "session_id": session });
    let page = admin.call("session_events", page).await.ok().clone();
    assert_eq!(
        (&page["failed"], &page["completed"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(
        admin.message(&session, "/say better").await["resumed"],
        true
    );
    assert_eq!(admin.turn(&session, 2).await["text"], "better");
    assert_eq!(admin.status(&session, "idle").await["error"], Value::Null);
}

#[test(needs(sandbox))]
async fn an_agent_that_hangs_is_ended_when_it_does_not_stop() {
    let (_server, admin, project) = with_agent(DEMO, "[sessions]\ncancel_seconds = 1\n").await;
    let session = admin.spawn(&project, "/say half\n/hang").await;
    admin
        .follow(&session, |e| e["type"] == "delta" || e["type"] == "message")
        .await;
    let stopped = admin
        .call("session_interrupt", json!({ "session_id": session }))
        .await
        .ok()
        .clone();
    assert_eq!(stopped["status"], "idle");
    assert_eq!(admin.turn(&session, 1).await["stop_reason"], "cancelled");
    admin.message(&session, "/say up again").await;
    assert_eq!(admin.turn(&session, 2).await["text"], "up again");
}

#[test(needs(sandbox))]
async fn an_agent_that_writes_nothing_for_too_long_fails_the_session() {
    let (_server, admin, project) = with_agent(DEMO, "[sessions]\nsilence_seconds = 1\n").await;
    let (session, completion) = first_completion(&admin, &project, "/hang").await;
    assert!(
        completion["error"]
            .as_str()
            .unwrap()
            .contains("wrote nothing"),
        "{completion}"
    );
    admin.status(&session, "failed").await;
}

#[test(needs(sandbox))]
async fn ten_thousand_updates_are_merged_into_fewer_events() {
    let (_server, admin, project) = with_agent(DEMO, "").await;
    let (session, completion) = first_completion(&admin, &project, "/flood 10000\n/say end").await;
    assert!(completion["text"].as_str().unwrap().ends_with("end"));
    let log = admin.log(&session).await;
    assert!(log.len() < 2000, "{} events", log.len());
}

#[test(needs(sandbox))]
async fn a_container_that_is_stopped_under_a_session_fails_it_at_once() {
    let (_server, admin, project) = with_agent(DEMO, "").await;
    let session = admin.spawn(&project, "/sh sleep 1000").await;
    admin.follow(&session, |e| e["type"] == "tool_call").await;
    admin
        .call("container_stop", json!({ "project_id": project }))
        .await
        .ok();
    let completion =
        tokio::time::timeout(scaled(STOP_NOTICE_TIMEOUT), admin.turn(&session, 1)).await;
    let completion = completion.expect("the server waits for a container that has ended");
    assert_eq!(completion["stop_reason"], "error");
    assert_eq!(completion["error"], "the container ended");
    admin.status(&session, "failed").await;
    admin.message(&session, "/say in a new one").await;
    assert_eq!(admin.turn(&session, 2).await["text"], "in a new one");
}

#[test(needs(sandbox))]
async fn a_project_that_is_deleted_in_mid_turn_leaves_nothing() {
    let (server, admin, project) = with_agent(DEMO, "").await;
    let session = admin.spawn(&project, "/sh sleep 1000").await;
    admin.follow(&session, |e| e["type"] == "tool_call").await;
    admin
        .call("project_delete", json!({ "project_id": project }))
        .await
        .ok();
    let gone = admin
        .call("session_get", json!({ "session_id": session }))
        .await;
    assert!(gone.sentence().contains("not found"));
    assert!(!server.home().join("projects").join(&project).exists());
    let late = json!({ "session_id": session, "prompt": "hello?" });
    assert!(admin.call("session_message", late).await.is_error());
}

#[test(needs(sandbox))]
async fn spawns_raced_on_one_workspace_make_one_session_and_lose_no_message() {
    let (_server, admin, project) = with_agent(DEMO, "").await;
    let racing = (0..12).map(|n| {
        let (admin, project) = (admin.clone(), project.clone());
        tokio::spawn(async move { admin.spawn(&project, &format!("/say {n}")).await })
    });
    let mut sessions = Vec::new();
    for spawned in racing.collect::<Vec<_>>() {
        sessions.push(spawned.await.unwrap());
    }
    sessions.dedup();
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    admin.turn(&sessions[0], 12).await;
    let log = admin.log(&sessions[0]).await;
    let mut outputs: Vec<i64> = log
        .iter()
        .filter(|e| e["type"] == "completion")
        .map(|e| e["text"].as_str().unwrap().parse().unwrap())
        .collect();
    outputs.sort_unstable();
    assert_eq!(outputs, (0..12).collect::<Vec<_>>());
}

#[test(needs(sandbox))]
async fn an_agent_killed_with_kill_9_is_resumed_with_its_memory() {
    let (_server, admin, project) = with_agent(DEMO, "").await;
    let (session, _) = first_completion(&admin, &project, "/say one").await;
    admin.status(&session, "idle").await;
    let kill = json!({ "project_id": project,
        "command": "kill -9 $(ps ax | grep -v grep | grep 'demo-agent' | awk '{print $1}')" });
    admin.call("container_exec", kill).await.ok();
    admin.follow(&session, |e| e["type"] == "log").await;
    assert_eq!(admin.session(&session).await["status"], "idle");
    admin.message(&session, "how many turns?").await;
    let second = admin.turn(&session, 2).await;
    assert!(second["text"].as_str().unwrap().contains('2'), "{second}");
    let log = admin.log(&session).await;
    assert!(log.iter().any(|e| e["resumed_by"] == "resume"));
}

#[test(needs(sandbox))]
async fn an_agent_that_cannot_resume_gets_the_transcript() {
    // It has no memory across restarts, and its answer shows whether the prompt had the transcript.
    let script = r#"while read -r l; do id=${l#*\"id\":}; id=${id%%,*}; case $l in
        *'"initialize"'*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"protocolVersion\":1}}";;
        *session/new*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"sessionId\":\"s\"}}";;
        *session/prompt*) case $l in *transcript-word*again*) t=remembers;; *) t=transcript-word;; esac
            echo "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"s\",\"update\":{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"$t\"}}}}"
            echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"stopReason\":\"end_turn\"}}";;
        esac; done"#;
    let (_server, admin, project) = with_agent(script, "").await;
    let (session, completion) = first_completion(&admin, &project, "hello").await;
    assert_eq!(completion["text"], "transcript-word");
    admin.status(&session, "idle").await;
    admin
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok();
    admin.message(&session, "again").await;
    assert_eq!(admin.turn(&session, 2).await["text"], "remembers");
    let log = admin.log(&session).await;
    assert!(
        log.iter().any(|e| e["resumed_by"] == "transcript"),
        "{log:#?}"
    );
}

#[test(needs(sandbox))]
async fn credentials_reach_only_the_agent_that_needs_them() {
    let secret = "sk-live-0123456789abcdef";
    let script = "echo \"my key is $ODD_KEY\" >&2; ".to_owned() + DEMO;
    let config = "[credentials.model]\nkind = \"oddity\"\nenv = \"THE_KEY\"\n\
                  [credentials.other]\nkind = \"elsewhere\"\nvalue = \"sk-other-9876543210\"\n";
    let agent = format!(
        "runtime = \"sandbox\"\n{config}[agents.odd]\ncommand = \"/bin/sh\"\nargs = {}\n\
         credentials = {{ oddity = \"ODD_KEY\" }}\n",
        json!(["-c", script])
    );
    let server = Server::start_with(ServerOptions {
        config: agent,
        env: vec![("THE_KEY".to_owned(), secret.to_owned())],
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let made = json!({ "name": "one", "agent": "odd", "credential_refs": ["model", "other"] });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    // The agent has it, and prints it wherever it can.
    let prompt = "/sh test ${#ODD_KEY} = 24 && echo it is there; echo $ODD_KEY; env | grep -c other; true\n\
                  /say done\n/stderr $ODD_KEY\n/exit 9";
    let session = admin.spawn(&project, prompt).await;
    let completion = admin.turn(&session, 1).await;
    let log = admin.log(&session).await;
    let result = log.iter().find(|e| e["type"] == "tool_result").unwrap();
    let output = result["output"].as_str().unwrap();
    assert!(
        output.contains("it is there") && output.contains("[redacted]"),
        "{output}"
    );
    assert!(
        output.ends_with('0'),
        "another agent's credential is in the environment: {output}"
    );
    assert!(
        completion["error"].as_str().unwrap().contains("[redacted]"),
        "{completion}"
    );
    // A command of the same container and another project have it not.
    let env = json!({ "project_id": project, "command": "env" });
    let env = admin.call("container_exec", env).await.ok().clone();
    assert!(!env["stdout"].as_str().unwrap().contains(secret));
    let other = admin.project("two").await;
    let elsewhere = admin
        .spawn_with(&other, "/sh env", json!({ "agent": "demo" }))
        .await;
    admin.turn(&elsewhere, 1).await;
    let mut shown = format!("{log:?}{:?}{}", admin.log(&elsewhere).await, server.log());
    shown += &format!("{:?}", admin.session(&session).await);
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        shown += &String::from_utf8_lossy(&line);
    }
    assert!(!shown.contains(secret), "the credential was shown");
    let database = std::fs::read(server.home().join("oubliette.db")).unwrap();
    let wal = std::fs::read(server.home().join("oubliette.db-wal")).unwrap_or_default();
    for bytes in [database, wal] {
        let is_stored = bytes
            .windows(secret.len())
            .any(|window| window == secret.as_bytes());
        assert!(!is_stored, "the credential was stored");
    }
}

#[test(needs(sandbox))]
async fn a_reader_that_stops_reading_blocks_no_other_caller() {
    let (server, admin, project) = with_agent(DEMO, "").await;
    let long = admin
        .spawn(&project, "/repeat 200 /sh printf '%010000d' 7")
        .await;
    admin.turn(&long, 1).await;
    // Asks again and again for a long log and reads nothing, until the kernel's buffers are full.
    let mut stalled = StalledReader::connect(&server, &server.admin_key()).await;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": Modern::VERSION,
        "io.modelcontextprotocol/clientInfo": { "name": "raw", "version": "0" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let arguments = json!({ "session_id": long, "max_events": 1000, "types": ["all"] });
    let params = json!({ "name": "session_events", "arguments": arguments, "_meta": meta });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let headers = [
        format!("mcp-protocol-version: {}", Modern::VERSION),
        "mcp-method: tools/call".to_owned(),
        "mcp-name: session_events".to_owned(),
    ];
    for _ in 0..20 {
        stalled.send("POST", &headers, Some(&body)).await;
    }
    support::wait_until("full buffers", async || stalled.unsent_bytes() > 1 << 20).await;

    let message = "/repeat 300 /sh echo line";
    admin.message(&long, message).await;
    admin.turn(&long, 2).await;
    assert_eq!(server.admin().status(&long, "idle").await["turns"], 2);
    assert!(admin.log(&long).await.len() > 1000);
    assert!(stalled.unsent_bytes() > 1 << 20, "it was read");
}
