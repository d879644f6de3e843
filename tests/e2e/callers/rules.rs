//! Which tokens may declare tools and answer requests, and which values are accepted.

use serde_json::{Value, json};

use super::{SEND, answer, asked, context, notification, server_with, spawn};

#[test(needs(sandbox))]
async fn a_request_can_wait_for_a_disconnected_caller_until_its_timeout() {
    let config =
        "[caller_tools]\ngrace_seconds = 0\npresence_seconds = 0\non_disconnect = \"wait\"\n";
    let (server, admin, project) = server_with(config).await;
    let caller = server.with_key(&admin.token("write").await);
    let session = spawn(&caller, &project, SEND, json!([notification()])).await;
    let request = asked(&admin, &session).await;
    // Another call ends only at its timeout.
    let mut brief = notification();
    brief["timeout_seconds"] = json!(2);
    let other = spawn(&caller, &project, SEND, json!([brief])).await;
    let completion = admin.turn(&other, 1).await;
    let expected = "caller tool \"send_notification\" timed out after 2 s";
    assert_eq!(completion["text"], expected);
    answer(&caller, &request, json!({ "result": { "late": true } }))
        .await
        .ok();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "{\"late\":true}");
}

#[test(needs(sandbox))]
async fn only_the_caller_of_a_session_answers_and_once() {
    let (server, admin, project) = server_with("").await;
    let key = admin.token("write").await;
    let caller = server.with_key(&key);
    let session = spawn(&caller, &project, SEND, json!([notification()])).await;
    let request = asked(&caller, &session).await;
    // A caller that comes back finds the request wherever it looks.
    for (operation, named) in [
        ("session_get", json!({ "session_id": session })),
        ("session_list", json!({ "project_id": project })),
    ] {
        let shown = caller.call(operation, named).await;
        let pending = &shown.ok()["pending_caller_requests"];
        assert_eq!(
            pending[0]["request_id"], request["request_id"],
            "{operation}: {pending}"
        );
    }
    let sent = json!({ "result": "mine" });
    let refused = answer(&admin, &request, sent.clone()).await;
    assert_eq!(refused.code(), -32002, "{}", refused.text);
    let declare = json!({ "session_id": session, "prompt": "x", "context": context(json!([])) });
    let refused = admin.call("session_message", declare.clone()).await;
    assert!(
        refused.sentence().contains("only the token"),
        "{}",
        refused.text
    );
    // Unknown, of another session, malformed.
    let other = spawn(&caller, &project, SEND, json!([notification()])).await;
    let foreign = asked(&caller, &other).await;
    for (session_id, request_id) in [
        (
            json!(session),
            json!("5b0c3a52-1f0b-4a52-8f27-0c9c4f0b7a11"),
        ),
        (json!(session), json!("abc123")),
        (json!(session), foreign["request_id"].clone()),
    ] {
        let parameters = json!({ "session_id": session_id, "request_id": request_id, "result": 1 });
        let reply = caller.call("caller_tool_response", parameters).await;
        assert!(reply.sentence().contains("not found"), "{}", reply.text);
    }
    // Many answers at once: one counts.
    let answers = (0..10).map(|n| {
        let (caller, request) = (caller.clone(), request.clone());
        tokio::spawn(async move { answer(&caller, &request, json!({ "result": n })).await })
    });
    let answers: Vec<_> = answers.collect();
    let mut accepted = Vec::new();
    for (n, reply) in answers.into_iter().enumerate() {
        if !reply.await.unwrap().is_error() {
            accepted.push(n);
        }
    }
    assert_eq!(accepted.len(), 1);
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], accepted[0].to_string());
    // When the caller's token has ended, the next one that declares tools takes over.
    let tokens = admin.call("token_list", json!({})).await;
    let id = tokens.ok()["tokens"][1]["token_id"].clone();
    admin
        .call("token_revoke", json!({ "token_id": id }))
        .await
        .ok();
    let declare = json!({
        "session_id": session, "prompt": SEND, "context": context(json!([notification()])),
    });
    admin.call("session_message", declare).await.ok();
    let wanted = |event: &Value| {
        event["type"] == "caller_tool_request" && event["request_id"] != request["request_id"]
    };
    let log = admin.follow(&session, wanted).await;
    answer(&admin, log.last().unwrap(), sent).await.ok();
    assert_eq!(admin.turn(&session, 2).await["text"], "mine");
}

#[test(needs(sandbox))]
async fn a_bad_declaration_refuses_the_whole_message() {
    let (_server, admin, project) = server_with("[caller_tools]\nmax_tools = 10\n").await;
    let tool = |name: &str| json!({ "name": name });
    let many: Vec<Value> = (0..11).map(|n| tool(&n.to_string())).collect();
    let with_schema = |schema: Value| json!([{ "name": "x", "inputSchema": schema }]);
    for (context, word) in [
        (json!({ "caller_tools": [tool("x")] }), "caller_id"),
        (
            json!({ "caller_id": "", "caller_tools": [tool("x")] }),
            "caller_id",
        ),
        (
            json!({ "caller_id": "oubliette", "caller_tools": [tool("x")] }),
            "oubliette_x",
        ),
        (
            json!({ "caller_id": "session", "caller_tools": [tool("message")] }),
            "session_message",
        ),
        (context(json!([tool("")])), "tool name"),
        (context(json!([tool("a b"), tool("a.b")])), "myapp_a_b"),
        (context(json!(many)), "the maximum is 10"),
        (
            context(with_schema(json!({ "type": "string" }))),
            "inputSchema",
        ),
        (context(with_schema(json!("x"))), "inputSchema"),
        (
            context(with_schema(json!({ "type": "object", "required": 7 }))),
            "inputSchema",
        ),
        (
            context(json!([{ "name": "x", "timeout_seconds": 0 }])),
            "timeout_seconds",
        ),
        (context(json!([{ "nome": "x" }])), "name"),
    ] {
        let parameters = json!({ "project_id": project, "prompt": "/say x", "context": context });
        let refused = admin.call("session_spawn", parameters).await;
        assert!(
            refused.sentence().contains(word),
            "{word}: {}",
            refused.text
        );
    }
    let all = admin
        .call("session_list", json!({ "project_id": project }))
        .await;
    assert_eq!(all.ok()["sessions"], json!([]));
    // A long name is accepted with a warning.
    let long = format!("/tool myapp_{} {{}}", "x".repeat(40));
    let tools = json!([{ "name": "x".repeat(40) }]);
    let parameters = json!({ "project_id": project, "prompt": long, "context": context(tools) });
    let made = admin.call("session_spawn", parameters).await;
    assert!(
        made.ok()["warnings"][0]
            .as_str()
            .unwrap()
            .contains("40 characters")
    );
    let session = made.ok()["session_id"].as_str().unwrap().to_owned();
    let request = asked(&admin, &session).await;
    answer(&admin, &request, json!({ "result": "long" }))
        .await
        .ok();
    assert_eq!(admin.turn(&session, 1).await["text"], "long");
}
