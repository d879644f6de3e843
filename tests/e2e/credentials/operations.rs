//! The operations: a credential is used at once, its value is shown nowhere, and what is wrong is refused.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use support::{Relay, Server, run_cli, stderr};

use super::{files_with, project, run, scripted_server};
use crate::agents::oubliette_tools::{call, recorder, server_with_project};
use crate::documents::install_demo_as;

const FIRST: &str = "sk-ant-first-0123456789";
const SECOND: &str = "sk-ant-second-9876543210";
/// A network in which agents get the keys themselves, so that they can say which.
const DIRECT: &str = "[network]\ndefault = \"host\"\n";
const CODED: &str =
    "echo \"$ANTHROPIC_API_KEY\" | tr a-z n-za-m; echo \" $ANTHROPIC_BASE_URL $ANTHROPIC_API_KEY\"";

/// The letters as `tr a-z n-za-m` writes them.
fn coded(text: &str) -> String {
    let shift = |c: char| match c {
        'a'..='m' => char::from(c as u8 + 13),
        'n'..='z' => char::from(c as u8 - 13),
        other => other,
    };
    text.chars().map(shift).collect()
}

fn key(value: &str) -> Value {
    json!({ "name": "work", "kind": "anthropic", "value": value })
}

fn text(completion: &Value) -> &str {
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    completion["text"].as_str().unwrap()
}

#[test(needs(sandbox))]
async fn a_credential_is_used_without_a_restart_and_its_value_is_shown_nowhere() {
    let more = format!(
        "{DIRECT}[credentials.old]\nkind = \"openai\"\nvalue = \"sk-of-the-configuration\"\n"
    );
    let mut server = scripted_server(&["claude"], &more);
    let admin = server.admin();
    let mut add = key(&format!(" {FIRST}\n"));
    add["base_url"] = json!("https://gateway.example.com/v1");
    let added = admin.call("credential_add", add).await;
    let agents = json!(["claude", "copilot", "opencode"]);
    let expected =
        json!({ "name": "work", "kind": "anthropic", "replaced": false, "agents": agents });
    assert_eq!(*added.ok(), expected);
    let one = project(&admin, "one", "claude", &["work"]).await;

    let (session, completion) = run(&server, &one, CODED).await;
    let expected = format!("{} https://gateway.example.com [redacted]", coded(FIRST));
    assert_eq!(text(&completion), expected);

    // The agent that runs does not get a new value, but does not get it into its log either.
    let replaced = admin.call("credential_add", key(SECOND)).await;
    assert_eq!(replaced.ok()["replaced"], true);
    // In two parts: checkpoints keep the files of the workspace.
    let (start, end) = SECOND.split_at(10);
    let script = format!("{CODED}; echo {start}''{end}");
    std::fs::write(server.workspace(&one).join("do.sh"), script).unwrap();
    admin.message(&session, "go").await;
    let completion = admin.turn(&session, 2).await;
    let shown = text(&completion);
    assert!(shown.starts_with(&coded(FIRST)), "{shown}");
    assert!(shown.ends_with("[redacted][redacted]"), "{shown}");

    server.kill();
    server.start_again();
    let admin = server.admin();
    let (_, completion) = run(&server, &one, CODED).await;
    assert_eq!(text(&completion), format!("{}  [redacted]", coded(SECOND)));

    let listed = admin.call("credential_list", json!({})).await;
    let expected = json!([
        { "name": "old", "kind": "openai", "source": "config", "projects": [] },
        { "name": "work", "kind": "anthropic", "source": "stored", "projects": ["one"] },
    ]);
    assert_eq!(listed.ok()["credentials"], expected);

    let home = server.home().to_owned();
    let file = home.join("credentials/work.json");
    assert_eq!(files_with(&home, SECOND), [file.display().to_string()]);
    assert_eq!(files_with(&home, FIRST), Vec::<String>::new());
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(file.parent().unwrap()), 0o700);
    for value in [FIRST, SECOND] {
        assert!(!server.log().contains(value));
    }
    let audit = json!({ "operation": "credential_add" });
    let audit = admin.call("audit_list", audit).await;
    assert_eq!(audit.ok()["entries"].as_array().unwrap().len(), 2);
    let options = admin.call("project_options", json!({})).await;
    for reply in [&added, &replaced, &listed, &audit, &options] {
        assert!(!reply.text.contains("sk-ant-"), "{}", reply.text);
    }
    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup.tar");
    let saved = run_cli(&home, &["backup", backup.to_str().unwrap()]).await;
    assert!(saved.status.success(), "{}", stderr(&saved));
    for value in [FIRST, SECOND] {
        assert_eq!(files_with(directory.path(), value), Vec::<String>::new());
    }
}

#[test(needs(sandbox))]
async fn a_removed_credential_is_named_by_the_agents_that_need_it() {
    let more = format!(
        "{DIRECT}[credentials.old]\nkind = \"anthropic\"\nvalue = \"sk-of-the-configuration\"\n"
    );
    let server = scripted_server(&["claude"], &more);
    let admin = server.admin();
    admin.call("credential_add", key(FIRST)).await.ok();
    let one = project(&admin, "one", "claude", &["work"]).await;
    let two = project(&admin, "two", "claude", &[]).await;

    // A credential of one project is in no other.
    let (_, completion) = run(&server, &two, "env").await;
    assert!(!text(&completion).contains("ANTHROPIC"), "{completion}");
    let scope = format!("project:{two}");
    let narrow = server.with_key(&admin.token(&scope).await);
    let options = narrow.call("project_options", json!({})).await;
    assert_eq!(options.ok()["accounts"], json!([]));
    let scope = format!("project:{one}");
    let narrow = server.with_key(&admin.token(&scope).await);
    let options = narrow.call("project_options", json!({})).await;
    let own = json!([{ "name": "work", "kind": "anthropic" }]);
    assert_eq!(options.ok()["accounts"], own);

    for (operation, parameters) in [
        ("credential_remove", json!({ "name": "old" })),
        (
            "credential_add",
            json!({ "name": "old", "kind": "anthropic", "value": SECOND }),
        ),
    ] {
        let refused = admin.call(operation, parameters).await;
        let sentence = refused.sentence();
        assert!(sentence.contains("server's configuration"), "{sentence}");
    }
    let removed = json!({ "name": "work" });
    let removed = admin.call("credential_remove", removed.clone()).await;
    let expected = json!({ "name": "work", "removed": true, "projects": ["one"] });
    assert_eq!(*removed.ok(), expected);
    assert_eq!(files_with(server.home(), FIRST), Vec::<String>::new());
    let (_, completion) = run(&server, &one, "echo").await;
    assert_eq!(completion["stop_reason"], "error");
    let error = completion["error"].as_str().unwrap();
    assert!(
        error.contains("the credential `work` of the project does not exist"),
        "{error}"
    );
    assert!(error.contains("oubliette credential add"), "{error}");
    let missing = admin
        .call("credential_remove", json!({ "name": "work" }))
        .await;
    assert!(missing.sentence().contains("credential `work` not found"));

    // A reference is read when an agent starts.
    let path = server.home().join("a-key");
    let add = json!({ "name": "work", "kind": "anthropic", "file": path });
    admin.call("credential_add", add).await.ok();
    let (_, completion) = run(&server, &one, "echo").await;
    let error = completion["error"].as_str().unwrap();
    assert!(
        error.contains("the credential `work` cannot be used: the file"),
        "{error}"
    );
    let listed = admin.call("credential_list", json!({})).await;
    let problem = listed.ok()["credentials"][1]["problem"].clone();
    assert!(problem.as_str().unwrap().contains("cannot be read"));
    std::fs::write(&path, format!("{SECOND}\n")).unwrap();
    let (_, completion) = run(&server, &one, CODED).await;
    assert_eq!(text(&completion), format!("{}  [redacted]", coded(SECOND)));
}

#[test]
async fn what_is_wrong_is_refused_and_no_error_repeats_a_value() {
    let server = Server::start();
    let admin = server.admin();
    let long = "hunter2-".repeat(10_000);
    let good = json!({ "name": "work", "kind": "anthropic", "value": "sk-ant-hunter2-0123" });
    let with = |name: &str, value: Value| {
        let mut parameters = good.clone();
        parameters[name] = value;
        parameters
    };
    for (parameters, expected) in [
        (with("name", json!("../work")), "is not a name"),
        (with("name", json!("x".repeat(65))), "is not a name"),
        (with("kind", json!("antropic")), "did you mean `anthropic`?"),
        (with("kind", json!("nonsense")), "the kinds are"),
        (with("env", json!("KEY")), "exactly one of"),
        (with("value", json!(null)), "exactly one of"),
        (with("value", json!("")), "less than 8 bytes"),
        (with("value", json!("hunter2")), "less than 8 bytes"),
        (
            with("value", json!(["sk-ant-hunter2-0123"])),
            "parameter `value`",
        ),
        (with("value", json!("sk-hunter2\nsk-hunter2")), "one line"),
        (with("value", json!(long)), "more than 64 KiB"),
        (with("kind", json!("codex_auth")), "`codex login`"),
        (with("kind", json!("ssh_key")), "-----BEGIN "),
        (
            with("username", json!("me")),
            "only for credentials of the kind `git`",
        ),
        (with("base_url", json!("ftp://x")), "https:// or http://"),
        (
            with("base_url", json!("https://me:hunter2@x")),
            "user name or password",
        ),
        (
            json!({ "name": "f", "kind": "factory", "value": "fk-hunter2", "base_url": "https://x" }),
            "customModels",
        ),
        (
            json!({ "name": "f", "kind": "openai", "file": "hunter2" }),
            "absolute path",
        ),
        (
            json!({ "name": "f", "kind": "openai", "env": "sk-hunter2" }),
            "not a value",
        ),
    ] {
        let refused = admin.call("credential_add", parameters).await;
        assert!(refused.is_error(), "{expected}");
        let sentence = refused.sentence();
        assert!(sentence.contains(expected), "{sentence}");
        assert!(!sentence.contains("hunter2"), "{sentence}");
    }
    let listed = admin.call("credential_list", json!({})).await;
    assert_eq!(listed.ok()["credentials"], json!([]));
    assert_eq!(files_with(server.home(), "hunter2"), Vec::<String>::new());
    assert!(!server.log().contains("hunter2"));
    for n in 0..200 {
        let add = with("name", json!(format!("n{n}")));
        admin.call("credential_add", add).await.ok();
    }
    let full = admin.call("credential_add", good.clone()).await;
    assert!(full.sentence().contains("200 stored credentials already"));
    admin
        .call("credential_add", with("name", json!("n7")))
        .await
        .ok();
}

#[test(needs(sandbox))]
async fn an_agent_with_an_admin_key_cannot_read_files_of_the_server_by_a_reference() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = crate::agents::oubliette_tools::project(&admin, "two", json!({})).await;
    let keys = recorder(&server, &admin, &two, json!({ "agent_scope": "admin" })).await;
    let minted = keys.api_key.clone().unwrap();
    let mut relay = Relay::attached(&server, &two, &keys).await;
    let file = server.home().join("admin.token");
    for reference in [
        json!({ "name": "x", "kind": "openai", "file": file }),
        json!({ "name": "x", "kind": "openai", "env": "HOME" }),
    ] {
        let refused = call(&mut relay, &minted, "credential_add", reference).await;
        assert_eq!(refused["error"]["code"], -32002, "{refused}");
    }
    let value = json!({ "name": "x", "kind": "openai", "value": "sk-0123456789" });
    let added = call(&mut relay, &minted, "credential_add", value).await;
    assert_eq!(added["result"]["isError"], false, "{added}");
}

#[test(needs(sandbox))]
async fn an_agent_that_needs_a_credential_and_has_none_is_started_with_a_hint() {
    let server = scripted_server(&[], "");
    let admin = server.admin();
    install_demo_as(server.home(), "claude");
    install_demo_as(server.home(), "opencode");
    let spawn = async |project: &str, more: Value| {
        let mut call = json!({ "project_id": project, "prompt": "/say hi", "new_session": true });
        call.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        admin.call("session_spawn", call).await.ok()["warnings"].clone()
    };
    let made = json!({ "name": "my app", "agent": "claude" });
    admin.call("project_create", made).await.ok();
    let warnings = spawn("my app", json!({})).await;
    assert_eq!(
        warnings,
        json!([
            "the project has no credential for its agent; the agent `claude` signs in with a credential of kind \
                `anthropic` or `claude_oauth`: add one with `oubliette credential add claude --kind anthropic`, and \
                its name to the project with `oubliette project update 'my app' --credential-refs claude`"
        ])
    );
    // Those that work without one, or have a key in another way, do not need the hint.
    for agent in ["demo", "opencode"] {
        assert_eq!(
            spawn("my app", json!({ "agent": agent })).await,
            Value::Null
        );
    }
    let with_key = json!({ "name": "key", "agent": "claude", "env": { "ANTHROPIC_API_KEY": "sk-1234567890" } });
    admin.call("project_create", with_key).await.ok();
    assert_eq!(spawn("key", json!({})).await, Value::Null);
    let add = json!({ "name": "claude", "kind": "anthropic", "value": "sk-ant-0123456789" });
    admin.call("credential_add", add).await.ok();
    let update = json!({ "project_id": "my app", "credential_refs": ["claude"] });
    admin.call("project_update", update).await.ok();
    assert_eq!(spawn("my app", json!({})).await, Value::Null);
}
