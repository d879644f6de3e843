//! Ways out of a conflict: both versions in the files, the way back, and a branch with the agent's work alone.

use serde_json::Value;
use support::stderr;

use super::{User, git, git_in};

/// A user whose files and those of a session have changed in the same places. The id of the session.
async fn in_conflict() -> (User, String) {
    let user = User::new();
    user.write("image", "\0one");
    user.write("gone", "1\n");
    user.write("gone here", "1\n");
    user.git(["add", "-A"]);
    user.git(["commit", "-q", "-m", "more"]);
    let work = "/sh sed -i 's/^1$/agent/' a; printf '\\000agent' > image; rm gone; \
                echo agent >> 'gone here'; echo new > new; mkdir -p place; echo x > place/x";
    let ran = user.cli(&["run", "--json", work]).await;
    let result: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let session = result["session_id"].as_str().unwrap().to_owned();
    user.write("a", "mine\n2\n3\n4\n5\n6\n7\n8\n");
    user.write("image", "\0mine");
    user.write("gone", "mine\n");
    std::fs::remove_file(user.root().join("gone here")).unwrap();
    user.write("place", "a file here\n");
    (user, session)
}

/// The files without those of git, with their texts.
fn files(user: &User) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![user.root()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && entry.file_name() != ".git" {
                left.push(path);
            } else if path.is_file() {
                let name = path.strip_prefix(user.root()).unwrap();
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((name.to_string_lossy().into_owned(), text));
            }
        }
    }
    found.sort();
    found
}

#[test(needs(sandbox))]
async fn both_versions_are_written_on_request_and_the_files_can_be_set_back() {
    let (user, session) = in_conflict().await;
    let (state, before) = (user.state(), files(&user));
    let refused = user.cli(&["apply"]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("nothing was changed")
            && stderr(&refused).contains("apply --merge"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(
        (user.state(), files(&user)),
        (state.clone(), before.clone())
    );

    let merged = user.cli(&["apply", "--merge"]).await;
    let said = stderr(&merged);
    assert_eq!(merged.status.code(), Some(1), "{said}");
    for text in [
        "conflict: a has both versions",
        "the version of the session is image.oubliette",
        "gone was removed by the session",
        "gone here was removed here",
        "apply --undo    set the files back",
        "Applied with conflicts",
    ] {
        assert!(said.contains(text), "{text}: {said}");
    }
    let text = user.read("a");
    let expected = format!("<<<<<<< here\nmine\n=======\nagent\n>>>>>>> {session}\n2\n");
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(user.read("image"), "\0mine");
    assert_eq!(user.read("image.oubliette"), "\0agent");
    assert_eq!(user.read("gone"), "mine\n");
    assert_eq!(user.read("gone here"), "1\nagent\n");
    assert_eq!(user.read("new"), "new\n");
    // Of a file and a directory with one name, both are there.
    let now = files(&user);
    assert!(
        now.iter().any(|(_, text)| text == "a file here\n"),
        "{now:?}"
    );
    assert!(now.iter().any(|(_, text)| text == "x\n"), "{now:?}");
    assert!(
        !now.iter().any(|(name, _)| name.len() > 40),
        "a commit is in a name: {now:?}"
    );
    assert_eq!(user.state().0, state.0, "the index was changed");

    // A file that was edited since is not lost.
    user.write("a", "resolved\n");
    let undone = user.cli(&["apply", "--undo"]).await;
    assert!(undone.status.success(), "{}", stderr(&undone));
    assert!(
        stderr(&undone).contains("that version is a.oubliette"),
        "{}",
        stderr(&undone)
    );
    assert_eq!(user.read("a.oubliette"), "resolved\n");
    std::fs::remove_file(user.root().join("a.oubliette")).unwrap();
    assert_eq!((user.state(), files(&user)), (state, before));
    let again = user.cli(&["apply", "--undo"]).await;
    assert!(
        stderr(&again).contains("no `oubliette apply` to undo"),
        "{}",
        stderr(&again)
    );

    // The work can be taken again; for programs, too.
    let merged = user.cli(&["apply", "--merge", "--json"]).await;
    assert_eq!(merged.status.code(), Some(1));
    let merged: Value = serde_json::from_slice(&merged.stdout).unwrap();
    let conflicts = merged["conflicts"].as_array().unwrap();
    let kind = |path: &str| {
        let found = conflicts.iter().find(|conflict| conflict["path"] == path);
        found.unwrap_or_else(|| panic!("{path}: {merged}"))["kind"].clone()
    };
    assert_eq!(kind("a"), "markers");
    assert_eq!(kind("image"), "beside");
    assert_eq!(kind("gone"), "removed_by_session");
    assert_eq!(kind("gone here"), "removed_here");
}

#[test(needs(sandbox))]
async fn an_apply_without_conflicts_is_set_back_without_a_server() {
    let mut user = User::new();
    user.write("staged", "s\n");
    user.git(["add", "staged"]);
    user.ok(&[
        "run",
        "/sh echo agent >> a; rm staged; mkdir d; echo d > d/d",
    ])
    .await;
    let (state, before) = (user.state(), files(&user));
    let applied = user.cli(&["apply", "--merge"]).await;
    assert!(applied.status.success(), "{}", stderr(&applied));
    assert_ne!(files(&user), before);
    user.server.kill();
    let undone = user.cli(&["apply", "--undo"]).await;
    assert!(undone.status.success(), "{}", stderr(&undone));
    assert_eq!((user.state(), files(&user)), (state, before));
    assert!(!user.root().join("d").exists());
}

#[test(needs(sandbox))]
async fn a_fetched_branch_has_only_the_agents_work_on_top_of_what_was_sent() {
    let user = User::new();
    user.write("a", "1\n2\n3\n4\n5\n6\n7\neight\n");
    user.write("mine", "m\n");
    let before = user.state();
    let work = "/sh sed -i s/1/one/ a; echo x > x; git add -A; git commit -q -m one; \
                sed -i s/eight/acht/ a; git commit -q -a -m two; \
                echo y > y; git add y; git commit -q -m three; echo rest > rest";
    user.ok(&["run", work]).await;
    let fetched = user.cli(&["fetch"]).await;
    assert!(fetched.status.success(), "{}", stderr(&fetched));
    let branch = support::stdout(&fetched).trim().to_owned();
    assert!(
        stderr(&fetched).contains("Fetched 4 commits"),
        "{}",
        stderr(&fetched)
    );
    assert_eq!(user.state().2, before.2);
    let log = user.git([
        "log",
        "--reverse",
        "--format=%s",
        &format!("trunk..{branch}"),
    ]);
    let subjects: Vec<&str> = log.lines().collect();
    assert_eq!(&subjects[..4], ["Uncommitted files", "one", "two", "three"]);
    assert_eq!(subjects.len(), 5, "{log}");
    let changed = |back: usize| {
        let commit = format!("{branch}~{back}");
        let names = user.git(["show", "--format=", "--name-only", &commit]);
        let patch = user.git(["show", "--format=", "-U0", &commit]);
        let lines = patch.lines().filter(|line| {
            (line.starts_with('+') || line.starts_with('-'))
                && !line.starts_with("+++ ")
                && !line.starts_with("--- ")
        });
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        (names.trim().replace('\n', " "), lines.join(" "))
    };
    assert_eq!(changed(4), ("a mine".into(), "-8 +eight +m".into()));
    assert_eq!(changed(3), ("a x".into(), "-1 +one +x".into()));
    assert_eq!(changed(2), ("a".into(), "-eight +acht".into()));
    assert_eq!(changed(1), ("y".into(), "+y".into()));
    assert_eq!(changed(0), ("rest".into(), "+rest".into()));
    let author = user.git(["log", "-1", "--format=%an", &format!("{branch}~3")]);
    assert_eq!(author.trim(), "Oubliette agent");

    // Without the user's own files, as the command says.
    let said = stderr(&fetched);
    let command = said
        .lines()
        .find(|line| line.contains("cherry-pick"))
        .unwrap();
    let command = command.split("    ").next().unwrap().trim();
    let place = user.directory.path().join("place");
    user.git(["worktree", "add", "-q", "--detach", place.to_str().unwrap()]);
    // In this one the user's lines and the agent's are in the same place.
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    // It is printed for a checkout with files that are not committed.
    std::fs::write(place.join("notes"), "not committed").unwrap();
    let picked = git_in(&place, &words[..]);
    assert!(
        support::stdout(&picked).contains("CONFLICT"),
        "{}{}",
        support::stdout(&picked),
        stderr(&picked)
    );
    git(&place, ["cherry-pick", "--skip"]);
    assert_eq!(
        git(&place, ["show", "HEAD:a"]),
        "one\n2\n3\n4\n5\n6\n7\n8\n"
    );
    let tracked = git(&place, ["ls-files"]);
    assert_eq!(tracked.trim().replace('\n', " "), "a rest x y");
}

#[test(needs(sandbox))]
async fn a_branch_of_a_clean_checkout_has_the_agents_own_commits() {
    let user = User::new();
    let ran = user
        .ok(&[
            "run",
            "/sh echo x > x; git add x; git commit -q -m one; git rev-parse HEAD",
        ])
        .await;
    let branch = user.ok(&["fetch"]).await;
    assert_eq!(user.git(["rev-parse", branch.trim()]), ran);
    // What the agent has thrown away is gone there, and only there.
    user.write("a", "mine\n");
    user.ok(&["run", "/sh git checkout -q a; git reset -q --hard"])
        .await;
    let branch = user.ok(&["fetch"]).await;
    let branch = branch.trim();
    assert_eq!(user.git(["show", &format!("{branch}:a")]).len(), 16);
    assert_eq!(user.git(["show", &format!("{branch}~1:a")]), "mine\n");
    assert_eq!(user.read("a"), "mine\n");
}
