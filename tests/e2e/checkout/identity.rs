//! Commits in containers.

use serde_json::json;
use support::server_with_git;

#[test(runtimes, limit = 240)]
async fn commits_have_an_author_who_can_be_changed_and_the_session_of_the_agent(runtime: &str) {
    let config = "[projects]\ngit_identity = \"Bot \\\"B\\\" <bot@example.com>\"\n";
    let server = server_with_git(runtime, config).await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let shown = admin.exec(&id, "cat $GIT_CONFIG_SYSTEM").await;
    let text = shown["stdout"].as_str().unwrap();
    assert!(text.contains(r#"name = "Bot \"B\"""#), "{shown}");
    let update = json!({ "project_id": id, "git_identity": "Ada <ada@example.com>" });
    let updated = admin.call("project_update", update).await;
    assert_eq!(updated.ok()["git_identity"], "Ada <ada@example.com>");
    let shown = admin.exec(&id, "cat $GIT_CONFIG_SYSTEM").await;
    let text = shown["stdout"].as_str().unwrap();
    assert!(text.contains(r#"email = "ada@example.com""#), "{shown}");
    let refused = json!({ "project_id": id, "git_identity": "no address" });
    let refused = admin.call("project_update", refused).await;
    assert!(
        refused.text.contains("write `Name <address>`"),
        "{}",
        refused.text
    );
    let commit = "git commit -q --allow-empty -m one && git log -1 --format='%an <%ae>%n%B'";
    let made = admin.exec(&id, commit).await;
    assert_eq!(made["stdout"], "Ada <ada@example.com>\none\n\n", "{made}");
    // A setting of the repository comes first, and a hook of its own replaces ours.
    let other = format!("git config user.name Eve; {commit}");
    let made = admin.exec(&id, &*other).await;
    assert_eq!(made["stdout"], "Eve <ada@example.com>\none\n\n", "{made}");
    let session = admin.spawn(&id, &format!("/sh {commit}")).await;
    let made = admin.turn(&session, 1).await;
    let text = made["text"].as_str().unwrap();
    assert!(
        text.contains(&format!("one\n\nOubliette-Session: {session}")),
        "{made}"
    );
    // So do those of other workspaces.
    let spawn = json!({ "new_session": true, "workspace_id": "two", "create_workspace": true });
    let session = admin.spawn_with(&id, &format!("/sh {commit}"), spawn).await;
    let made = admin.turn(&session, 1).await;
    let text = made["text"].as_str().unwrap();
    assert!(
        text.contains(&format!("Oubliette-Session: {session}")),
        "{made}"
    );
    // A workspace of an older version gets the hook when an agent starts; one that a user has removed does
    // not come back, and one of the user's own stays.
    for (change, has_trailer) in [
        ("rm -r .git/hooks .git/oubliette", true),
        ("rm .git/hooks/prepare-commit-msg", false),
        (
            "rm -r .git/oubliette; printf '#!/bin/sh\\n' > .git/hooks/prepare-commit-msg",
            false,
        ),
    ] {
        let changed = admin.exec(&id, change).await;
        assert_eq!(changed["exit_code"], 0, "{changed}");
        let spawn = json!({ "new_session": true });
        let session = admin.spawn_with(&id, &format!("/sh {commit}"), spawn).await;
        let made = admin.turn(&session, 1).await;
        let text = made["text"].as_str().unwrap();
        let trailer = format!("Oubliette-Session: {session}");
        assert_eq!(text.contains(&trailer), has_trailer, "{change}: {made}");
    }
    let hook = "printf '#!/bin/sh\\nexit 1' > .git/hooks/prepare-commit-msg; chmod 755 .git/hooks/prepare-commit-msg";
    let made = admin.exec(&id, &*format!("{hook}; {commit}")).await;
    assert_eq!(made["exit_code"], 1, "{made}");
}
