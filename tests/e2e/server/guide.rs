//! What a model can learn from the server: instructions, prompts, the guide, and errors in its own words.

use serde_json::{Value, json};
use support::{Server, ServerOptions};

#[test]
async fn texts_have_the_names_of_the_tools_that_the_client_has() {
    for (style, spawn) in [
        ("unified", "`session` action `spawn`"),
        ("split", "`session_spawn`"),
    ] {
        let server = Server::start_with(ServerOptions {
            config: format!("[tools]\nstyle = \"{style}\"\n"),
            ..ServerOptions::default()
        });
        let admin = server.admin();
        let discovered = admin.send("server/discover", json!({})).await;
        let instructions = discovered.body["result"]["instructions"].as_str().unwrap();
        assert!(instructions.contains(spawn), "{instructions}");

        let listed = admin.send("prompts/list", json!({})).await;
        let prompts = listed.body["result"]["prompts"].as_array().unwrap();
        let names: Vec<&Value> = prompts.iter().map(|prompt| &prompt["name"]).collect();
        assert_eq!(names, ["delegate", "review", "parallel"]);
        let arguments = json!({ "project": "app", "task": "fix it" });
        let got = json!({ "name": "delegate", "arguments": arguments });
        let got = admin.send("prompts/get", got).await;
        let text = got.body["result"]["messages"][0]["content"]["text"]
            .as_str()
            .unwrap();
        assert!(text.contains("fix it") && text.contains(spawn), "{text}");
        let missing = admin
            .send("prompts/get", json!({ "name": "delegate" }))
            .await;
        assert_eq!(missing.code(), -32602, "{}", missing.text);

        let uri = "oubliette://guide";
        let resources = admin.send("resources/list", json!({})).await;
        assert!(resources.text.contains(uri), "{}", resources.text);
        let read = admin.send("resources/read", json!({ "uri": uri })).await;
        let guide = read.body["result"]["contents"][0]["text"].as_str().unwrap();
        assert!(guide.contains(spawn), "{guide}");
    }
}

#[test]
async fn errors_name_tools_as_the_client_calls_them() {
    let server = Server::start();
    let admin = server.admin();
    let missing = "00000000-0000-4000-8000-000000000000";
    let get = json!({ "action": "get", "project_id": missing });
    let unified = admin.call("project", get).await;
    let sentence = unified.sentence();
    assert!(sentence.contains("`project` action `list`"), "{sentence}");
    let split = admin
        .call("project_get", json!({ "project_id": missing }))
        .await;
    assert!(
        split.sentence().contains("`project_list`"),
        "{}",
        split.sentence()
    );
    // A tool of its own is the same in both styles.
    let own = json!({ "project_id": missing });
    let own = admin.call("project_changes", own).await;
    assert!(
        own.sentence().contains("`project` action `list`"),
        "{}",
        own.sentence()
    );

    let id = admin.project("taken").await;
    let again = admin
        .call("project", json!({ "action": "create", "name": "taken" }))
        .await;
    let sentence = again.sentence();
    assert!(
        sentence.starts_with("project already exists: `taken` has the id ")
            && sentence.contains(&id),
        "{sentence}"
    );
    let numbers = json!({ "action": "list", "limit": "many" });
    let numbers = admin.call("project", numbers).await;
    assert_eq!(
        numbers.sentence(),
        "parameter `limit` must be a whole number, 0 or more, not \"many\""
    );
}

#[test]
async fn a_token_made_with_admin_ro_is_shown_as_that() {
    let server = Server::start();
    let admin = server.admin();
    let made = json!({ "name": "viewer", "scope": "admin:ro" });
    let made = admin.call("token_create", made).await;
    assert_eq!(made.ok()["scope"], "admin:ro");
    let viewer = server.with_key(made.ok()["key"].as_str().unwrap());
    viewer.call("project_list", json!({})).await.ok();
    let refused = viewer.call("project_create", json!({ "name": "x" })).await;
    assert_eq!(refused.code(), -32002);
    assert!(
        refused.message().contains("`admin:ro`"),
        "{}",
        refused.message()
    );
    let tokens = admin.call("token_list", json!({})).await;
    let tokens = tokens.ok()["tokens"].as_array().unwrap();
    assert!(
        tokens.iter().any(|token| token["scope"] == "admin:ro"),
        "{tokens:?}"
    );

    // Where files are on the machine is for admins.
    let id = admin.project("one").await;
    let get = json!({ "project_id": id });
    let shown = admin.call("project_get", get.clone()).await.ok().clone();
    assert_eq!(shown["workspace_path"], "/workspace");
    assert_eq!(
        shown["host_path"],
        server.workspace(&id).display().to_string()
    );
    assert_eq!(shown["image"], Value::Null);
    let shown = viewer.call("project_get", get).await.ok().clone();
    assert_eq!(shown["host_path"], Value::Null);
}
