//! A container that attacks the machine of the person who takes its work.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use support::{stderr, stdout};

use super::User;

/// Runs the demo agent on a copy; it must succeed.
async fn agent(user: &User, script: &str) -> String {
    user.ok(&["run", &format!("/sh {script}")]).await
}

/// Acts in the container while no turn runs.
async fn container(user: &User, script: &str) {
    user.ok(&["container", "exec", "app", script]).await;
}

/// Replaces a program in the container by a script, in which the program has the end `.real`.
async fn replace(user: &User, program: &str, script: &str) {
    let replace = format!(
        "cd /usr/bin; [ -e {program}.real ] || mv {program} {program}.real; \
         cat > {program}.new <<'END'\n#!/bin/sh\n{script}\nEND\n\
         chmod 755 {program}.new; mv -f {program}.new {program}"
    );
    container(user, &replace).await;
}

/// All files below a directory, without `.git`.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                if entry.file_name() != ".git" {
                    left.push(entry.path());
                }
            } else {
                found.push(entry.path().strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn failed_with(output: &Output, text: &str) {
    assert!(
        !output.status.success() && stderr(output).contains(text),
        "{text}: {}",
        stderr(output)
    );
}

#[test(needs(sandbox))]
async fn a_file_that_is_copied_has_the_name_and_place_that_were_asked_for() {
    let user = User::new();
    user.write(".bashrc", "mine\n");
    agent(&user, "echo report > report.pdf").await;
    let config = user.read(".git/config");
    let evil = "mkdir -p /tmp/e/.git/hooks /tmp/e/sub/.git; cd /tmp/e; \
                printf '[core]\\n\\tfsmonitor = touch RAN; false\\n' | tee .git/config > sub/.git/config; \
                echo evil | tee .bashrc ok .git/hooks/post-checkout > other; ln -s / root; \
                mv /usr/bin/tar /usr/bin/tar.real; ";
    let tar = |script: &str| {
        format!(
            "printf '#!/bin/sh\\n{script}\\n' > /usr/bin/tar.new; chmod 755 /usr/bin/tar.new; \
             mv -f /usr/bin/tar.new /usr/bin/tar"
        )
    };
    // A directory instead of a file.
    container(
        &user,
        &format!("{evil}{}", tar("cd /tmp/e && exec tar.real -cf - .")),
    )
    .await;
    let before = files(&user.root());
    let copied = user.cli(&["cp", "app:report.pdf", "."]).await;
    assert!(copied.status.success(), "{}", stderr(&copied));
    assert!(
        stderr(&copied).contains("left out") && stderr(&copied).contains(".git"),
        "{}",
        stderr(&copied)
    );
    assert_eq!(user.read(".bashrc"), "mine\n");
    assert_eq!(user.read(".git/config"), config);
    assert!(!user.root().join(".git/hooks/post-checkout").exists());
    let new: Vec<PathBuf> = files(&user.root())
        .into_iter()
        .filter(|path| !before.contains(path))
        .collect();
    assert!(
        new.iter().all(|path| path.starts_with("report.pdf")),
        "{new:?}"
    );
    let copy = user.root().join("report.pdf");
    assert!(copy.join("ok").exists());
    assert!(!copy.join(".git").exists() && !copy.join("sub/.git").exists());
    // A directory that exists is not written into.
    let again = user.cli(&["cp", "app:report.pdf", "."]).await;
    failed_with(&again, "exists");
    std::fs::remove_dir_all(&copy).unwrap();

    // A file with another name, several files, a link and then a file through it.
    let before = files(&user.root());
    for script in [
        "cd /tmp/e && exec tar.real -cf - .bashrc",
        "cd /tmp/e && exec tar.real -cf - ok .bashrc other",
        "cd /tmp/e && exec tar.real -cf - root",
    ] {
        container(&user, &tar(script)).await;
        let copied = user.cli(&["cp", "app:report.pdf", "."]).await;
        assert_eq!(user.read(".bashrc"), "mine\n", "{script}");
        let mut now = files(&user.root());
        now.retain(|path| path != Path::new("report.pdf"));
        assert_eq!(now, before, "{script}: {}", stderr(&copied));
        assert_eq!(
            copied.status.success(),
            script.ends_with("- .bashrc"),
            "{script}"
        );
    }
    assert_eq!(user.read("report.pdf"), "evil\n");
    // A link here is not written through.
    std::fs::remove_file(user.root().join("report.pdf")).unwrap();
    std::os::unix::fs::symlink(".bashrc", user.root().join("report.pdf")).unwrap();
    container(&user, "mv -f /usr/bin/tar.real /usr/bin/tar").await;
    for to in [".", "report.pdf"] {
        failed_with(&user.cli(&["cp", "app:report.pdf", to]).await, "link");
    }
    assert_eq!(user.read(".bashrc"), "mine\n");
}

#[test(needs(sandbox))]
async fn apply_takes_what_diff_has_shown_and_runs_no_hook() {
    let user = User::new();
    user.write(".husky/keep", "");
    user.git(["add", "-A"]);
    user.git(["commit", "-q", "-m", "hooks"]);
    user.git(["config", "core.hooksPath", ".husky"]);
    agent(&user, "echo harmless > a").await;
    let shown = user.ok(&["diff"]).await;
    assert!(shown.contains("+harmless"), "{shown}");
    let hook = "for h in post-index-change reference-transaction; do \
                printf '#!/bin/sh\\ntouch ../RAN RAN\\n' > .husky/$h; chmod 755 .husky/$h; done";
    container(&user, &format!("echo EVIL > a; {hook}")).await;
    let applied = user.cli(&["apply"]).await;
    failed_with(&applied, "has changed since");
    assert!(user.read("a").starts_with("1\n"));
    assert!(!user.root().join(".husky/post-index-change").exists());
    // Who has looked again, or says so, gets it, with a warning about files that git runs.
    let shown = user.ok(&["diff", "--stat"]).await;
    assert!(shown.contains(".husky/post-index-change"), "{shown}");
    container(&user, "echo WORSE > a").await;
    let applied = user.cli(&["apply", "--yes"]).await;
    assert!(applied.status.success(), "{}", stderr(&applied));
    assert!(
        stderr(&applied).contains("warning")
            && stderr(&applied).contains(".husky/reference-transaction"),
        "{}",
        stderr(&applied)
    );
    assert_eq!(user.read("a"), "WORSE\n");
    // Commands of this program run no hook.
    agent(&user, "echo more > b").await;
    for command in [&["diff"][..], &["fetch"], &["apply"]] {
        user.ok(command).await;
    }
    let ran = [user.root(), user.directory.path().to_owned()]
        .iter()
        .any(|place| place.join("RAN").exists());
    assert!(!ran, "a hook ran");
}

#[test(needs(sandbox))]
async fn a_container_cannot_name_commits_that_were_not_sent_to_it() {
    let user = User::new();
    user.git(["checkout", "-q", "-b", "private"]);
    user.write("priv.txt", "PRIVATE-BRANCH\n");
    user.git(["add", "-A"]);
    user.git(["commit", "-q", "-m", "private"]);
    let private = user.git(["rev-parse", "HEAD"]);
    let (private, tree) = (private.trim(), user.git(["rev-parse", "HEAD^{tree}"]));
    user.git(["checkout", "-q", "trunk"]);
    agent(&user, "echo x > x").await;
    // What it is told is kept, and its answers are its own.
    let named = format!(
        "case \"$*\" in\n*refs/oubliette/kept/*) echo {private} ;;\n\
         'cat-file --batch-check'*) tee /tmp/told > /dev/null ;;\n\
         'pack-objects '*) cat > /dev/null; git.real pack-objects --stdout -q < /dev/null ;;\n\
         diff-tree*) ;;\n*) exec git.real \"$@\" ;;\nesac"
    );
    // A commit that it made, with a tree that it has not sent.
    let tree = tree.trim();
    let made = format!(
        "case \"$*\" in\n*refs/oubliette/kept/*) exit 1 ;;\n\
         write-tree) echo {tree} ;;\n\
         commit-tree*) printf 'tree {tree}\\nauthor A <a@b> 1 +0000\\ncommitter A <a@b> 1 +0000\\n\\nm\\n' |\n\
         git.real hash-object -t commit -w --stdin --literally | tee /tmp/made ;;\n\
         update-ref*) ;;\n\
         'cat-file --batch-check'*) tee -a /tmp/told > /dev/null ;;\n\
         'pack-objects '*) cat > /dev/null; git.real pack-objects --stdout -q < /tmp/made ;;\n\
         diff-tree*) ;;\n*) exec git.real \"$@\" ;;\nesac"
    );
    let before = user.state();
    for (attack, body) in [("its commit", named), ("its tree", made)] {
        replace(&user, "git", &body).await;
        for command in ["diff", "apply", "fetch"] {
            let output = user.cli(&[command]).await;
            assert!(
                !output.status.success(),
                "{attack}, {command}: {}",
                stdout(&output)
            );
            assert!(
                stderr(&output).contains("did not send"),
                "{attack}, {command}: {}",
                stderr(&output)
            );
        }
        assert!(!user.root().join("priv.txt").exists(), "{attack}");
        assert_eq!(user.state(), before, "{attack}");
    }
    let told = user
        .ok(&["container", "exec", "app", "cat /tmp/told || true"])
        .await;
    assert!(!told.contains(private), "{told}");
    container(&user, "mv -f /usr/bin/git.real /usr/bin/git").await;
    user.ok(&["apply"]).await;
    assert_eq!(user.read("x"), "x\n");
}

#[test(needs(sandbox))]
async fn snapshots_are_private_and_do_not_stay_after_a_kill() {
    let user = User::new();
    user.write("untracked", "secret\n");
    let temporary = user.directory.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let snapshots = user.server.home().join("checkouts/snapshots");
    let listed = || -> Vec<PathBuf> {
        let found = std::fs::read_dir(&snapshots)
            .into_iter()
            .flatten()
            .flatten();
        found
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect()
    };
    // Where what goes into the workspace is not read, the sender waits with its snapshot.
    agent(&user, "echo x > x").await;
    user.ok(&["apply"]).await;
    let block = "case \"$*\" in index-pack*) sleep 1000 ;; esac\nexec git.real \"$@\"";
    replace(&user, "git", block).await;
    let mut command = user.command(&user.root());
    command.env("TMPDIR", &temporary).args(["run", "/sh true"]);
    let mut child = command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    support::wait_for("a snapshot", async || {
        let found = listed().into_iter().chain(
            std::fs::read_dir(&temporary)
                .unwrap()
                .flatten()
                .map(|entry| entry.path()),
        );
        found
            .into_iter()
            .any(|path| path.join("objects").exists())
            .then_some(())
    })
    .await;
    let outside: Vec<_> = std::fs::read_dir(&temporary).unwrap().flatten().collect();
    for path in listed().into_iter().chain([snapshots.clone()]) {
        let mode = std::fs::metadata(&path).map(|meta| meta.permissions().mode() & 0o777);
        assert_eq!(mode.ok(), Some(0o700), "{}", path.display());
    }
    // Another command does not remove what a living one uses: one that waits holds its lock.
    let is_used = |path: &PathBuf| {
        let lock = std::fs::File::open(path.join("lock"));
        let operation = rustix::fs::FlockOperation::NonBlockingLockShared;
        path.join("index").exists()
            && lock.is_ok_and(|lock| rustix::fs::flock(&lock, operation).is_err())
    };
    let living = support::wait_for("a snapshot in use", async || {
        let used: Vec<PathBuf> = listed().into_iter().filter(is_used).collect();
        (!used.is_empty()).then_some(used)
    })
    .await;
    let other = user.directory.path().join("other");
    std::fs::create_dir_all(&other).unwrap();
    user.cli_in(&other, &["diff"]).await;
    let all_there = living.iter().all(|path| path.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(outside.is_empty(), "{outside:?}");
    assert!(all_there, "a snapshot in use was removed");
    assert!(!listed().is_empty());
    user.cli_in(&other, &["diff"]).await;
    assert_eq!(listed(), Vec::<PathBuf>::new());
}

#[test(needs(sandbox))]
async fn files_that_git_ignored_are_not_sent_after_an_agent_has_changed_the_rules() {
    let user = User::new();
    user.write(".gitignore", ".env\nbuild/\n");
    user.git(["add", "-A"]);
    user.git(["commit", "-q", "-m", "rules"]);
    user.write(".env", "SECRET\n");
    agent(&user, ": > .gitignore").await;
    // Made after the copy.
    user.write("build/deep/key", "SECRET\n");
    user.ok(&["apply"]).await;
    assert_eq!(user.read(".gitignore"), "");
    user.write("new", "n\n");
    let look = "/sh cat .env build/deep/key; cat new; git status --porcelain";
    for _ in 0..2 {
        let ran = user.cli(&["run", look]).await;
        let text = stdout(&ran);
        assert!(text.contains("n\n") && !text.contains("SECRET"), "{text}");
        let said = stderr(&ran);
        assert!(
            said.contains(".env") && said.contains("build/deep/key"),
            "{said}"
        );
    }
    let ran = user.cli(&["run", "--no-longer-ignored", look]).await;
    assert!(stdout(&ran).contains("SECRET"), "{}", stdout(&ran));
}

#[test(needs(sandbox))]
async fn work_without_end_is_refused() {
    let user = User::new();
    agent(&user, "echo x > x").await;
    // 10^7 files in 8 objects.
    let tree = "id=$(echo x | git hash-object -w --stdin); mode='100644 blob'; for level in 1 2 3 4 5 6 7; do \
                id=$(for n in 0 1 2 3 4 5 6 7 8 9; do printf '%s %s\\t%s\\n' \"$mode\" $id $n; done | git mktree); \
                mode='040000 tree'; done; git commit-tree $id -m many > /tmp/many; git update-ref refs/many $(cat /tmp/many)";
    container(&user, tree).await;
    let many = "case \"$*\" in\n*refs/oubliette/kept/*) cat /tmp/many ;;\ndiff-tree*) ;;\n*) exec git.real \"$@\" ;;\nesac";
    replace(&user, "git", many).await;
    for command in ["diff", "apply", "fetch"] {
        failed_with(&user.cli(&[command]).await, "files and is refused");
    }
    replace(&user, "git", "exec git.real \"$@\"").await;
    user.ok(&["apply"]).await;
    // A list of commits that does not end.
    replace(&user, "sort", "exec tr '\\000' 0 < /dev/zero").await;
    let ran = user.cli(&["run", "/sh true"]).await;
    failed_with(&ran, "something else than the commits");
    replace(&user, "sort", "exec yes 1").await;
    replace(&user, "head", "exec cat").await;
    let ran = user.cli(&["run", "/sh true"]).await;
    failed_with(&ran, "something else than the commits");
}

#[test(needs(sandbox))]
async fn a_diff_cannot_control_the_terminal() {
    let user = User::new();
    user.git(["config", "core.pager", "cat"]);
    let root = user.root();
    agent(
        &user,
        "printf 'before\\033]0;PWNED\\007\\033[2J\\033]52;c;QUFB\\007after\\n' > a; echo end > z",
    )
    .await;
    let arguments = ["diff", "--dir", root.to_str().unwrap()];
    let mut terminal = support::Pty::run(user.server.home(), (24, 80), &arguments);
    terminal.wait_for("+end");
    assert_eq!(terminal.exit_code(), Some(0));
    let shown = terminal.shown();
    assert!(shown.contains("before ]0;PWNED"), "{shown:?}");
    for sequence in ["\u{1b}]", "\u{1b}[2J", "\u{7}"] {
        assert!(!shown.contains(sequence), "{shown:?}");
    }
    // Programs get the exact patch.
    let piped = user.ok(&["diff"]).await;
    assert!(piped.contains("\u{1b}]0;PWNED\u{7}"), "{piped:?}");
}

#[test(needs(sandbox))]
async fn a_planted_repository_is_named_and_not_used() {
    let user = User::new();
    let ran = user.directory.path().join("RAN");
    let plant = format!(
        "mkdir -p ev/objects ev/refs; echo 'ref: refs/heads/x' > ev/HEAD; touch ev/objects/x ev/refs/x; \
         printf '[core]\\nrepositoryformatversion = 0\\nworktree = ..\\nfsmonitor = \"touch {}; false\"\\n' > ev/config",
        ran.display()
    );
    agent(&user, &plant).await;
    let applied = user.cli(&["apply"]).await;
    assert!(applied.status.success(), "{}", stderr(&applied));
    let warning = stderr(&applied);
    let warning = warning.lines().find(|line| line.starts_with("warning"));
    assert!(
        warning.is_some_and(|line| line.ends_with(": ev")),
        "{}",
        stderr(&applied)
    );
    let planted = user.root().join("ev");
    for command in [&["diff"][..], &["run", "--here", "/sh true"], &["apply"]] {
        user.cli_in(&planted, command).await;
    }
    assert!(!ran.exists(), "a command of the planted repository ran");
}

#[test(needs(sandbox))]
async fn the_data_directory_is_in_no_copy() {
    let user = User::new();
    // The default data directory: `HOME` is this directory.
    let home = user.directory.path();
    user.write("../.oubliette/admin.token", "oub_SECRET\n");
    user.write("../file", "f\n");
    let arguments = ["run", "--here", "/sh ls -A; cat .oubliette/admin.token"];
    let ran = user.cli_in(home, &arguments).await;
    let text = stdout(&ran);
    assert!(text.contains("file") && !text.contains("SECRET"), "{text}");
    assert!(
        stderr(&ran).contains("not sent: .oubliette"),
        "{}",
        stderr(&ran)
    );
    let ran = user
        .cli_in(&home.join(".oubliette"), &["run", "--here", "/sh ls -A"])
        .await;
    assert!(!ran.status.success() && stderr(&ran).contains("data directory"));
    // An agent that does not exist is refused before anything is sent.
    let ran = user.cli(&["run", "--agent", "cluade", "/say x"]).await;
    let said = stderr(&ran);
    assert!(
        said.contains("there is no agent") && !said.contains("Sent"),
        "{said}"
    );
}

#[test(needs(sandbox))]
async fn the_container_does_not_say_what_has_changed() {
    let user = User::new();
    agent(&user, "echo x > x").await;
    let lie = "case \"$*\" in *stat*) echo ' 77 files changed, 9 insertions(+)' ;; esac\nexec git.real \"$@\"";
    replace(&user, "git", lie).await;
    let ran = user.cli(&["run", "--continue", "/sh echo y > y"]).await;
    let said = stderr(&ran);
    assert!(
        said.contains("2 files changed, +2 −0") && !said.contains("77 files"),
        "{said}"
    );
}

#[test(needs(sandbox))]
async fn without_a_checkpoint_the_summary_does_not_guess() {
    let config = "runtime = \"sandbox\"\n[limits]\ncheckpoint_mb = 0\n";
    let user = User::with(support::Server::start_with(support::ServerOptions {
        config: config.to_owned(),
        ..support::ServerOptions::default()
    }));
    let ran = user.cli(&["run", "--json", "/sh echo y > y"]).await;
    let result: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert!(result["changed"].is_null(), "{result}");
    let ran = user.cli(&["run", "--continue", "/sh echo z > z"]).await;
    assert!(stderr(&ran).contains("no checkpoint"), "{}", stderr(&ran));
    assert!(user.ok(&["diff"]).await.contains("+y"));
}

/// A directory that is in no repository, a file that git tracks, and one that it does not.
#[test(needs(sandbox))]
async fn files_with_a_key_of_oubliette_are_not_sent() {
    let key = format!("oub_{}", "Ab-_9".repeat(9).get(..43).unwrap());
    let config = format!("{{ \"Authorization\": \"Bearer {key}\" }}\n");
    let user = User::new();
    user.write(".mcp.json", "{}\n");
    user.git(["add", ".mcp.json"]);
    user.git(["commit", "-qm", "client"]);
    user.write(".mcp.json", &config);
    user.write("deep/new.json", &config);
    user.write("deep/plain.json", "oub_short\n");
    let said = user
        .ok(&["run", "/sh cat .mcp.json; ls deep; ! grep -r oub_Ab ."])
        .await;
    assert!(said.contains("{}\nplain.json\n"), "{said}");
    let noted = user.cli(&["run", "/sh true"]).await;
    let noted = stderr(&noted);
    assert!(
        noted.contains("not sent") && noted.contains(".mcp.json, deep/new.json"),
        "{noted}"
    );
    // Nothing of it is lost here.
    agent(&user, "echo more > more.txt").await;
    user.ok(&["apply", "--yes"]).await;
    assert_eq!(user.read("more.txt"), "more\n");
    assert_eq!(user.read(".mcp.json"), config);
    assert_eq!(user.read("deep/new.json"), config);

    let plain = user.root().with_file_name("plain");
    std::fs::create_dir(&plain).unwrap();
    std::fs::write(plain.join(".mcp.json"), &config).unwrap();
    let here = user.cli_in(&plain, &["run", "--here", "/sh ls -A"]).await;
    assert!(here.status.success(), "{}", stderr(&here));
    assert!(stderr(&here).contains("not sent"), "{}", stderr(&here));
    assert!(!stdout(&here).contains(".mcp.json"), "{}", stdout(&here));
}

#[test(needs(sandbox))]
async fn links_that_lead_out_of_the_repository_are_named() {
    let user = User::new();
    agent(
        &user,
        "mkdir d; ln -s /etc/passwd abs; ln -s ../../x d/up; ln -s ../a d/in",
    )
    .await;
    let applied = user.cli(&["apply", "--yes"]).await;
    assert!(applied.status.success(), "{}", stderr(&applied));
    let said = stderr(&applied);
    let warning = said.lines().find(|line| line.starts_with("warning"));
    assert!(
        warning.is_some_and(|line| line.ends_with(": abs -> /etc/passwd, d/up -> ../../x")),
        "{said}"
    );
}
