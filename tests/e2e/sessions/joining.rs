//! Which session a message goes to: the newest that has every setting that the message gives.

use serde_json::{Value, json};
use support::Modern;

use crate::agents::oubliette_tools::server_with_project;

async fn send(admin: &Modern, operation: &str, project: &str, more: Value) -> (String, bool) {
    let mut parameters = more;
    parameters["project_id"] = json!(project);
    parameters["prompt"] = json!("/say hello");
    let sent = admin.call(operation, parameters).await;
    let session = sent.ok()["session_id"].as_str().unwrap().to_owned();
    (session, sent.ok()["spawned"] == true)
}

#[test(needs(sandbox))]
async fn a_message_to_a_project_reaches_its_newest_session_whatever_its_agent() {
    let (_server, admin, project) = server_with_project("", json!({})).await;
    let first = json!({ "agent": "recorder" });
    let (recorder, _) = send(&admin, "session_spawn", &project, first.clone()).await;
    for operation in ["session_message", "session_spawn"] {
        let reached = send(&admin, operation, &project, json!({})).await;
        assert_eq!(reached, (recorder.clone(), false), "{operation}");
    }
    let (demo, spawned) = send(
        &admin,
        "session_message",
        &project,
        json!({ "agent": "demo" }),
    )
    .await;
    assert!(spawned && demo != recorder);
    let reached = send(&admin, "session_message", &project, json!({})).await;
    assert_eq!(reached, (demo, false));
    let reached = send(&admin, "session_message", &project, first).await;
    assert_eq!(reached, (recorder, false));
}

#[test(needs(sandbox))]
async fn settings_of_a_message_to_an_existing_session_are_never_ignored() {
    let (_server, admin, project) = server_with_project("", json!({})).await;
    let spawn = async |more: Value| send(&admin, "session_spawn", &project, more).await;
    let (one, _) = spawn(json!({ "external_id": "one" })).await;
    let (two, spawned) = spawn(json!({ "external_id": "two" })).await;
    assert!(spawned && one != two);
    assert_eq!(
        spawn(json!({ "external_id": "one" })).await,
        (one.clone(), false)
    );
    assert_eq!(spawn(json!({})).await, (two.clone(), false));
    // What a session has by default counts as its own.
    assert_eq!(
        spawn(json!({ "autonomy": "high" })).await,
        (two.clone(), false)
    );
    for setting in [
        json!({ "autonomy": "low" }),
        json!({ "source": "chat" }),
        json!({ "agent_scope": "read" }),
    ] {
        let (new, spawned) = spawn(setting.clone()).await;
        assert!(spawned, "{setting}");
        assert_eq!(spawn(setting.clone()).await, (new, false), "{setting}");
    }
    for (name, value) in [
        ("autonomy", json!("low")),
        ("external_id", json!("two")),
        ("source", json!("chat")),
        ("agent_scope", json!("read")),
        ("agent", json!("recorder")),
        ("new_session", json!(true)),
        ("create_workspace", json!(true)),
        ("workspace_id", json!("elsewhere")),
    ] {
        let message = json!({ "session_id": one, "prompt": "/say hello", (name): value });
        let refused = admin.call("session_message", message).await;
        let text = refused.sentence();
        assert!(text.contains(&format!("`{name}`")), "{text}");
    }
    let same = json!({
        "session_id": one, "prompt": "/say hello", "external_id": "one", "autonomy_level": "high",
        "agent": "demo", "new_session": false,
        "workspace_id": admin.session(&one).await["workspace_id"],
    });
    admin.call("session_message", same).await.ok();
}
