//! Names, and beginnings of ids, instead of ids.

use serde_json::{Value, json};
use support::{Modern, Server, ServerOptions};

async fn ok(caller: &Modern, tool: &str, arguments: Value) -> Value {
    caller.call(tool, arguments).await.ok().clone()
}

#[test(needs(sandbox))]
async fn names_and_beginnings_of_ids_are_taken_wherever_ids_are() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let id = admin.project("My app").await;
    for name in ["My app", &id[..4], &id[..13], &id.to_uppercase()[..8], &id] {
        let found = ok(&admin, "project_get", json!({ "project_id": name })).await;
        assert_eq!(found["project_id"], id.as_str(), "{name}");
    }
    let spawn = json!({ "project_id": "My app", "prompt": "/say hi", "wait_seconds": 50 });
    let session = ok(&admin, "session_spawn", spawn).await["session_id"].clone();
    let session = session.as_str().unwrap();
    let digits = session.strip_prefix("gogol_").unwrap();
    for name in [&session[..10], &digits[..4], &digits[..20], session] {
        let found = ok(&admin, "session_get", json!({ "session_id": name })).await;
        assert_eq!(found["session_id"], session, "{name}");
    }
    let children = json!({ "parent_id": &digits[..8], "project_id": "My app" });
    assert_eq!(
        ok(&admin, "session_list", children).await["sessions"],
        json!([])
    );

    // Workspaces: a beginning finds one, and a new one has exactly the given name.
    let made = json!({ "project_id": "My app", "workspace_id": "feature-one" });
    ok(&admin, "workspace_create", made).await;
    let exec = json!({ "project_id": "My app", "workspace_id": "feat", "command": "pwd" });
    let ran = ok(&admin, "container_exec", exec).await;
    assert_eq!(ran["stdout"], "/workspaces/feature-one\n");
    let new = json!({ "project_id": "My app", "workspace_id": "feat", "command": "pwd",
        "create_workspace": true });
    let ran = ok(&admin, "container_exec", new).await;
    assert_eq!(ran["stdout"], "/workspaces/feat\n");
    let from =
        json!({ "project_id": "My app", "workspace_id": "feature-two", "from": "feature-o" });
    ok(&admin, "workspace_create", from).await;
    let several = json!({ "project_id": "My app", "workspace_id": "feature", "command": "pwd" });
    let several = admin.call("container_exec", several).await;
    let sentence = several.sentence();
    assert!(
        sentence.contains("`feature-one`") && sentence.contains("`feature-two`"),
        "{sentence}"
    );

    // Schedules and tokens, whose names are not unique, and scopes and targets.
    let schedule = json!({ "name": "nightly", "cron_expr": "@daily", "prompt": "x",
        "targets": [{ "project_id": "My app", "workspace_id": "feature-o" }] });
    let first = ok(&admin, "schedule_create", schedule.clone()).await;
    assert_eq!(first["targets"][0]["project_id"], id.as_str());
    assert_eq!(first["targets"][0]["workspace_id"], "feature-one");
    let found = ok(&admin, "schedule_get", json!({ "schedule_id": "nightly" })).await;
    assert_eq!(found["schedule_id"], first["schedule_id"]);
    let second = ok(&admin, "schedule_create", schedule).await;
    let both = admin
        .call("schedule_get", json!({ "schedule_id": "nightly" }))
        .await;
    let sentence = both.sentence();
    for schedule in [&first, &second] {
        assert!(
            sentence.contains(schedule["schedule_id"].as_str().unwrap()),
            "{sentence}"
        );
    }
    let prefix = &second["schedule_id"].as_str().unwrap()[..9];
    ok(&admin, "schedule_delete", json!({ "schedule_id": prefix })).await;
    let token = json!({ "name": "ci", "scope": "project:My app:ro" });
    let token = ok(&admin, "token_create", token).await;
    assert_eq!(token["scope"], format!("project:{id}:ro"));
    let audit = ok(&admin, "audit_list", json!({ "token_id": "ci" })).await;
    assert_eq!(audit["entries"], json!([]));
    ok(&admin, "token_revoke", json!({ "token_id": "ci" })).await;
    let again = admin
        .call("token_revoke", json!({ "token_id": "ci" }))
        .await;
    assert!(
        again.sentence().contains("already been revoked"),
        "{}",
        again.sentence()
    );

    // What is near is named.
    let near = admin
        .call("project_get", json!({ "project_id": "My ap" }))
        .await;
    assert_eq!(
        near.sentence(),
        "project `My ap` not found; did you mean `My app`?"
    );
    for (tool, parameter, text) in [
        ("session_get", "session_id", "gogol_zz"),
        ("session_get", "session_id", "abc"),
        ("project_get", "project_id", "0"),
        ("schedule_get", "schedule_id", "zzzz"),
        ("token_revoke", "token_id", "zzzz"),
    ] {
        let refused = admin.call(tool, json!({ (parameter): text })).await;
        assert!(refused.is_error(), "{tool} {text}: {}", refused.text);
    }
}

#[test]
async fn several_projects_that_match_are_listed() {
    let server = Server::start();
    let admin = server.admin();
    let one = admin.project("one").await;
    // A name that is the beginning of another project's id.
    let name = &one[..6];
    let other = admin.project(name).await;
    let both = admin
        .call("project_get", json!({ "project_id": name }))
        .await;
    let sentence = both.sentence();
    assert!(sentence.starts_with("2 projects match"), "{sentence}");
    assert!(
        sentence.contains(&one) && sentence.contains(&other),
        "{sentence}"
    );
    ok(&admin, "project_get", json!({ "project_id": &one[..7] })).await;
}

/// For every operation that takes an id: what exists elsewhere gives the same answer as what does not exist.
#[test(needs(sandbox))]
async fn a_project_token_cannot_tell_a_foreign_name_from_a_missing_one() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let own = admin.project("own").await;
    let foreign = admin.project("foreign").await;
    let spawn = json!({ "project_id": "foreign", "prompt": "/say hi", "wait_seconds": 50 });
    let session = ok(&admin, "session_spawn", spawn).await["session_id"].clone();
    let session = session.as_str().unwrap().to_owned();
    let schedule = json!({ "name": "theirs", "cron_expr": "@daily", "prompt": "x",
        "targets": [{ "project_id": "foreign" }] });
    let schedule = ok(&admin, "schedule_create", schedule).await;
    let schedule = schedule["schedule_id"].as_str().unwrap();
    let token = server.with_key(&admin.token(&format!("project:{own}")).await);
    ok(&token, "project_get", json!({ "project_id": "own" })).await;
    for (tool, parameter, exists, missing) in [
        ("project_get", "project_id", "foreign", "foreigm"),
        ("project_get", "project_id", &foreign[..8], "00000000"),
        ("session_list", "project_id", "foreign", "foreigm"),
        ("session_get", "session_id", &session[..12], "gogol_000000"),
        ("session_events", "session_id", &session[6..12], "000000"),
        ("schedule_get", "schedule_id", "theirs", "theirz"),
        ("schedule_get", "schedule_id", &schedule[..8], "00000000"),
    ] {
        let seen = token.call(tool, json!({ (parameter): exists })).await;
        let unseen = token.call(tool, json!({ (parameter): missing })).await;
        assert_eq!(
            seen.sentence().replace(exists, "X"),
            unseen.sentence().replace(missing, "X"),
            "{tool}"
        );
    }
    // Also where the beginning of a name fits several workspaces.
    for name in ["feature-one", "feature-two"] {
        let create = json!({ "project_id": foreign, "workspace_id": name });
        ok(&admin, "workspace_create", create).await;
    }
    let absent = "00000000-0000-4000-8000-000000000000";
    let answer = async |project: &str| {
        let call = json!({ "project_id": project, "workspace_id": "feat", "command": "true" });
        let refused = token.call("container_exec", call).await;
        refused.sentence().replace(project, "X")
    };
    assert_eq!(answer(&foreign).await, answer(absent).await);
}

#[test]
async fn a_second_token_with_a_name_says_so_with_the_id_of_the_first() {
    let server = Server::start();
    let admin = server.admin();
    let create = json!({ "name": "ci", "scope": "read" });
    let first = ok(&admin, "token_create", create.clone()).await;
    assert_eq!(first.get("warnings"), None, "{first}");
    let second = ok(&admin, "token_create", create.clone()).await;
    let warning = second["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains("another valid token has the name `ci`, too")
            && warning.contains(first["token_id"].as_str().unwrap()),
        "{warning}"
    );
    // One that is revoked is no other.
    for token in [&first, &second] {
        let revoke = json!({ "token_id": token["token_id"] });
        ok(&admin, "token_revoke", revoke).await;
    }
    let third = ok(&admin, "token_create", create).await;
    assert_eq!(third.get("warnings"), None, "{third}");
}

#[test]
async fn a_call_without_an_id_names_the_tool_and_where_ids_are() {
    let server = Server::start();
    let admin = server.admin();
    for (tool, arguments, expected) in [
        (
            "session_diff",
            json!({}),
            "missing parameter `session_id` of `session_diff`: Session id, or the start of it; `session_list` shows \
             them",
        ),
        (
            "session",
            json!({ "action": "diff" }),
            "missing parameter `session_id` of `session` action `diff`: Session id, or the start of it; `session` \
             action `list` shows them",
        ),
    ] {
        let refused = admin.call(tool, arguments).await;
        assert_eq!(refused.sentence(), expected, "{tool}");
    }
}
