//! `project_push`: from a container to a repository, with a credential that stays on the server.

use serde_json::json;
use support::{Server, ServerOptions, server_with_git, wait_until};

use super::{git, git_server};

#[test(runtimes)]
async fn commits_are_pushed_only_to_allowed_branches(runtime: &str) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    git(place, ["init", "-q", "--bare", "-b", "main", "remote.git"]);
    git(place, ["clone", "-q", "remote.git", "work"]);
    let work = place.join("work");
    git(&work, ["checkout", "-q", "-b", "main"]);
    git(&work, ["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&work, ["push", "-q", "origin", "main"]);
    let server = server_with_git(runtime, "[projects]\nallow_local_clone = true\n").await;
    let admin = server.admin();
    let remote = place.join("remote.git");
    let create = json!({ "name": "app", "remote_url": remote });
    let id = admin.call("project_create", create).await.ok()["project_id"].clone();
    let id = id.as_str().unwrap().to_owned();
    // Hooks and settings of the workspace have no effect on the server.
    let evil = place.join("evil");
    let set_up = format!(
        "echo x > f; git add f; git commit -q -m by-agent; \
         printf '#!/bin/sh\\ntouch {evil}\\n' > .git/hooks/pre-push; chmod +x .git/hooks/pre-push; \
         git config core.sshCommand 'touch {evil}'; git config url.ext::touch.insteadOf /",
        evil = evil.display()
    );
    admin.exec(&id, &*set_up).await;
    let push = |more: serde_json::Value| {
        let (admin, mut call) = (admin.clone(), json!({ "project_id": id }));
        call.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        async move { admin.call("project_push", call).await }
    };
    let pushed = push(json!({})).await;
    assert_eq!(
        pushed.ok()["branch"],
        "oubliette/default",
        "{}",
        pushed.text
    );
    let log = git(&remote, ["log", "--format=%s", "oubliette/default"]);
    assert_eq!(log, "by-agent\nfirst\n");
    assert!(!evil.exists());
    for (call, expected) in [
        (
            json!({ "branch": "main" }),
            "does not allow to push to `main`, only to `oubliette/*`",
        ),
        (
            json!({ "branch": "oubliette/../main" }),
            "not a name that git accepts",
        ),
        (
            json!({ "credential": "other" }),
            "not a credential of this project",
        ),
        (json!({ "workspace_id": "none" }), "not found"),
    ] {
        let refused = push(call.clone()).await;
        assert!(refused.text.contains(expected), "{call}: {}", refused.text);
    }
    assert_eq!(git(&remote, ["log", "--format=%s", "main"]), "first\n");
    let allow = json!({ "project_id": id, "push_branches": ["fix-*"] });
    admin.call("project_update", allow).await.ok();
    assert_eq!(
        push(json!({ "branch": "fix-1" })).await.ok()["branch"],
        "fix-1"
    );
    // A project token cannot allow itself more.
    let token = json!({ "name": "t", "scope": format!("project:{id}") });
    let key = admin.call("token_create", token).await.ok()["key"].clone();
    let own = server.with_key(key.as_str().unwrap());
    let allow = json!({ "project_id": id, "push_branches": ["*"] });
    let refused = own.call("project_update", allow).await;
    assert_eq!(refused.code(), -32002, "{}", refused.text);
    let refused = json!({ "project_id": id, "branch": "main" });
    let refused = own.call("project_push", refused).await;
    assert!(
        refused
            .text
            .contains("does not allow to push to `main`, only to `fix-*`"),
        "{}",
        refused.text
    );
    assert_eq!(git(&remote, ["log", "--format=%s", "main"]), "first\n");
    // What others have pushed meanwhile is not overwritten.
    admin
        .exec(
            &id,
            "git reset -q --hard HEAD~1; git commit -q --allow-empty -m another",
        )
        .await;
    let refused = push(json!({ "branch": "fix-1" })).await;
    assert!(refused.text.contains("failed"), "{}", refused.text);
    assert_eq!(
        git(&remote, ["log", "--format=%s", "fix-1"]),
        "by-agent\nfirst\n"
    );
    let plain = admin.project("plain").await;
    let refused = admin
        .call("project_push", json!({ "project_id": plain }))
        .await;
    assert!(refused.text.contains("no `remote_url`"), "{}", refused.text);
    assert!(
        std::fs::read_dir(server.home().join("run/git"))
            .unwrap()
            .next()
            .is_none()
    );
}

#[test(needs(sandbox))]
async fn a_server_that_is_killed_while_it_pushes_leaves_the_branch_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    git(place, ["init", "-q", "--bare", "-b", "main", "remote.git"]);
    git(place, ["clone", "-q", "remote.git", "work"]);
    let work = place.join("work");
    git(&work, ["checkout", "-q", "-b", "main"]);
    git(&work, ["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&work, ["push", "-q", "origin", "main"]);
    let remote = place.join("remote.git");
    let config = "[projects]\nallow_local_clone = true\n";
    let mut server = server_with_git("sandbox", config).await;
    let admin = server.admin();
    let create = json!({ "name": "app", "remote_url": remote });
    let id = admin.call("project_create", create).await.ok()["project_id"].clone();
    let id = id.as_str().unwrap().to_owned();
    let commit = "head -c 3000000 /dev/urandom > f; git add f; git commit -q -m by-agent";
    assert_eq!(admin.exec(&id, commit).await["exit_code"], 0);
    // The repository has received everything, and waits before it takes it.
    let hook = remote.join("hooks/pre-receive");
    let script = format!(
        "#!/bin/sh\ncd {}; touch started; n=0; until [ -e go ] || [ $n = 600 ]; do n=$((n+1)); sleep 0.1; done\n",
        place.display()
    );
    std::fs::create_dir_all(remote.join("hooks")).unwrap();
    std::fs::write(&hook, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&hook, executable).unwrap();
    let pushing = tokio::spawn({
        let (admin, push) = (server.admin(), json!({ "project_id": id }));
        async move { admin.call_until_answered("project_push", push).await }
    });
    wait_until("the repository has the commits", async || {
        place.join("started").exists()
    })
    .await;
    server.kill();
    let branches = || git(&remote, ["branch", "--format=%(refname:short)"]);
    assert_eq!(branches(), "main\n", "the hook has not ended");
    std::fs::write(place.join("go"), "").unwrap();
    server.start_again();
    // The call is made again when its connection breaks.
    let pushed = pushing.await.unwrap();
    assert_eq!(
        pushed.ok()["branch"],
        "oubliette/default",
        "{}",
        pushed.text
    );
    assert_eq!(branches(), "main\noubliette/default\n");
    git(
        &remote,
        ["fsck", "--connectivity-only", "oubliette/default"],
    );
    let log = git(&remote, ["log", "--format=%s", "oubliette/default"]);
    assert_eq!(log, "by-agent\nfirst\n");
    wait_until("nothing is left of the first push", async || {
        let left = std::fs::read_dir(server.home().join("run/git"));
        left.is_ok_and(|mut left| left.next().is_none())
    })
    .await;
}

/// What a container gives instead of a bundle must not lead git on the host to another repository.
#[test(needs(sandbox))]
async fn a_container_cannot_have_another_repository_of_the_host_pushed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    git(place, ["init", "-q", "--bare", "-b", "main", "remote.git"]);
    git(place, ["init", "-q", "-b", "main", "private"]);
    let private = place.join("private");
    git(&private, ["commit", "-q", "--allow-empty", "-m", "secret"]);
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n[projects]\nallow_local_clone = true\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let remote = place.join("remote.git");
    git(&private, ["push", "-q", "../remote.git", "main:base"]);
    git(&remote, ["update-ref", "-d", "refs/heads/base"]);
    git(place, ["clone", "-q", "remote.git", "work"]);
    let create = json!({ "name": "app", "remote_url": remote });
    let id = admin.call("project_create", create).await.ok()["project_id"].clone();
    let id = id.as_str().unwrap().to_owned();
    let head = git(&private, ["rev-parse", "HEAD"]);
    let cases = [
        format!("gitdir: {}/.git", private.display()),
        format!("# v2 git bundle\\n{} HEAD\\n\\nPACK", head.trim()),
        "# v2 git bundle".to_owned(),
    ];
    for output in cases {
        // Before git of the image on the path.
        let set_up = format!(
            "mkdir -p /usr/local/bin && printf '%s\\n' '#!/bin/sh' \
             '[ \"$1\" = bundle ] && echo x >> /tmp/bundled && printf \"{output}\\n\" || exec /usr/bin/git \"$@\"' \
             > /usr/local/bin/git && chmod 755 /usr/local/bin/git && rm -f /tmp/bundled && git bundle create - HEAD"
        );
        let planted = admin.exec(&id, &*set_up).await;
        let given = format!("{output}\n").replace("\\n", "\n");
        assert_eq!(planted["stdout"], *given, "{planted}");
        let push = json!({ "project_id": id });
        let refused = admin.call("project_push", push).await;
        assert!(refused.is_error(), "{output}: {}", refused.text);
        assert!(!refused.text.contains("internal"), "{}", refused.text);
        let asked = admin.exec(&id, "wc -l < /tmp/bundled").await;
        assert_eq!(
            asked["stdout"], "2\n",
            "the server took another bundle: {asked}"
        );
        let branches = git(&remote, ["for-each-ref"]);
        assert_eq!(branches, "", "{output}");
    }
}

#[test(needs(sandbox))]
async fn a_push_over_http_shows_its_credential_only_to_the_git_server() {
    const PASSWORD: &str = "hunter2-very-secret-password";
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    git(place, ["init", "-q", "--bare", "-b", "main", "remote.git"]);
    let remote = place.join("remote.git");
    git(&remote, ["config", "http.receivepack", "true"]);
    git(place, ["clone", "-q", "remote.git", "work"]);
    let work = place.join("work");
    git(&work, ["checkout", "-q", "-b", "main"]);
    git(&work, ["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&work, ["push", "-q", "origin", "main"]);
    let (url, seen) = git_server::serve(place, PASSWORD).await;
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let add = json!({ "name": "forge", "kind": "git", "value": PASSWORD });
    admin.call("credential_add", add).await.ok();
    let url = format!("{url}/remote.git");
    let create = json!({ "name": "app", "remote_url": url, "git_credential": "forge" });
    let id = admin.call("project_create", create).await.ok()["project_id"].clone();
    let id = id.as_str().unwrap().to_owned();
    let spawn = json!({ "project_id": id, "agent": "demo",
        "prompt": "/sh echo x > f; git add f; git commit -q -m by-agent; git push origin HEAD 2>&1 || true; env" });
    let spawned = admin.call("session_spawn", spawn).await.ok().clone();
    let events = json!({ "session_id": spawned["session_id"] });
    wait_until("the turn has ended", async || {
        let events = admin.call("session_events", events.clone()).await;
        events.text.contains("completion")
    })
    .await;
    let pushed = admin
        .call("project_push", json!({ "project_id": id }))
        .await;
    assert_eq!(
        pushed.ok()["branch"],
        "oubliette/default",
        "{}",
        pushed.text
    );
    let log = git(&remote, ["log", "--format=%s", "oubliette/default"]);
    assert_eq!(log, "by-agent\nfirst\n");
    {
        let seen = seen.lock().unwrap();
        assert!(seen.pushes > 0);
        assert!(seen.exposed.is_empty(), "{:?}", seen.exposed);
    }
    // Neither files, environments nor command lines of the container have it.
    let search = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c hunter[2]; \
                  grep -rlI hunter[2] /workspace /root /tmp /etc 2>/dev/null | wc -l";
    let found = admin.exec(&id, search).await;
    assert_eq!(found["stdout"], "0\n0\n", "{found}");
    let events = admin.call("session_events", events).await;
    assert!(events.text.contains("HOME=") && !events.text.contains(PASSWORD));
    let audit = admin.call("audit_list", json!({})).await;
    assert!(!audit.text.contains(PASSWORD) && !pushed.text.contains(PASSWORD));
    // A password that is wrong is not in the error, either.
    let add = json!({ "name": "forge", "kind": "git", "value": "another-wrong-password" });
    admin.call("credential_add", add).await.ok();
    admin
        .exec(&id, "git commit -q --allow-empty -m second")
        .await;
    let refused = admin
        .call("project_push", json!({ "project_id": id }))
        .await;
    assert!(refused.is_error(), "{}", refused.text);
    assert!(
        !refused.text.contains("another-wrong-password"),
        "{}",
        refused.text
    );
    let log = git(&remote, ["log", "--format=%s", "oubliette/default"]);
    assert_eq!(log, "by-agent\nfirst\n");
    for log in server.all_logs() {
        assert!(!log.contains(PASSWORD) && !log.contains("another-wrong-password"));
    }
}
