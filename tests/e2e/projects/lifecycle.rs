//! Projects through the endpoint.

use serde_json::json;
use support::{Legacy, Server};

#[test]
async fn a_project_is_made_shown_changed_and_deleted_without_a_trace() {
    let server = Server::start();
    let admin = server.admin();
    let made = admin
        .call(
            "project",
            json!({ "action": "create", "name": "My app", "env": { "K": "hunter2" } }),
        )
        .await;
    let id = made.ok()["project_id"].as_str().unwrap().to_owned();
    assert_eq!(made.ok()["id"], made.ok()["project_id"]);
    assert!(server.workspace(&id).join(".git/HEAD").exists());

    let shown = admin.call("project_get", json!({ "project_id": id })).await;
    for (name, value) in made.ok().as_object().unwrap() {
        assert_eq!(&shown.ok()[name], value, "{name}");
    }
    assert_eq!(shown.ok()["container_status"], "stopped");
    assert_eq!(shown.ok()["env_names"], json!(["K"]));
    assert!(!shown.text.contains("hunter2"));

    let update = json!({ "project_id": id, "description": "new", "max_cost_usd": 3.5 });
    let updated = admin.call("project_update", update).await;
    assert_eq!(updated.ok()["description"], "new");
    assert_eq!(
        updated.ok()["env_names"],
        json!(["K"]),
        "what is not named stays"
    );
    let limits = admin
        .call("config_limits", json!({ "project_id": id }))
        .await;
    assert_eq!(
        limits.ok()["max_cost_usd"],
        json!({ "value": 3.5, "source": "project" })
    );
    assert_eq!(
        limits.ok()["max_recursion_depth"],
        json!({ "value": 3, "source": "default" })
    );

    let key = admin.token(&format!("project:{id}")).await;
    let deleted = admin
        .call("project_delete", json!({ "project_id": id }))
        .await;
    assert_eq!(deleted.ok()["tokens_revoked"], 1);
    assert_eq!(
        server
            .with_key(&key)
            .call("project_list", json!({}))
            .await
            .status,
        401
    );
    let gone = admin.call("project_get", json!({ "project_id": id })).await;
    assert!(gone.sentence().contains("not found"), "{}", gone.sentence());
    assert!(!server.home().join("projects").join(&id).exists());
    let left: Vec<_> = std::fs::read_dir(server.home().join("projects"))
        .unwrap()
        .collect();
    assert!(left.is_empty(), "{left:?}");
    admin.project("My app").await;
}

#[test]
async fn both_versions_of_the_protocol_return_the_same_result() {
    let server = Server::start();
    let modern = server.admin();
    let legacy = Legacy::connect(server.url(), &server.admin_key()).await;
    let id = modern.project("shared").await;
    let from_modern = modern
        .call("project_get", json!({ "project_id": id }))
        .await;
    let from_legacy = legacy
        .call("project_get", json!({ "project_id": id }))
        .await;
    assert_eq!(from_modern.ok(), from_legacy.ok());
    let text = from_legacy.body["result"]["content"][0]["text"]
        .as_str()
        .unwrap();
    let text: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!(&text, from_legacy.ok(), "the text content is the same JSON");
}
