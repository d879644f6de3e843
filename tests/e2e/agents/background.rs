//! Work that a real agent does without a prompt.

use serde_json::{Value, json};
use support::agents;

#[test(needs(claude, sandbox), limit = 300)]
async fn a_command_that_claude_left_in_the_background_wakes_it_in_a_turn_of_its_own() {
    let (server, llm) = agents::server_with_agent("claude", "sandbox");
    let admin = server.admin();
    let project = agents::project(&server, "claude", &llm, json!({})).await;
    let command = json!({
        "command": "until [ -e go ]; do sleep 0.1; done; echo it has ended",
        "run_in_background": true,
    });
    let prompt = format!("use tool Bash {command}\nsay The command runs.");
    let session = admin.spawn(&project, &prompt).await;
    let first = admin.turn(&session, 1).await;
    assert_eq!(first["stop_reason"], "end_turn", "{first}");
    assert_eq!(first["kind"], Value::Null, "{first}");
    let text = first["text"].as_str().unwrap();
    assert!(text.contains("The command runs."), "{first}");
    admin.status(&session, "idle").await;

    std::fs::write(server.workspace(&project).join("go"), "").unwrap();
    let second = admin.turn(&session, 2).await;
    assert_eq!(second["kind"], "background", "{second}");
    assert_eq!(second["stop_reason"], "end_turn", "{second}");
    assert_ne!(second["text"], "", "{second}");
    let log = admin.log(&session).await;
    let is_own = |event: &&Value| event["type"] == "status" && event["kind"] == "background";
    assert_eq!(log.iter().filter(is_own).count(), 1, "{log:#?}");
    assert_eq!(
        log.iter().filter(|event| event["type"] == "prompt").count(),
        1
    );

    // Nothing of it is in the next answer.
    admin.message(&session, "say NEXT").await;
    let third = admin.turn(&session, 3).await;
    assert_eq!(
        (&third["text"], &third["kind"]),
        (&json!("NEXT"), &Value::Null)
    );
    assert_eq!(admin.session(&session).await["turns"], 3);
}
