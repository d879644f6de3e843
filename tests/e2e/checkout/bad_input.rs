//! Checkouts that are not as simple as they could be.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};
use support::{stderr, stdout};

use super::{User, git};

/// Runs a turn of the demo agent; its text, and what was said on stderr.
async fn run(user: &User, directory: &std::path::Path, script: &str) -> (String, String) {
    let ran = user
        .cli_in(directory, &["run", "--here", &format!("/sh {script}")])
        .await;
    assert!(ran.status.success(), "{script}: {}", stderr(&ran));
    (stdout(&ran).trim().to_owned(), stderr(&ran))
}

#[test(needs(sandbox))]
async fn unusual_repositories_are_copied_as_they_are() {
    let user = User::new();
    let place = user.directory.path();
    // No commits.
    let empty = place.join("empty");
    std::fs::create_dir(&empty).unwrap();
    git(&empty, ["init", "-q", "-b", "first"]);
    std::fs::write(empty.join("f"), "1").unwrap();
    let look = "git symbolic-ref HEAD; git status --porcelain; git rev-parse -q --verify HEAD || echo none";
    let (text, _) = run(&user, &empty, look).await;
    assert_eq!(text, "refs/heads/first\n?? f\nnone");
    // A detached HEAD.
    user.write("a", "2\n");
    user.git(["commit", "-q", "-a", "-m", "second"]);
    user.git(["checkout", "-q", "--detach", "HEAD~1"]);
    let (text, _) = run(
        &user,
        &user.root(),
        "git symbolic-ref -q HEAD; git log --format=%s; git status --porcelain",
    )
    .await;
    assert_eq!(text, "first");
    user.git(["checkout", "-q", "trunk"]);
    // A linked worktree has a copy and a branch of its own.
    let linked = place.join("linked");
    user.git([
        "worktree",
        "add",
        "-q",
        "-b",
        "other",
        linked.to_str().unwrap(),
    ]);
    std::fs::write(linked.join("only-here"), "").unwrap();
    let (text, _) = run(
        &user,
        &linked,
        "git symbolic-ref HEAD; git status --porcelain",
    )
    .await;
    assert_eq!(text, "refs/heads/other\n?? only-here");
    // A rebase under way, with a conflict.
    std::fs::write(linked.join("a"), "3\n").unwrap();
    git(&linked, ["commit", "-q", "-a", "-m", "third"]);
    user.write("a", "4\n");
    user.git(["commit", "-q", "-a", "-m", "fourth"]);
    let rebase = std::process::Command::new("git")
        .args([
            "-c",
            "user.name=A",
            "-c",
            "user.email=a@b",
            "rebase",
            "-q",
            "trunk",
        ])
        .current_dir(&linked)
        .output();
    assert!(!rebase.unwrap().status.success());
    let status = git(&linked, ["status", "--porcelain=v2"]);
    let (text, said) = run(
        &user,
        &linked,
        "grep -c '<<<<<<<' a; git status --porcelain",
    )
    .await;
    assert_eq!(text, "1\n M a\n?? only-here", "{said}");
    assert!(said.contains("a rebase is under way"), "{said}");
    assert_eq!(git(&linked, ["status", "--porcelain=v2"]), status);
    // A shallow clone.
    let shallow = place.join("shallow");
    let source = format!("file://{}", user.root().display());
    git(place, ["clone", "-q", "--depth", "1", &source, "shallow"]);
    let (text, _) = run(&user, &shallow, "git log --format=%s; git fsck").await;
    assert_eq!(text, "fourth");
    // A sparse checkout is whole there, and stays sparse here.
    user.write("in/x", "x");
    user.write("out/y", "y");
    user.git(["add", "-A"]);
    user.git(["commit", "-q", "-m", "fifth"]);
    user.git(["sparse-checkout", "set", "in"]);
    assert!(!user.root().join("out").exists());
    let (text, _) = run(
        &user,
        &user.root(),
        "cat out/y; git status --porcelain; echo z > in/z",
    )
    .await;
    assert_eq!(text, "y");
    assert!(user.cli(&["apply"]).await.status.success());
    assert!(user.root().join("in/z").exists() && !user.root().join("out").exists());
    user.git(["sparse-checkout", "disable"]);
    // A submodule, and a repository that was not added.
    let inner = place.join("inner");
    std::fs::create_dir(&inner).unwrap();
    git(&inner, ["init", "-q"]);
    git(&inner, ["commit", "-q", "--allow-empty", "-m", "inner"]);
    user.git([
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        inner.to_str().unwrap(),
        "sub",
    ]);
    let nested = user.root().join("nested");
    std::fs::create_dir(&nested).unwrap();
    git(&nested, ["init", "-q"]);
    let (text, said) = run(
        &user,
        &user.root(),
        "ls -A sub; cat in/z; echo s > sub/file",
    )
    .await;
    assert_eq!(text, "z", "{said}");
    assert!(
        said.contains("are not sent") && said.contains("sub"),
        "{said}"
    );
}

#[test(needs(sandbox))]
async fn names_links_and_large_files_survive_the_way_there_and_back() {
    let user = User::new();
    let names: [&[u8]; 5] = [
        b"new\nline",
        b"inv\xff\xfealid",
        b"-dash",
        b"sp ace\"quote",
        b"Case",
    ];
    for name in names {
        std::fs::write(user.root().join(OsStr::from_bytes(name)), name).unwrap();
    }
    user.write("case", "lower");
    user.write(
        ".gitattributes",
        "*.bin filter=lfs diff=lfs merge=lfs -text\n",
    );
    user.write(
        "x.bin",
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    );
    std::os::unix::fs::symlink("/etc/hostname", user.root().join("outside")).unwrap();
    std::os::unix::fs::symlink("../../..", user.root().join("up")).unwrap();
    let large: Vec<u8> = (0..12_000_000u32)
        .flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 16).to_le_bytes()[..1].to_vec())
        .collect();
    std::fs::write(user.root().join("large"), &large).unwrap();
    let before = user.state();
    let script = "cat case Case; readlink outside; sha256sum < large | cut -c1-16; head -c 1000 /dev/urandom >> large; \
                  for f in *; do [ -L \"$f\" ] || printf + >> \"$f\"; done; rm up; ln -s /etc up; ln -s / root";
    let ran = user.cli(&["run", &format!("/sh {script}")]).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    let text = stdout(&ran);
    assert!(text.starts_with("lowerCase/etc/hostname\n"), "{text}");
    assert_eq!(user.state(), before);
    let applied = user.cli(&["apply"]).await;
    assert!(applied.status.success(), "{}", stderr(&applied));
    for name in names {
        let text = std::fs::read(user.root().join(OsStr::from_bytes(name))).unwrap();
        assert_eq!(text, [name, b"+"].concat());
    }
    assert_eq!(
        std::fs::metadata(user.root().join("large")).unwrap().len(),
        12_001_001
    );
    assert_eq!(
        std::fs::read_link(user.root().join("up")).unwrap().to_str(),
        Some("/etc")
    );
    // What leads out of the directory is a link here, too, and nothing is written through it.
    let ran = user
        .cli(&["run", "/sh rm outside; mkdir outside; echo x > outside/x"])
        .await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    std::fs::remove_file(user.root().join("outside")).unwrap();
    let elsewhere = user.directory.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(user.root().join(".git/info/exclude"), "outside\n").unwrap();
    std::os::unix::fs::symlink(&elsewhere, user.root().join("outside")).unwrap();
    let applied = user.cli(&["apply"]).await;
    assert!(
        stderr(&applied).contains("nothing was changed"),
        "{}",
        stderr(&applied)
    );
    assert!(!elsewhere.join("x").exists());
}

#[test(needs(sandbox), limit = 240)]
async fn a_server_that_is_killed_while_files_are_sent_loses_none_of_them() {
    let mut user = User::new();
    let large: Vec<u8> = (0..24_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8 ^ (n >> 7) as u8)
        .collect();
    std::fs::write(user.root().join("large"), &large).unwrap();
    let mut command = user.command(&user.root());
    command.args(["run", "--json", "/sh wc -c < large; git status --porcelain"]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    // The workspace receives a pack.
    let admin = user.server.admin();
    support::wait_for("a pack", async || {
        let listed = admin.call("project_list", json!({})).await.ok().clone();
        let id = listed["projects"][0]["project_id"].as_str()?.to_owned();
        let packs = user.server.workspace(&id).join(".git/objects/pack");
        let found = std::fs::read_dir(packs).ok()?.flatten();
        let mut temporary =
            found.filter(|entry| entry.file_name().to_string_lossy().starts_with("tmp_"));
        temporary.next().map(drop)
    })
    .await;
    user.server.kill();
    user.server.start_again();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let ended = ended.await.unwrap();
    assert!(ended.status.success(), "{}", stderr(&ended));
    let result: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(
        result["text"].as_str().unwrap().trim(),
        "24000000\n?? large"
    );
}
