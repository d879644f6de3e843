//! Credentials that are a login file: in the home of one session, refreshed by its agent for its project,
//! and in nothing else.

use std::path::PathBuf;

use serde_json::{Value, json};
use support::{Server, run_cli, stderr};

use super::{files_with, project, run, scripted_server};

/// `auth.json` of Codex.
fn login(account: &str, token: &str, refreshed: &str) -> String {
    let tokens = json!({
        "id_token": format!("id-{token}"), "access_token": format!("access-{token}"),
        "refresh_token": format!("refresh-{token}"), "account_id": account,
    });
    let refreshed = format!("2026-01-01T00:00:{refreshed}Z");
    json!({ "OPENAI_API_KEY": null, "tokens": tokens, "last_refresh": refreshed }).to_string()
}

const SHOW: &str = "stat -c %a ~/.codex/auth.json; grep store ~/.codex/config.toml; \
                    tr a-z n-za-m < ~/.codex/auth.json; echo; cat ~/.codex/auth.json";

/// Replaces the login by another one.
fn refresh(text: &str) -> String {
    format!("cat > ~/.codex/auth.json <<'END'\n{text}\nEND\necho refreshed")
}

fn session_file(server: &Server, project: &str, session: &str) -> PathBuf {
    let project = server.home().join("projects").join(project);
    project
        .join("home/.sessions")
        .join(session)
        .join(".codex/auth.json")
}

async fn shown(server: &Server, project: &str) -> (String, String) {
    let (session, completion) = run(server, project, SHOW).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    (session, completion["text"].as_str().unwrap().to_owned())
}

#[test(needs(sandbox))]
async fn a_login_is_in_the_home_of_its_session_only_and_goes_with_it() {
    let server = scripted_server(&["codex"], "");
    let admin = server.admin();
    let value = login("me", "first", "01");
    let add = json!({ "name": "plan", "kind": "codex_auth", "value": value });
    admin.call("credential_add", add).await.ok();
    let one = project(&admin, "one", "codex", &["plan"]).await;
    let two = project(&admin, "two", "codex", &[]).await;

    let (session, text) = shown(&server, &one).await;
    assert!(
        text.starts_with("600cli_auth_credentials_store = file"),
        "{text}"
    );
    // It is there, and each of its tokens is hidden.
    assert!(text.contains("npprff-svefg"), "{text}");
    for token in ["id-first", "access-first", "refresh-first"] {
        assert!(!text.contains(token), "{text}");
        let elsewhere = files_with(server.home(), token);
        let file = session_file(&server, &one, &session);
        let mut expected = [
            server
                .home()
                .join("credentials/plan.json")
                .display()
                .to_string(),
            file.display().to_string(),
        ];
        let mut found = elsewhere;
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
    let (_, completion) = run(
        &server,
        &two,
        "ls ~/.codex; find / -name auth.json 2>/dev/null",
    )
    .await;
    let text = completion["text"].as_str().unwrap();
    assert!(!text.contains("auth.json"), "{text}");

    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup.tar");
    let saved = run_cli(server.home(), &["backup", backup.to_str().unwrap()]).await;
    assert!(saved.status.success(), "{}", stderr(&saved));
    assert_eq!(
        files_with(directory.path(), "refresh-first"),
        Vec::<String>::new()
    );
    assert_eq!(
        files_with(directory.path(), "cli_auth_credentials_store").len(),
        1
    );

    // Without its credential the next start of the same session has no login.
    admin
        .call("credential_remove", json!({ "name": "plan" }))
        .await
        .ok();
    let none = json!({ "project_id": one, "credential_refs": [] });
    admin.call("project_update", none).await.ok();
    let end = json!({ "session_id": session });
    admin.call("session_end", end).await.ok();
    std::fs::write(server.workspace(&one).join("do.sh"), "ls ~/.codex").unwrap();
    admin.message(&session, "again").await;
    let completion = admin.turn(&session, 2).await;
    let text = completion["text"].as_str().unwrap();
    assert!(
        text.contains("config.toml") && !text.contains("auth.json"),
        "{completion}"
    );
    assert_eq!(
        files_with(server.home(), "refresh-first"),
        Vec::<String>::new()
    );
}

#[test(needs(sandbox))]
async fn refreshed_tokens_are_kept_for_the_project_of_their_agent_alone() {
    let mut server = scripted_server(&["codex"], "");
    let admin = server.admin();
    let value = login("me", "first", "01");
    let add = json!({ "name": "plan", "kind": "codex_auth", "value": value });
    admin.call("credential_add", add.clone()).await.ok();
    let one = project(&admin, "one", "codex", &["plan"]).await;
    let two = project(&admin, "two", "codex", &["plan"]).await;

    let coded = |token: &str| match token {
        "first" => "npprff-svefg",
        "newer" => "npprff-arjre",
        _ => "npprff-arjrfg",
    };
    let (_, completion) = run(&server, &one, &refresh(&login("me", "newer", "02"))).await;
    assert_eq!(completion["text"], "refreshed", "{completion}");
    // Later agents of the project have it, also after a kill; it is hidden like the first.
    for _ in 0..2 {
        let (_, text) = shown(&server, &one).await;
        assert!(text.contains(coded("newer")), "{text}");
        assert!(!text.contains("access-newer"), "{text}");
        // What a container wrote is not given to another one.
        let (_, text) = shown(&server, &two).await;
        assert!(text.contains(coded("first")), "{text}");
        server.kill();
        server.start_again();
    }
    let admin = server.admin();
    // Not a newer login of the same account.
    let large = login("me", &"x".repeat(70_000), "09");
    for text in [
        login("other", "newest", "03"),
        login("me", "newest", "00"),
        "{".to_owned(),
        large,
    ] {
        run(&server, &one, &refresh(&text)).await;
        let (_, text) = shown(&server, &one).await;
        assert!(text.contains(coded("newer")), "{text}");
    }
    let linked = "ln -sf /etc/hostname ~/.codex/auth.json; echo linked";
    let (_, completion) = run(&server, &one, linked).await;
    assert_eq!(completion["text"], "linked", "{completion}");
    let (_, text) = shown(&server, &one).await;
    assert!(text.contains(coded("newer")), "{text}");

    // A credential that is added again is the newest login.
    admin.call("credential_add", add).await.ok();
    let (_, text) = shown(&server, &one).await;
    assert!(text.contains(coded("first")), "{text}");
    run(&server, &one, &refresh(&login("me", "newer", "02"))).await;
    let refreshed = server.home().join("credentials/refreshed");
    assert_eq!(files_with(&refreshed, "refresh-newer").len(), 1);
    admin
        .call("project_delete", json!({ "project_id": one }))
        .await
        .ok();
    assert_eq!(
        files_with(server.home(), "refresh-newer"),
        Vec::<String>::new()
    );
}

#[test(needs(sandbox))]
async fn a_login_is_used_instead_of_a_key() {
    let server = scripted_server(&["codex"], "");
    let admin = server.admin();
    let add = |name: &str, kind: &str, value: Value| json!({ "name": name, "kind": kind, "value": value });
    let plan = add("plan", "codex_auth", login("me", "first", "01").into());
    admin.call("credential_add", plan).await.ok();
    let key = add("key", "openai", "sk-openai-0123456789".into());
    admin.call("credential_add", key).await.ok();
    let both = project(&admin, "both", "codex", &["key", "plan"]).await;
    let script = "ls ~/.codex; env | grep -c OPENAI_API_KEY";
    let (_, completion) = run(&server, &both, script).await;
    let text = completion["text"].as_str().unwrap();
    assert!(
        text.contains("auth.json") && text.ends_with('0'),
        "{completion}"
    );
}
