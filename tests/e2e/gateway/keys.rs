//! What a placeholder stands for, where, and how long.

use serde_json::json;

use super::{ASK, KEY, add_credential, keys_of, policy_project, run, run_again, start};
use crate::credentials::scripted_server;
use support::{Llm, eventually};

const WAIT: std::time::Duration = std::time::Duration::from_secs(30);

#[test(needs(sandbox))]
async fn an_agent_has_a_placeholder_and_the_model_gets_the_key() {
    let (server, llm, _admin, project) = start().await;
    let show = "echo key=$ANTHROPIC_API_KEY= url=$ANTHROPIC_BASE_URL= ${#ANTHROPIC_API_KEY}";
    let (_, text) = run(&server, &project, &format!("{show}; {ASK}")).await;
    // Placeholders are redacted as keys are.
    assert!(
        text.contains("key=oub_****=") && !text.contains(KEY),
        "{text}"
    );
    assert!(
        text.contains("url=http://127.0.0.1:3129/anthropic= 47"),
        "{text}"
    );
    assert!(
        text.contains("hello") && text.contains("status 200"),
        "{text}"
    );
    assert_eq!(keys_of(&llm), [KEY]);
    let log = server
        .admin()
        .call("network_log", json!({ "project_id": project }))
        .await;
    let log = log.ok().to_string();
    assert!(
        log.contains("\"gateway\"") && !log.contains("messages"),
        "{log}"
    );
}

#[test(needs(sandbox))]
async fn a_placeholder_works_only_in_its_container_and_while_its_agent_runs() {
    let (server, llm, admin, project) = start().await;
    let (session, _) = run(
        &server,
        &project,
        "printf %s \"$ANTHROPIC_API_KEY\" > key; true",
    )
    .await;
    let key = std::fs::read_to_string(server.workspace(&project).join("key")).unwrap();
    assert!(key.starts_with("oub_"), "{key}");
    let ask = format!(
        "export ANTHROPIC_API_KEY={key} ANTHROPIC_BASE_URL=http://127.0.0.1:3129/anthropic; {ASK}"
    );
    // Another process of the same container may use it: it can read what the agent can.
    let same = admin.exec(&project, ask.as_str()).await;
    assert!(
        same["stdout"].as_str().unwrap().ends_with("status 200"),
        "{same}"
    );
    let other = policy_project(&admin, "two", "claude", "work").await;
    let foreign = admin.exec(&other, ask.as_str()).await;
    assert!(
        foreign["stdout"].as_str().unwrap().ends_with("status 401"),
        "{foreign}"
    );
    let real = format!(
        "export ANTHROPIC_API_KEY={KEY} ANTHROPIC_BASE_URL=http://127.0.0.1:3129/anthropic; {ASK}"
    );
    let guessed = admin.exec(&project, real.as_str()).await;
    assert!(
        guessed["stdout"].as_str().unwrap().ends_with("status 401"),
        "{guessed}"
    );
    admin
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok();
    let ended = eventually(WAIT, async || {
        let after = admin.exec(&project, ask.as_str()).await;
        after["stdout"].as_str().unwrap().ends_with("status 401")
    });
    assert!(ended.await);
    assert!(keys_of(&llm).iter().all(|key| key == KEY));
}

#[test(needs(sandbox))]
async fn a_changed_credential_is_used_at_once_and_a_removed_one_no_more() {
    let (server, llm, admin, project) = start().await;
    let (session, text) = run(&server, &project, ASK).await;
    assert!(text.ends_with("status 200"), "{text}");
    let second = "sk-second-0123456789abcdef";
    add_credential(&admin, "work", "anthropic", second, &llm.base()).await;
    let changed = eventually(WAIT, async || {
        let turn = admin.session(&session).await["turns"].as_u64().unwrap() as usize + 1;
        run_again(&server, &project, &session, turn, ASK).await;
        keys_of(&llm).last().is_some_and(|key| key == second)
    });
    assert!(changed.await, "{:?}", keys_of(&llm));
    let turns = admin.session(&session).await["turns"].as_u64().unwrap() as usize;
    let none = json!({ "project_id": project, "credential_refs": [] });
    admin.call("project_update", none).await.ok();
    let mut turn = turns;
    let removed = eventually(WAIT, async || {
        turn += 1;
        run_again(&server, &project, &session, turn, ASK)
            .await
            .ends_with("status 401")
    });
    assert!(removed.await);
}

#[test(needs(sandbox))]
async fn the_token_of_a_subscription_is_swapped_too() {
    let (server, llm, admin, _) = start().await;
    let token = "sk-ant-oat01-0123456789abcdef";
    add_credential(&admin, "sub", "claude_oauth", token, &llm.base()).await;
    let project = policy_project(&admin, "sub", "claude", "sub").await;
    let ask = "env | grep -c sk-ant-oat; curl -sS -m 60 -o /dev/null -w ' status %{http_code}' \
               $ANTHROPIC_BASE_URL/v1/messages -H \"Authorization: Bearer $CLAUDE_CODE_OAUTH_TOKEN\" -d '{}'";
    let (_, text) = run(&server, &project, ask).await;
    assert!(text.starts_with("0 status"), "{text}");
    assert_eq!(keys_of(&llm), [token]);
}

#[test(needs(sandbox))]
async fn with_the_network_of_the_host_the_agent_has_the_key_itself() {
    let (server, llm) = (scripted_server(&["claude"], ""), Llm::start());
    let admin = server.admin();
    add_credential(&admin, "work", "anthropic", KEY, &llm.base()).await;
    let made =
        json!({ "name": "one", "agent": "claude", "network": "host", "credential_refs": ["work"] });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let show = "echo ${#ANTHROPIC_API_KEY} $ANTHROPIC_BASE_URL";
    let (_, text) = run(&server, &project, show).await;
    assert_eq!(text, format!("{} {}", KEY.len(), llm.base()));
}

#[test(needs(sandbox))]
async fn a_program_that_asks_for_the_end_of_the_connection_gets_the_whole_answer() {
    let (server, llm, _admin, project) = start().await;
    let closing = ASK.replace("-sS", "-sS -H 'Connection: close'");
    let script = format!("for i in 1 2 3 4 5 6 7 8 9 10; do {closing} || echo broken; done");
    let (_, text) = run(&server, &project, &script).await;
    assert!(!text.contains("broken"), "{text}");
    assert_eq!(text.matches("status 200").count(), 10, "{text}");
    assert_eq!(llm.requests().len(), 10);
}

#[test(needs(sandbox))]
async fn an_address_in_the_environment_is_not_passed_over_in_silence() {
    let (server, llm, admin, project) = start().await;
    let credential = json!({ "name": "work", "kind": "anthropic", "value": KEY });
    admin.call("credential_add", credential).await.ok();
    let set_address = async |address: &str| {
        let update = json!({ "project_id": project, "env": { "ANTHROPIC_BASE_URL": address } });
        admin.call("project_update", update).await.ok();
    };
    set_address(&llm.base()).await;
    let (_, completion) = crate::credentials::run(&server, &project, "echo ran").await;
    let error = completion["error"].as_str().unwrap_or_default();
    assert!(
        error.contains("`ANTHROPIC_BASE_URL` in the `env`") && error.contains("--base-url URL"),
        "{completion}"
    );
    assert!(!error.contains(&llm.base()), "{completion}");
    // The provider's own address says the same as the credential does.
    set_address("https://api.anthropic.com/v1").await;
    let (_, text) = run(&server, &project, "echo $ANTHROPIC_BASE_URL").await;
    assert!(text.contains("http://127.0.0.1:3129/anthropic"), "{text}");
    // So does an address that the credential has itself.
    add_credential(&admin, "work", "anthropic", KEY, &llm.base()).await;
    set_address("https://elsewhere.example.com").await;
    let (_, text) = run(&server, &project, ASK).await;
    assert!(text.contains("status 200"), "{text}");
    assert_eq!(keys_of(&llm), [KEY]);
}
