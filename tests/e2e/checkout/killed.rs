//! Commands and servers that are killed at random moments: neither the user's files nor the work of the
//! agent are lost.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use support::{Random, stderr, stdout};

use super::User;

const APPLY_ROUNDS: usize = 6;
const SEND_ROUNDS: usize = 3;
const TAKE_ROUNDS: usize = 4;
const FILES: usize = 200;

/// All files below a directory except git's, with their contents.
fn files(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with(".git") {
                    pending.push(path);
                }
                continue;
            }
            let name = path.strip_prefix(root).unwrap().display().to_string();
            found.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
    found
}

/// Makes the files those of the commit, and one of the user's own.
fn reset(user: &User) {
    user.git(["checkout", "-q", "--", "."]);
    user.git(["clean", "-qfd"]);
    user.write("mine", "not committed\n");
}

#[test(needs(sandbox), limit = 300)]
async fn an_apply_that_is_killed_is_finished_or_undone_by_the_next_command() {
    let mut random = Random::new();
    let user = User::new();
    for number in 0..FILES {
        user.write(&format!("dir{}/f{number}", number % 7), "old\n");
    }
    user.git(["add", "-A"]);
    user.git(["commit", "-q", "-m", "many"]);
    reset(&user);
    let work = "/sh for f in dir[1-6]/*; do echo new > $f; done; rm -r dir0; mkdir added; \
                for i in $(seq 100); do echo $i > added/$i; done";
    user.ok(&["run", work]).await;
    let before = files(&user.root());
    let started = Instant::now();
    user.ok(&["apply"]).await;
    let duration = started.elapsed();
    let after = files(&user.root());
    assert_eq!(after.get("mine"), before.get("mine"));
    assert!(after.contains_key("added/100") && !after.contains_key("dir0/f0"));

    for round in 0..APPLY_ROUNDS {
        reset(&user);
        let mut command = tokio::process::Command::from(user.command(&user.root()));
        let mut killed = command.arg("apply").spawn().unwrap();
        let moment = random.duration_below(duration);
        let _ = tokio::time::timeout(moment, killed.wait()).await;
        let _ = killed.start_kill();
        killed.wait().await.unwrap();
        // The next command in the directory, whichever it is.
        user.ok(&["diff", "--stat"]).await;
        let found = files(&user.root());
        assert!(
            found == before || found == after,
            "round {round}, killed after {moment:?}: the files are neither the old nor the new ones"
        );
        user.ok(&["apply"]).await;
        assert_eq!(files(&user.root()), after, "round {round}");
    }
    let index = user.git(["diff", "--cached", "--stat"]);
    assert_eq!(index, "", "nothing is staged");
}

#[test(needs(sandbox), limit = 300)]
async fn a_server_that_is_killed_while_it_receives_a_copy_loses_nothing() {
    let mut random = Random::new();
    let mut user = User::new();
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.below(256) as u8)
        .take(3 << 20)
        .collect();
    std::fs::write(user.root().join("big"), &bytes).unwrap();
    let sums = || {
        let summed = std::process::Command::new("sha256sum")
            .args(["a", "big"])
            .current_dir(user.root())
            .output();
        stdout(&summed.unwrap())
    };
    let expected = sums();
    let before = user.state();
    let work = "/sh sha256sum a big; echo by-agent >> work";
    let mut taken = String::new();
    for round in 0..SEND_ROUNDS {
        let mut command = tokio::process::Command::from(user.command(&user.root()));
        command
            .args(["run", work])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let running = command.spawn().unwrap();
        tokio::time::sleep(random.duration_below(Duration::from_secs(3))).await;
        user.server.kill();
        user.server.start_again();
        let ended = running.wait_with_output().await.unwrap();
        assert_eq!(user.state(), before, "round {round}");
        let said = if ended.status.success() {
            stdout(&ended)
        } else {
            // It says so; the same command works.
            assert!(!stderr(&ended).is_empty());
            user.ok(&["run", work]).await
        };
        assert_eq!(said, expected, "round {round}: {}", stderr(&ended));
        taken = user.ok(&["diff", "--", "work"]).await;
    }
    assert!(taken.contains("+by-agent"), "{taken}");
    user.ok(&["apply"]).await;
    assert_eq!(user.read("work"), "by-agent\n");
    assert_eq!(std::fs::read(user.root().join("big")).unwrap(), bytes);
}

/// Runs a command of the user's and kills the server at a random moment of it; the server is back at once.
async fn kill_server_during(
    user: &mut User,
    random: &mut Random,
    verb: &str,
    duration: Duration,
) -> (std::process::Output, Duration) {
    let mut command = tokio::process::Command::from(user.command(&user.root()));
    command
        .arg(verb)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let running = command.spawn().unwrap();
    let moment = random.duration_below(duration);
    tokio::time::sleep(moment).await;
    user.server.kill();
    user.server.start_again();
    (running.wait_with_output().await.unwrap(), moment)
}

#[test(needs(sandbox), limit = 300)]
async fn a_server_that_is_killed_during_diff_apply_or_fetch_loses_nothing() {
    let mut random = Random::new();
    let mut user = User::new();
    for number in 0..FILES {
        user.write(&format!("dir{}/f{number}", number % 7), "old\n");
    }
    user.git(["add", "-A"]);
    user.git(["commit", "-q", "-m", "many"]);
    reset(&user);
    let work = "/sh for f in dir[1-6]/*; do echo new > $f; done; rm -r dir0; git commit -q -a -m work; \
                head -c 2000000 /dev/urandom | base64 > big";
    user.ok(&["run", work]).await;
    let (before, references) = (files(&user.root()), user.git(["for-each-ref"]));
    let shown = user.ok(&["diff"]).await;
    let mut durations = BTreeMap::new();
    for verb in ["diff", "fetch", "apply"] {
        let started = Instant::now();
        user.ok(&[verb]).await;
        durations.insert(verb, started.elapsed());
    }
    let after = files(&user.root());
    let branch = user.git([
        "for-each-ref",
        "--format=%(refname:short)",
        "refs/heads/oubliette",
    ]);
    let branch = branch.trim().to_owned();
    let fetched_tree = user.git(["rev-parse", &format!("{branch}^{{tree}}")]);
    assert!(after.contains_key("big") && !after.contains_key("dir0/f0"));

    for round in 0..TAKE_ROUNDS {
        for (verb, duration) in &durations {
            reset(&user);
            user.git(["update-ref", "-d", &format!("refs/heads/{branch}")]);
            let (ended, moment) = kill_server_during(&mut user, &mut random, verb, *duration).await;
            let what = format!(
                "round {round}, {verb}, killed after {moment:?}: {}",
                stderr(&ended)
            );
            let is_done = ended.status.success();
            assert!(is_done || !stderr(&ended).is_empty(), "{what}");
            let is_applied = *verb == "apply" && is_done;
            let expected = if is_applied { &after } else { &before };
            assert!(files(&user.root()) == *expected, "{what}");
            if *verb != "fetch" || !is_done {
                assert_eq!(user.git(["for-each-ref"]), references, "{what}");
            }
            if *verb == "diff" && is_done {
                assert_eq!(stdout(&ended), shown, "{what}");
            }
            // The same command works, and has everything.
            let said = user.ok(&[verb]).await;
            match *verb {
                "diff" => assert_eq!(said, shown, "{what}"),
                "fetch" => {
                    let tree = user.git(["rev-parse", &format!("{branch}^{{tree}}")]);
                    assert_eq!(tree, fetched_tree, "{what}");
                    assert!(files(&user.root()) == before, "{what}");
                }
                _ => assert!(files(&user.root()) == after, "{what}"),
            }
        }
    }
    user.git(["fsck", "--no-dangling"]);
    assert_eq!(user.git(["diff", "--cached", "--stat"]), "");
}
