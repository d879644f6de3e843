//! The same commands with a server elsewhere: only its address and a key are known.

use std::path::Path;

use support::{Pty, stderr, stdout};

use super::User;

impl User {
    /// A command line with another data directory, which has nothing of the server.
    async fn remote(&self, local: &Path, arguments: &[&str]) -> std::process::Output {
        let mut command = tokio::process::Command::from(self.command(&self.root()));
        command
            .env("OUBLIETTE_HOME", local)
            .args(["--url", self.server.base()])
            .args(["--token", &self.server.admin_key()])
            .args(arguments);
        command.output().await.unwrap()
    }

    async fn remote_ok(&self, local: &Path, arguments: &[&str]) -> String {
        let output = self.remote(local, arguments).await;
        let text = stderr(&output);
        assert!(output.status.success(), "{arguments:?}: {text}");
        stdout(&output)
    }
}

#[test(needs(sandbox))]
async fn work_goes_to_a_server_elsewhere_and_comes_back() {
    let user = User::new();
    let local = tempfile::tempdir().unwrap();
    let local = local.path();
    user.write("a", "1\n2\n3\n4\n5\n6\n7\neight\n");
    let work = "/sh sed -i s/1/one/ a; mkdir -p sub; printf 'first\\n' > sub/new; tail -1 a";
    let said = user.remote_ok(local, &["run", work]).await;
    assert_eq!(said.trim(), "eight");
    let more = "/sh printf '\\000\\001bin' > bin; echo second >> sub/new; seq 100000 > long";
    user.remote_ok(local, &["run", "--continue", more]).await;

    let diff = user.remote_ok(local, &["diff"]).await;
    assert!(diff.contains("+one") && diff.contains("b/bin"), "{diff}");
    // One turn: what the server keeps of it, as a patch that git takes, of several pages.
    let first = user.remote_ok(local, &["diff", "--turn", "1"]).await;
    assert!(first.contains("+one") && first.contains("+first"));
    assert!(!first.contains("second") && !first.contains("b/bin"));
    let second = user.remote_ok(local, &["diff", "--turn", "2"]).await;
    assert!(second.contains("+second") && !second.contains("+one"));
    let only = user
        .remote_ok(local, &["diff", "--turn", "2", "--", "sub", "bin"])
        .await;
    assert!(only.contains("+second") && only.contains("b/bin") && !only.contains("b/long"));
    let stat = user
        .remote_ok(local, &["diff", "--turn", "2", "--stat"])
        .await;
    assert!(
        stat.contains("sub/new") && !stat.contains("+second"),
        "{stat}"
    );
    let json = user
        .remote_ok(local, &["diff", "--turn", "2", "--json"])
        .await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["files"].as_array().unwrap().len(), 3);
    assert_eq!(json["diff"], *second);
    let missing = user.remote(local, &["diff", "--turn", "7"]).await;
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains('7'), "{}", stderr(&missing));
    let clone = user.directory.path().join("clone");
    super::git(user.directory.path(), ["clone", "-q", "app", "clone"]);
    std::fs::write(clone.join("a"), user.read("a")).unwrap();
    for (name, patch) in [("1.patch", &first), ("2.patch", &second)] {
        std::fs::write(user.directory.path().join(name), patch).unwrap();
        super::git(&clone, ["apply", &format!("../{name}")]);
    }
    assert_eq!(std::fs::read(clone.join("bin")).unwrap(), b"\0\x01bin");

    user.remote_ok(local, &["apply"]).await;
    assert_eq!(user.read("a"), "one\n2\n3\n4\n5\n6\n7\neight\n");
    assert_eq!(user.read("sub/new"), "first\nsecond\n");
    assert_eq!(
        user.read("long"),
        std::fs::read_to_string(clone.join("long")).unwrap()
    );
    user.write("tree/deep/x", "x\n");
    user.remote_ok(local, &["cp", "tree", "app:in/tree"]).await;
    user.remote_ok(local, &["cp", "app:in/tree/deep/x", "back"])
        .await;
    assert_eq!(user.read("back"), "x\n");

    // Of the server nothing is here, and of the checkout only the record and which session was used last.
    let entries = std::fs::read_dir(local).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.retain(|name| name != "checkouts" && name != "cli");
    assert!(names.is_empty(), "{names:?}");
    // A key that is wrong, and an address where nothing is.
    let mut command = tokio::process::Command::from(user.command(&user.root()));
    command
        .env("OUBLIETTE_HOME", local)
        .args(["--url", user.server.base()])
        .args(["--token", &format!("oub_{}", "A".repeat(43)), "diff"]);
    let refused = command.output().await.unwrap();
    assert!(
        stderr(&refused).contains("does not accept this API key"),
        "{}",
        stderr(&refused)
    );
}

#[test(needs(sandbox))]
async fn a_prompt_is_written_in_the_editor() {
    let user = User::new();
    let editor = user.directory.path().join("editor");
    std::fs::write(
        &editor,
        "#!/bin/sh\ngrep -q '^# Write the prompt' \"$2\" || exit 1\nprintf '/sh echo from-%s\\n# a note\\n' \"$1\" > \"$2\"\n",
    )
    .unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&editor, executable).unwrap();
    let root = user.root();
    let variables = |editor: &str| {
        [
            ("EDITOR".to_owned(), editor.to_owned()),
            (
                "HOME".to_owned(),
                user.directory.path().display().to_string(),
            ),
            (
                "OUBLIETTE_HOME".to_owned(),
                user.server.home().display().to_string(),
            ),
        ]
    };
    // The value may have options.
    let value = format!("{} editor", editor.display());
    let mut terminal = Pty::run_in(&root, (24, 200), &["run"], &variables(&value));
    terminal.wait_for("from-editor");
    assert_eq!(terminal.exit_code(), Some(0));
    let shown = terminal.shown();
    assert!(!shown.contains("a note"), "{shown}");
    // An editor that fails, and a prompt that is empty.
    let mut terminal = Pty::run_in(&root, (24, 200), &["run"], &variables("false"));
    terminal.wait_for("there is no prompt");
    assert_eq!(terminal.exit_code(), Some(1));
    let mut terminal = Pty::run_in(&root, (24, 200), &["run"], &variables("true"));
    terminal.wait_for("there is no prompt");
    assert_eq!(terminal.exit_code(), Some(1));
}
