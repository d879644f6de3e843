//! Sending, seeing, applying and fetching.

use std::path::Path;

use serde_json::Value;
use support::{server_with_git, stderr};

use super::{User, git};

#[test(runtimes)]
async fn a_copy_is_as_the_checkout_and_work_comes_back_by_diff_apply_and_fetch(runtime: &str) {
    let user = User::with(server_with_git(runtime, "").await);
    user.git(["tag", "-a", "v1", "-m", "one"]);
    user.write(".gitignore", "ignored\n");
    user.write("a", "1\n2\n3\n4\n5\n6\n7\neight\n");
    user.write("dir/untracked", "u\n");
    user.write("ignored", "secret\n");
    user.write("staged", "s\n");
    user.git(["add", "staged"]);
    let (before, objects) = (user.state(), user.objects());
    let look = "/sh git status --porcelain | sort; git symbolic-ref HEAD; git log --format=%s; \
                git describe; ls -A; cat a | tail -1";
    let ran = user.cli(&["run", look]).await;
    let text = support::stdout(&ran);
    assert!(ran.status.success(), "{}", stderr(&ran));
    let expected = "M a\n?? .gitignore\n?? dir/\n?? staged\nrefs/heads/trunk\nfirst\nv1\n.git\n.gitignore\na\ndir\nstaged\neight";
    assert_eq!(text.trim(), expected);
    assert!(
        stderr(&ran).contains("no files changed"),
        "{}",
        stderr(&ran)
    );
    assert_eq!(
        (user.state(), user.objects()),
        (before, objects),
        "the checkout was changed"
    );

    let work = "/sh sed -i s/1/one/ a; git add a; git commit -q -m 'by the agent'; rm staged; \
                printf new > dir/new; printf x > ignored; git rev-parse --abbrev-ref HEAD";
    let ran = user.cli(&["run", work]).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(
        stderr(&ran).contains("3 files changed, +2 −2"),
        "{}",
        stderr(&ran)
    );
    let diff = user.ok(&["diff"]).await;
    for line in ["-1", "+one", "+new", "deleted file mode", "b/dir/new"] {
        assert!(
            diff.lines().any(|found| found.contains(line)),
            "{line}: {diff}"
        );
    }
    // What the user had changed before is no work of the agent.
    assert!(!diff.contains("+eight"), "{diff}");
    let only = user.ok(&["diff", "--stat", "--", "dir"]).await;
    assert!(only.contains("dir/new") && !only.contains(" a "), "{only}");

    // The branch has the agent's commit, and one with what was not committed.
    let before = user.state();
    let branch = user.ok(&["fetch"]).await;
    let branch = branch.trim();
    let log = user.git(["log", "--format=%s", branch]);
    assert_eq!(log.lines().nth(1), Some("by the agent"), "{log}");
    assert_eq!(user.git(["show", &format!("{branch}:dir/new")]), "new");
    assert_eq!(user.state().2, before.2);

    // The same lines have not changed here since: both changes are kept, also a new file here.
    user.write("a", "1\n2\n3\n4\n5\n6\n7\nacht\n");
    user.write("mine", "m\n");
    let index = user.git(["ls-files", "--stage"]);
    let applied = user.cli(&["apply"]).await;
    assert!(applied.status.success(), "{}", stderr(&applied));
    assert!(
        stderr(&applied).contains("2 files written, 1 file removed"),
        "{}",
        stderr(&applied)
    );
    assert_eq!(user.read("a"), "one\n2\n3\n4\n5\n6\n7\nacht\n");
    assert_eq!(
        (user.read("dir/new"), user.read("mine")),
        ("new".to_owned(), "m\n".to_owned())
    );
    assert_eq!(user.read("ignored"), "secret\n");
    assert!(!user.root().join("staged").exists());
    assert_eq!(
        user.git(["ls-files", "--stage"]),
        index,
        "the index was changed"
    );
    let again = user.cli(&["apply"]).await;
    assert!(
        stderr(&again).contains("nothing to apply"),
        "{}",
        stderr(&again)
    );

    // The next copy goes into the same workspace; ignored files of builds stay there.
    let ran = user
        .cli(&[
            "run",
            "--json",
            "/sh pwd; cat ignored; git status --porcelain a; tail -1 a",
        ])
        .await;
    let result: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let text = result["text"].as_str().unwrap();
    assert_eq!(text.trim(), "/workspace\nx M a\nacht", "{}", stderr(&ran));
    assert_eq!(result["changed"]["files"], 0, "{result}");
}

#[test(needs(sandbox))]
async fn work_that_was_not_taken_is_kept_and_conflicts_change_nothing() {
    let user = User::new();
    let first: Value = {
        let ran = user
            .cli(&["run", "--json", "/sh echo agent > a; echo b > b"])
            .await;
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let first_id = first["session_id"].as_str().unwrap();
    // The work of the first is not taken: the second gets a workspace of its own.
    let ran = user
        .cli(&["run", "--json", "/sh pwd; cat a | head -1; echo c > c"])
        .await;
    let second: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let text = second["text"].as_str().unwrap();
    assert!(
        text.starts_with("/workspaces/copy-") && text.contains("\n1"),
        "{text}"
    );
    // It goes on where it was.
    let ran = user
        .cli(&["run", "--continue", "/sh cat c; git log --oneline | wc -l"])
        .await;
    assert_eq!(support::stdout(&ran).trim(), "c\n1", "{}", stderr(&ran));

    user.write("a", "mine\n");
    let before = user.state();
    let applied = user.cli(&["apply", &first_id[..10]]).await;
    assert_eq!(applied.status.code(), Some(1));
    assert!(
        stderr(&applied).contains("nothing was changed") && stderr(&applied).contains(": a;"),
        "{}",
        stderr(&applied)
    );
    assert!(!user.root().join("b").exists() && user.read("a") == "mine\n");
    assert_eq!(user.state(), before);
    // A file that git ignores is never overwritten, and no link is followed.
    user.git(["checkout", "-q", "a"]);
    std::fs::write(user.root().join(".git/info/exclude"), "b\n").unwrap();
    user.write("b", "precious");
    let applied = user.cli(&["apply", first_id]).await;
    assert!(
        stderr(&applied).contains("files that git ignores"),
        "{}",
        stderr(&applied)
    );
    assert_eq!(
        (user.read("b"), user.read("a").len()),
        ("precious".to_owned(), 16)
    );
    std::fs::remove_file(user.root().join("b")).unwrap();
    assert!(user.cli(&["apply", first_id]).await.status.success());
    assert_eq!(
        (user.read("a"), user.read("b")),
        ("agent\n".to_owned(), "b\n".to_owned())
    );

    // The workspace of the first is used again; its work can still be fetched.
    let ran = user.cli(&["run", "--json", "/sh pwd; cat a"]).await;
    let third: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(
        third["text"].as_str().unwrap().trim(),
        "/workspace\nagent",
        "{}",
        stderr(&ran)
    );
    let branch = user.ok(&["fetch", first_id]).await;
    assert_eq!(user.git(["show", &format!("{}:b", branch.trim())]), "b\n");
    // A branch that the user has changed is not replaced.
    user.git(["stash", "-q", "-u"]);
    user.git(["checkout", "-q", branch.trim()]);
    user.git(["commit", "-q", "--allow-empty", "-m", "mine"]);
    let refused = user.cli(&["fetch", first_id]).await;
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
}

/// The user's own merge driver saves a file in the middle of the apply, as an editor could.
#[test(needs(sandbox))]
async fn a_file_that_is_saved_while_the_work_is_merged_is_not_overwritten() {
    let user = User::new();
    user.ok(&["run", "/sh sed -i s/1/one/ a; echo n > new"])
        .await;
    user.write("a", "1\n2\n3\n4\n5\n6\n7\nacht\n");
    let file = user.root().join("a");
    let driver = format!(
        "echo later >> '{}'; git merge-file -q %A %O %B",
        file.display()
    );
    user.git(["config", "merge.saving.driver", &driver]);
    std::fs::write(user.root().join(".git/info/attributes"), "a merge=saving\n").unwrap();
    let applied = user.cli(&["apply"]).await;
    assert_eq!(applied.status.code(), Some(1), "{}", stderr(&applied));
    let said = stderr(&applied);
    assert!(said.contains("files were changed while"), "{said}");
    assert_eq!(user.read("a"), "1\n2\n3\n4\n5\n6\n7\nacht\nlater\n");
    assert!(!user.root().join("new").exists());
    // The next one has what was saved.
    user.git([
        "config",
        "merge.saving.driver",
        "git merge-file -q %A %O %B",
    ]);
    user.ok(&["apply"]).await;
    assert_eq!(user.read("a"), "one\n2\n3\n4\n5\n6\n7\nacht\nlater\n");
    assert_eq!(user.read("new"), "n\n");
}

#[test(needs(sandbox))]
async fn a_session_without_changes_does_not_hide_the_work_of_an_earlier_one() {
    let user = User::new();
    user.ok(&["run", "/sh echo work > work"]).await;
    let failed = user.cli(&["run", "/fail on purpose"]).await;
    assert!(!failed.status.success());
    assert!(user.ok(&["diff"]).await.contains("+work"));
    // `latest` is the newest one, as everywhere.
    assert_eq!(user.ok(&["diff", "latest"]).await, "");
    user.ok(&["apply"]).await;
    assert_eq!(user.read("work"), "work\n");
}

#[test(needs(sandbox))]
async fn a_directory_without_a_repository_is_sent_with_here() {
    let user = User::new();
    let plain = user.directory.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    std::fs::write(plain.join("f"), "1\n").unwrap();
    let ran = user
        .cli_in(&plain, &["run", "/sh test ! -e f && echo empty"])
        .await;
    assert_eq!(support::stdout(&ran), "empty\n", "{}", stderr(&ran));
    let ran = user
        .cli_in(
            &plain,
            &[
                "run",
                "--here",
                "/sh ls; git status --porcelain; echo 2 > f; echo g > g",
            ],
        )
        .await;
    assert_eq!(support::stdout(&ran).trim(), "f\n?? f", "{}", stderr(&ran));
    let diff = user.cli_in(&plain, &["diff"]).await;
    assert!(support::stdout(&diff).contains("+2"), "{}", stderr(&diff));
    let applied = user.cli_in(&plain, &["apply"]).await;
    assert!(applied.status.success(), "{}", stderr(&applied));
    assert_eq!(std::fs::read_to_string(plain.join("f")).unwrap(), "2\n");
    assert!(!plain.join(".git").exists());
    let fetched = user.cli_in(&plain, &["fetch"]).await;
    assert!(
        stderr(&fetched).contains("not a git repository"),
        "{}",
        stderr(&fetched)
    );
    // Without files, in a project that exists.
    let ran = user
        .cli(&["run", "--empty", "/sh test ! -e a && echo empty"])
        .await;
    assert_eq!(support::stdout(&ran), "empty\n", "{}", stderr(&ran));
    let nothing = user.cli_in(user.directory.path(), &["diff"]).await;
    assert!(
        stderr(&nothing).contains("no session has worked on"),
        "{}",
        stderr(&nothing)
    );
}

#[test(needs(sandbox))]
async fn files_are_copied_both_ways() {
    let user = User::new();
    user.ok(&["project", "create", "app"]).await;
    user.write("tree/deep/x", "x\n");
    std::os::unix::fs::symlink("deep/x", user.root().join("tree/link")).unwrap();
    user.ok(&["cp", "tree", "app:in/tree"]).await;
    user.ok(&["cp", "./a", "app:in/renamed"]).await;
    user.ok(&["cp", "a", "app:in"]).await;
    let listed = user
        .ok(&[
            "container",
            "exec",
            "app",
            "cd in; find . | sort; cat tree/link renamed | head -2",
        ])
        .await;
    assert_eq!(
        listed,
        ".\n./a\n./renamed\n./tree\n./tree/deep\n./tree/deep/x\n./tree/link\nx\n1\n"
    );
    let out = user.directory.path().join("out");
    user.ok(&["cp", "app:in", out.to_str().unwrap()]).await;
    assert_eq!(
        std::fs::read_to_string(out.join("tree/link")).unwrap(),
        "x\n"
    );
    user.ok(&["cp", "app:default:in/a", "b"]).await;
    assert_eq!(user.read("b"), user.read("a"));
    // Into a directory that exists, as `cp -r`: with its name, or what is in it.
    user.write("data/one", "1\n");
    user.ok(&["cp", "data", "app:in"]).await;
    user.ok(&["cp", "./data/", "app:in/tree"]).await;
    user.write("data/two", "2\n");
    user.ok(&["cp", "data", "app:in/"]).await;
    user.ok(&["cp", "data/.", "app:in/renamed here"]).await;
    user.ok(&["cp", "data/.", "app:in"]).await;
    let look = "cd in; find . -name one -o -name two | sort";
    let listed = user.ok(&["container", "exec", "app", look]).await;
    assert_eq!(
        listed,
        "./data/one\n./data/two\n./one\n./renamed here/one\n./renamed here/two\n./tree/data/one\n./two\n"
    );
    let refused = user.cli(&["cp", "data", "app:in/a"]).await;
    assert!(
        stderr(&refused).contains("in/a is a file"),
        "{}",
        stderr(&refused)
    );
    std::fs::create_dir(user.root().join("here")).unwrap();
    user.ok(&["cp", "app:in/data", "here"]).await;
    assert_eq!(user.read("here/data/two"), "2\n");
    std::fs::create_dir(user.root().join("empty")).unwrap();
    user.ok(&["cp", "app:in/data/.", "empty"]).await;
    assert_eq!(user.read("empty/two"), "2\n");
    for (from, to) in [("app:in/data", "here"), ("app:in/data/.", "here")] {
        let refused = user.cli(&["cp", from, to]).await;
        assert!(
            stderr(&refused).contains("exists already"),
            "{}",
            stderr(&refused)
        );
    }
    let missing = user.cli(&["cp", "app:nothing", "x"]).await;
    assert!(
        stderr(&missing).contains("does not exist"),
        "{}",
        stderr(&missing)
    );
    let wrong = user.cli(&["cp", "a", "b"]).await;
    assert!(
        stderr(&wrong).contains("PROJECT:PATH"),
        "{}",
        stderr(&wrong)
    );
}

#[test(needs(sandbox))]
async fn a_prompt_has_files_and_a_time() {
    let user = User::new();
    // It is not in the copy.
    user.write("../note", "attached\n");
    let ran = user
        .cli(&["run", "--file", "../note", "/sh cat note"])
        .await;
    assert_eq!(support::stdout(&ran), "attached\n", "{}", stderr(&ran));
    let late = user.cli(&["run", "--timeout", "1", "/sh sleep 1000"]).await;
    assert_eq!(late.status.code(), Some(1), "{}", stderr(&late));
    assert!(
        stderr(&late).contains("longer than --timeout"),
        "{}",
        stderr(&late)
    );
    // A home directory is not sent unless it is asked for.
    git(user.directory.path(), ["init", "-q"]);
    let ran = user
        .cli_in(user.directory.path(), &["run", "/sh ls -A"])
        .await;
    assert!(
        stderr(&ran).contains("too much to send"),
        "{}",
        stderr(&ran)
    );
}

#[test(needs(sandbox))]
async fn changes_are_counted_in_the_same_words_by_run_and_by_diff() {
    let user = User::new();
    user.write("b", "1\n2\n");
    user.git(["add", "-A"]);
    user.git(["commit", "-q", "-m", "more"]);
    let work = "/sh git mv a new; sed -i s/1/one/ b; echo x > more; printf '\\0' > bin; git add .";
    let ran = user.cli(&["run", work]).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    let total = "4 files changed, +2 −1";
    let said = stderr(&ran);
    let line = said.lines().find(|line| line.contains(total)).unwrap();
    assert!(line.starts_with("session gogol_"), "{line}");
    assert!(!said.contains("uncommitted"), "{said}");
    let expected = " a => new |      0\n b        |      2 +-\n bin      | binary\n more     |      1 +\n\
                    4 files changed, +2 −1\n";
    // From git here, and from the checkpoint of the server.
    for words in [
        &["diff", "--stat"][..],
        &["diff", "--stat", "--turn", "1"],
        &["session", "diff", "latest", "--stat"],
    ] {
        let shown = user.ok(words).await;
        let mut lines: Vec<&str> = shown.lines().collect();
        let last = lines.pop();
        lines.sort_unstable();
        lines.extend(last);
        assert_eq!(format!("{}\n", lines.join("\n")), expected, "{words:?}");
    }
}

#[test(needs(sandbox))]
async fn only_files_that_differ_from_a_commit_are_called_uncommitted() {
    let user = User::new();
    let sent = async |directory: &Path, more: &[&str]| {
        let words = [&["run", "/say hi"], more].concat();
        let ran = user.cli_in(directory, &words).await;
        let said = stderr(&ran);
        let line = said.lines().find(|line| line.starts_with("Sent a copy"));
        line.unwrap_or(&said).to_owned()
    };
    let root = user.root();
    assert!(!sent(&root, &[]).await.contains("uncommitted"));
    user.write("a", "changed\n");
    assert!(
        sent(&root, &[])
            .await
            .contains(", with uncommitted changes.")
    );
    // Without a commit, and without a repository.
    let empty = user.directory.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    git(&empty, ["init", "-q"]);
    let said = sent(&empty, &[]).await;
    assert!(
        said.starts_with("Sent a copy") && !said.contains("uncommitted"),
        "{said}"
    );
    std::fs::write(empty.join("file"), "x").unwrap();
    assert!(!sent(&empty, &[]).await.contains("uncommitted"));
    let plain = user.directory.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    std::fs::write(plain.join("file"), "x").unwrap();
    let said = sent(&plain, &["--here"]).await;
    assert!(
        said.starts_with("Sent a copy") && !said.contains("uncommitted"),
        "{said}"
    );
}
