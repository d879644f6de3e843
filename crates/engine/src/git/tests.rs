//! Tests of details of git commands; clones through the server are tested end to end.

use std::process::Command as StdCommand;

use super::*;

#[test]
fn git_accepts_a_new_repository() {
    let home = tempfile::tempdir().unwrap();
    let git = Git::new(home.path(), ProjectRules::default()).unwrap();
    let workspace = home.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    git.init(&workspace).unwrap();
    let head = fs::read_to_string(workspace.join(".git/HEAD")).unwrap();
    assert_eq!(head, "ref: refs/heads/main\n");
    // Projects can be created without git, but then there is nothing to compare with.
    let Ok(status) = StdCommand::new("git")
        .arg("-C")
        .arg(&workspace)
        .args(["status", "-sb"])
        .output()
    else {
        return;
    };
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.status.success() && text.contains("main"), "{text}");
}

#[test]
fn credentials_that_a_dead_server_left_are_removed() {
    let home = tempfile::tempdir().unwrap();
    let left = home.path().join("run/git/abc");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("secret"), "hunter2").unwrap();
    Git::new(home.path(), ProjectRules::default()).unwrap();
    assert!(!left.exists());
}
