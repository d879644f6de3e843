//! Questions about hosts while something is killed, ends or floods, and while several sessions run.

use serde_json::{Value, json};
use support::network::WebServer;
use support::wait_until;

use super::faults::kill;
use super::questions::{Bench, answer};
use super::{NameServer, gate_pid, loopback_address, policy_project};

#[test(each(sandbox, docker), limit = 240)]
async fn a_question_outlives_a_killed_server(runtime: &str) {
    let mut bench = Bench::start(runtime).await;
    let session = bench
        .admin
        .spawn(&bench.project, &bench.fetch("new.test"))
        .await;
    let question = bench.question(&session, "new.test").await;
    for _ in 0..2 {
        bench.server.kill();
        bench.server.start_again();
        bench.admin = bench.server.admin();
        let waiting = bench.admin.status(&session, "waiting").await;
        assert_eq!(waiting["waiting_for"]["request_id"], question["request_id"]);
    }
    bench.permit(&session, &question, "allow_always").await;
    let text = bench.text(&session, 1).await;
    assert!(text.contains("hello from new.test"), "{text}");
    // What was allowed for the session is not forgotten, nor its open connection cut.
    let hold = "/sh curl -sS -N -m 100 http://new.test/drip/10 | tail -n 1";
    if runtime == "sandbox" {
        bench.admin.message(&session, hold).await;
        wait_until("a connection", async || bench.web.connections() == 1).await;
    } else {
        bench
            .admin
            .message(&session, &bench.fetch("new.test"))
            .await;
    }
    bench.server.kill();
    bench.server.start_again();
    bench.admin = bench.server.admin();
    let text = bench.text(&session, 2).await;
    let expected = match runtime {
        "sandbox" => "end",
        _ => "hello from new.test",
    };
    assert!(text.contains(expected), "{text}");
    assert_eq!(bench.events(&session, "permission_request").await.len(), 1);
}

#[test(each(sandbox))]
async fn a_question_of_a_killed_gate_is_withdrawn_and_asked_again(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let session = bench
        .admin
        .spawn(&bench.project, &bench.fetch("new.test"))
        .await;
    let first = bench.question(&session, "new.test").await;
    kill(gate_pid(bench.server.home()).unwrap());
    let is_again = |event: &Value| {
        event["type"] == "permission_request" && event["request_id"] != first["request_id"]
    };
    let log = bench.admin.follow(&session, is_again).await;
    let second = log.last().unwrap().clone();
    let late = answer(&session, &first, "allow");
    wait_until("the first one to be withdrawn", async || {
        let answers = bench.events(&session, "permission_answer").await;
        answers.iter().any(|it| it["by"] == "withdrawn")
    })
    .await;
    let late = bench.admin.call("session_permit", late).await;
    assert!(late.is_error(), "{}", late.text);
    bench.permit(&session, &second, "allow").await;
    let text = bench.text(&session, 1).await;
    assert!(text.contains("hello from new.test"), "{text}");
}

#[test(each(sandbox))]
async fn a_question_without_an_answer_ends_with_its_time(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("new.test", address);
    let _web = WebServer::start(address, 80);
    let config = format!("{}[sessions]\npermission_seconds = 2\n", names.config());
    let server = support::server_with(runtime, &config).await;
    let admin = server.admin();
    let policy = json!({ "preset": "strict", "ask": true, "allow": [address] });
    let project = policy_project(&admin, "one", policy).await;
    let line = "/sh curl -s -m 100 -w '%{http_code}' http://new.test/";
    let session = admin.spawn(&project, line).await;
    let completion = admin.turn(&session, 1).await;
    let text = completion["text"].as_str().unwrap();
    assert!(text.contains("403") && text.contains("in time"), "{text}");
    let log = admin.log(&session).await;
    let of = |kind: &str| log.iter().find(|event| event["type"] == kind).unwrap();
    assert_eq!(of("permission_answer")["by"], "deadline");
    let reason = of("network_denied")["reason"].as_str().unwrap();
    assert!(reason.contains("no caller answered"), "{reason}");
}

#[test(each(sandbox))]
async fn an_interrupted_and_an_ended_session_leave_no_question(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let admin = &bench.admin;
    // It stays when the turn ends.
    let detached = "/sh setsid sh -c 'curl -s -m 100 -w %{http_code} http://new.test/ > out; echo > ended' \
                    >/dev/null 2>&1 & sleep 1000";
    let workspace = bench.server.workspace(&bench.project);
    for stop in ["session_interrupt", "session_end"] {
        let _ = std::fs::remove_file(workspace.join("ended"));
        let new = json!({ "new_session": true });
        let session = admin.spawn_with(&bench.project, detached, new).await;
        bench.question(&session, "new.test").await;
        admin
            .call(stop, json!({ "session_id": session }))
            .await
            .ok();
        admin.turn(&session, 1).await;
        let answers = bench.events(&session, "permission_answer").await;
        assert_eq!(answers.len(), 1, "{stop}: {answers:?}");
        assert_eq!(answers[0]["by"], "interrupt", "{stop}");
        let found = admin.session(&session).await;
        assert_eq!(found["waiting_for"], Value::Null, "{found}");
        // The agent of a session that is ended is killed with what it started.
        if stop == "session_interrupt" {
            let ended = workspace.join("ended");
            wait_until("the end of the program", async || ended.exists()).await;
            let text = std::fs::read_to_string(workspace.join("out")).unwrap();
            assert!(text.ends_with("403"), "{text}");
        }
    }
    let metrics = support::http().get(format!("{}/metrics", bench.server.base()));
    let metrics = metrics.bearer_auth(bench.server.admin_key());
    wait_until("no open question", async || {
        let page = metrics.try_clone().unwrap().send().await.unwrap();
        page.text()
            .await
            .unwrap()
            .contains("oubliette_network_questions 0\n")
    })
    .await;
}

/// Which session's program waits is not known: the newest turn is asked, and the other one when that turn ends.
#[test(each(sandbox))]
async fn of_several_sessions_in_a_container_one_that_works_is_asked(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let admin = &bench.admin;
    let new = json!({ "new_session": true });
    let line = "/sh while [ ! -e go ]; do sleep 0.1; done; curl -sS -m 100 http://new.test/";
    let older = admin.spawn_with(&bench.project, line, new.clone()).await;
    admin
        .follow(&older, |event| event["type"] == "tool_call")
        .await;
    let newer = admin.spawn_with(&bench.project, "/sleep 1000", new).await;
    admin.status(&newer, "running").await;
    std::fs::write(bench.server.workspace(&bench.project).join("go"), "").unwrap();
    let question = bench.question(&newer, "new.test").await;
    assert_eq!(bench.events(&older, "permission_request").await.len(), 0);
    let stop = json!({ "session_id": newer });
    admin.call("session_interrupt", stop).await.ok();
    let again = bench.question(&older, "new.test").await;
    assert_ne!(again["request_id"], question["request_id"]);
    bench.permit(&older, &again, "allow").await;
    let text = bench.text(&older, 1).await;
    assert!(text.contains("hello from new.test"), "{text}");
}

/// Connects to many names, and keeps the connections that are not refused.
const FLOOD: &str = "import select, socket\n\
    def ask(name):\n\
    \x20 s = socket.create_connection(('127.0.0.1', 3128), 60)\n\
    \x20 s.sendall(f'CONNECT {name}:443 HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n'.encode())\n\
    \x20 return s\n\
    held, refused = [], 0\n\
    for n in range(1000):\n\
    \x20 held.append(ask(f'n{n}.test'))\n\
    \x20 while len(held) > 8:\n\
    \x20   for s in select.select(held, [], [], 60)[0] or [held[0]]:\n\
    \x20     refused += b' 403 ' in s.recv(1000)\n\
    \x20     held.remove(s)\n\
    print('refused', refused)\n";

#[test(each(sandbox), limit = 240)]
async fn a_thousand_names_ask_a_bounded_number_of_questions(runtime: &str) {
    let bench = Bench::start(runtime).await;
    let workspace = bench.server.workspace(&bench.project);
    std::fs::write(workspace.join("flood.py"), FLOOD).unwrap();
    let session = bench
        .admin
        .spawn(&bench.project, "/sh python3 flood.py")
        .await;
    let text = bench.text(&session, 1).await;
    assert!(text.contains("refused 992"), "{text}");
    let asked = bench.events(&session, "permission_request").await;
    assert_eq!(asked.len(), 8, "{asked:?}");
    let answers = bench.events(&session, "permission_answer").await;
    assert_eq!(answers.len(), 8, "{answers:?}");
    let denied = bench.events(&session, "network_denied").await;
    assert!(!denied.is_empty() && denied.len() <= 20, "{}", denied.len());
    let reason = denied[0]["reason"].as_str().unwrap();
    assert!(reason.contains("too many questions"), "{reason}");
    // The server and the container go on.
    bench
        .admin
        .message(&session, &bench.fetch("new.test"))
        .await;
    let question = bench.question(&session, "new.test").await;
    bench.permit(&session, &question, "allow").await;
    let text = bench.text(&session, 2).await;
    assert!(text.contains("hello from new.test"), "{text}");
}
