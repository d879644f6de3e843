//! Pushes that the project does not allow, and requests that are none of git.

use serde_json::json;
use support::eventually;

use super::{CLONE, HEADER, TOKEN, WAIT, World};
use crate::gateway::run_again;

#[test(needs(root, sandbox), limit = 240)]
async fn a_push_to_other_refs_is_refused_with_a_sentence_and_an_event() {
    let world = World::start().await;
    let before = world.branches();
    let script = format!("{CLONE} git push origin work:main 2>&1; echo exit $?");
    let (session, text) = world.run(&script).await;
    for expected in [
        "Oubliette: the project does not allow to push to refs/heads/main, only to refs/heads/oubliette/*.",
        "[remote rejected] work -> main (not allowed, only refs/heads/oubliette/*)",
        "exit 1",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let mut turn = 1;
    for (push, ref_name) in [
        ("-f origin work:main", "main"),
        ("origin :main", "main"),
        ("origin work:refs/tags/v1", "v1"),
        ("origin work:refs/for/main", "refs/for/main"),
        ("origin work:oubliette/x work:main", "main"),
        ("--atomic origin work:oubliette/x work:main", "main"),
        ("--mirror origin", "main"),
        ("--tags --follow-tags origin work:refs/tags/v2", "v2"),
        ("--porcelain origin +work:main", "main"),
        ("--receive-pack=git-receive-pack origin work:main", "main"),
    ] {
        turn += 1;
        let script = format!("cd app; git push {push} 2>&1; echo exit $?");
        let text = run_again(&world.server, &world.project, &session, turn, &script).await;
        assert!(
            text.contains("not allowed, only refs/heads/oubliette/*"),
            "{push}: {text}"
        );
        assert!(
            text.contains(ref_name) && text.ends_with("exit 1"),
            "{push}: {text}"
        );
    }
    // A large one, which git sends in pieces, is refused as well.
    turn += 1;
    let script = "cd app; head -c 3000000 /dev/urandom > big; git add .; git commit -qm big; \
                  git push origin work:main 2>&1; echo exit $?";
    let text = run_again(&world.server, &world.project, &session, turn, script).await;
    assert!(text.contains("not allowed, only"), "{text}");
    // A host may do more for a push option than the list of refs says.
    turn += 1;
    let script =
        "cd app; git push -o merge_request.create origin work:oubliette/x 2>&1; echo exit $?";
    let text = run_again(&world.server, &world.project, &session, turn, script).await;
    let expected = "[remote rejected] work -> oubliette/x (push options are not allowed)";
    assert!(
        text.contains(expected) && text.ends_with("exit 1"),
        "{text}"
    );
    assert_eq!(world.branches(), before);
    let pushes = world.pushes();
    assert!(pushes.iter().all(|bytes| *bytes == 4), "{pushes:?}");
    let log = world.admin.log(&session).await;
    let denied = log.iter().find(|event| event["type"] == "network_denied");
    let denied = denied.unwrap_or_else(|| panic!("{log:?}"));
    assert_eq!(
        (&denied["host"], &denied["port"]),
        (&json!("git.test"), &json!(443))
    );
    assert!(
        denied["reason"].as_str().unwrap().contains("push_branches"),
        "{denied}"
    );
    let log = json!({ "project_id": world.project });
    let log = world.admin.call("network_log", log).await.ok().to_string();
    assert!(
        log.contains("\"denied\"") && log.contains("git push with push options"),
        "{log}"
    );
    assert!(!log.contains("acme") && !log.contains("refs/"), "{log}");
    // What the project allows from now on works in the session that runs.
    let change = json!({ "project_id": world.project, "push_branches": ["main"] });
    world.admin.call("project_update", change).await.ok();
    let script = "cd app; git push origin work:main 2>&1; echo exit $?";
    let pushed = eventually(WAIT, async || {
        turn += 1;
        let text = run_again(&world.server, &world.project, &session, turn, script).await;
        text.ends_with("exit 0")
    });
    assert!(pushed.await);
    assert_ne!(world.branches(), before);
}

#[test(needs(root, sandbox), limit = 240)]
async fn a_placeholder_works_only_where_it_was_given_and_only_for_git() {
    let world = World::start().await;
    let (session, _) = world.run(&format!("{HEADER} > header; true")).await;
    let header = world.server.workspace(&world.project).join("header");
    let header = std::fs::read_to_string(header).unwrap();
    let header = header.trim();
    assert!(header.starts_with("Authorization: Bearer oub_"), "{header}");
    let base = "http://127.0.0.1:3129/git/git.test/acme/app.git";
    let ask = |header: &str, path: &str| {
        format!("curl -sS -m 60 -o /dev/null -w '%{{http_code}}' -H '{header}' '{base}/{path}'")
    };
    let refs = "info/refs?service=git-upload-pack";
    let status = async |project: &str, line: String| {
        let ran = world.admin.exec(project, line).await;
        ran["stdout"].as_str().unwrap().to_owned()
    };
    let own = world.project.as_str();
    assert_eq!(status(own, ask(header, refs)).await, "200");
    let seen = world.forge.requests().len();
    let forged = format!("Authorization: Bearer oub_{}", "x".repeat(43));
    let real = format!("Authorization: Bearer {TOKEN}");
    let other = world.add_project("two", json!({})).await;
    for (project, header, path) in [
        (own, forged.as_str(), refs),
        (own, real.as_str(), refs),
        (other.as_str(), header, refs),
        (own, header, "info/refs"),
        (own, header, "info/refs?service=git-upload-archive"),
        (own, header, "HEAD"),
        (own, header, "info/lfs/locks"),
        (
            own,
            header,
            "%2e%2e/other.git/info/refs?service=git-upload-pack",
        ),
    ] {
        assert_eq!(status(project, ask(header, path)).await, "403", "{path}");
    }
    let lfs = ask(header, "info/lfs/objects/batch").replace("curl", "curl -d '{}'");
    assert_eq!(status(own, lfs).await, "403");
    assert_eq!(world.forge.requests().len(), seen);
    let ended = json!({ "session_id": session });
    world.admin.call("session_end", ended).await.ok();
    let is_over = eventually(WAIT, async || status(own, ask(header, refs)).await == "403");
    assert!(is_over.await);
}

#[test(needs(root, sandbox), limit = 240)]
async fn the_token_does_not_follow_a_redirect() {
    let world = World::start().await;
    let ca = std::fs::read(world.other.authority()).unwrap();
    std::fs::write(world.server.workspace(&world.project).join("ca.pem"), ca).unwrap();
    let script = "export GIT_SSL_CAINFO=/workspace/ca.pem; \
                  git ls-remote https://git.test/moved/app.git 2>&1; echo exit $?; \
                  git ls-remote https://other.test/none.git 2>&1; true";
    let (_, text) = world.run(script).await;
    assert!(
        text.contains("redirects to https://other.test/moved/app.git"),
        "{text}"
    );
    assert!(text.contains("exit 128"), "{text}");
    // The other host is there, and was asked only for what the agent itself wanted of it.
    let requests = world.other.requests();
    assert!(!requests.is_empty(), "{text}");
    for request in requests {
        assert!(request.path.starts_with("/none.git/"), "{request:?}");
        assert_eq!(request.login, None, "{request:?}");
    }
}
