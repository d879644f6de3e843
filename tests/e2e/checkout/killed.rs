//! Commands and servers that are killed while they work: neither the user's files nor the work of the
//! agent are lost. Each test says how often it must have hit the work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{Random, stderr, stdout};

use super::User;

const TAKE_ROUNDS: usize = 4;
/// A busy machine lets a test miss.
const MAX_ROUNDS: usize = 24;
/// How many kills must have found files that were neither the old nor the new ones.
const APPLY_HITS: usize = 3;
/// How many kills must have found a copy of which a part had arrived.
const SEND_HITS: usize = 2;
const FILES: usize = 200;
const COPY_BYTES: usize = 12 << 20;
/// Far longer than a command takes, on a busy machine too.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

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
    user.ok(&["apply"]).await;
    let after = files(&user.root());
    assert_eq!(after.get("mine"), before.get("mine"));
    assert!(after.contains_key("added/100") && !after.contains_key("dir0/f0"));
    let changed: Vec<&String> = after.keys().filter(|name| !name.eq(&"a")).collect();

    let mut hits = 0;
    for round in 0..MAX_ROUNDS {
        if hits == APPLY_HITS {
            break;
        }
        reset(&user);
        // The kill is aimed at the moment at which one of the files is the new one.
        let aim = changed[random.below(changed.len() as u64) as usize];
        let (aimed_at, expected) = (user.root().join(aim), after[aim].clone());
        let is_reached =
            move || std::fs::read_to_string(&aimed_at).is_ok_and(|text| text == expected);
        if is_reached() {
            continue;
        }
        let mut command = user.command(&user.root());
        command.arg("apply");
        kill_when(command, is_reached).await;
        let found = files(&user.root());
        hits += usize::from(found != before && found != after);
        // The next command in the directory, whichever it is.
        user.ok(&["diff", "--stat"]).await;
        let found = files(&user.root());
        assert!(
            found == before || found == after,
            "round {round}, killed at {aim}: the files are neither the old nor the new ones"
        );
        user.ok(&["apply"]).await;
        assert_eq!(files(&user.root()), after, "round {round}");
    }
    assert_eq!(hits, APPLY_HITS, "too few of the kills hit an apply");
    let index = user.git(["diff", "--cached", "--stat"]);
    assert_eq!(index, "", "nothing is staged");
}

#[test(needs(sandbox), limit = 300)]
async fn a_server_that_is_killed_while_it_receives_a_copy_loses_nothing() {
    let mut random = Random::new();
    let mut user = User::new();
    let work = "/sh sha256sum a big; echo by-agent >> work";
    let (mut hits, mut rounds) = (0, 0);
    let mut bytes = Vec::new();
    while hits < SEND_HITS && rounds < MAX_ROUNDS {
        rounds += 1;
        // Other bytes each time: those that the workspace has are not sent again.
        bytes = random_bytes(&mut random, COPY_BYTES);
        std::fs::write(user.root().join("big"), &bytes).unwrap();
        let summed = std::process::Command::new("sha256sum")
            .args(["a", "big"])
            .current_dir(user.root())
            .output();
        let expected = stdout(&summed.unwrap());
        let before = user.state();
        let mut command = tokio::process::Command::from(user.command(&user.root()));
        command.args(["run", work]).stdout(Stdio::piped());
        let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
        // As soon as this much of the pack has arrived.
        let arrived = random.below(COPY_BYTES as u64 / 2);
        let home = user.server.home().to_owned();
        let is_arriving = loop {
            if received(&home).iter().any(|size| *size > arrived) {
                break true;
            }
            if running.try_wait().unwrap().is_some() {
                break false;
            }
            tokio::task::yield_now().await;
        };
        user.server.kill();
        hits += usize::from(is_arriving && !received(&home).is_empty());
        user.server.start_again();
        let ended = tokio::time::timeout(COMMAND_TIMEOUT, running.wait_with_output()).await;
        let ended = ended.expect("the command waits on").unwrap();
        assert_eq!(user.state(), before, "round {rounds}");
        let said = if ended.status.success() {
            stdout(&ended)
        } else {
            // It says so; the same command works.
            assert!(!stderr(&ended).is_empty());
            user.ok(&["run", work]).await
        };
        assert_eq!(said, expected, "round {rounds}: {}", stderr(&ended));
    }
    assert_eq!(hits, SEND_HITS, "too few of the kills hit a copy");
    let taken = user.ok(&["diff", "--", "work"]).await;
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
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
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

#[test(needs(sandbox), limit = 300)]
async fn a_fetch_or_cp_that_is_killed_leaves_nothing_half() {
    let mut random = Random::new();
    let user = User::new();
    let work = "/sh head -c 12000000 /dev/urandom > big; git add big; git commit -q -m 'by the agent'; \
                sha256sum < big";
    let sum = user.ok(&["run", work]).await;
    let before = user.state();
    let sum_of = |bytes: Vec<u8>| {
        let path = user.directory.path().join("to-sum");
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::File::open(path).unwrap();
        let summed = std::process::Command::new("sha256sum").stdin(file).output();
        stdout(&summed.unwrap())
    };
    let place = user.directory.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let target = place.join("copied");
    let target = target.to_str().unwrap();
    let branches = || -> Vec<String> {
        let names = user.git([
            "branch",
            "--format=%(refname:short)",
            "--list",
            "oubliette/*",
        ]);
        names.lines().map(str::to_owned).collect()
    };
    for arguments in [&["fetch"][..], &["cp", "app:big", target]] {
        // How long it takes when nothing kills it.
        let started = Instant::now();
        user.ok(arguments).await;
        let duration = started.elapsed();
        let (mut killed, mut rounds) = (0, 0);
        while killed < 3 && rounds < MAX_ROUNDS {
            rounds += 1;
            for branch in branches() {
                user.git(["branch", "-q", "-D", &branch]);
            }
            let _ = std::fs::remove_file(target);
            let mut command = user.command(&user.root());
            command.args(arguments);
            let deadline = Instant::now() + random.duration_below(duration);
            let is_over = kill_when(command, move || Instant::now() > deadline).await;
            killed += usize::from(!is_over);
            // Either nothing or all of it.
            let now = user.state();
            for branch in branches() {
                assert_eq!(
                    user.git(["log", "-1", "--format=%s", &branch]),
                    "by the agent\n"
                );
                user.git(["fsck", "--no-dangling", "--connectivity-only", &branch]);
            }
            if let Ok(found) = std::fs::read(target) {
                assert_eq!(sum_of(found), sum, "{arguments:?}: a part of a file");
            }
            assert_eq!((&now.0, &now.2), (&before.0, &before.2), "{arguments:?}");
            // The next command works.
            user.ok(arguments).await;
            if arguments[0] == "cp" {
                assert_eq!(sum_of(std::fs::read(target).unwrap()), sum);
            } else {
                assert_eq!(branches().len(), 1);
            }
        }
        assert!(killed >= 3, "{arguments:?} ended before it was killed");
    }
}

/// Runs a command and kills it as soon as a condition holds; whether it ended before.
async fn kill_when(
    mut command: std::process::Command,
    is_reached: impl Fn() -> bool + Send + 'static,
) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // On a thread of its own, which does nothing but look.
    let watch = tokio::task::spawn_blocking(move || {
        let mut running = command.spawn().unwrap();
        loop {
            if running.try_wait().unwrap().is_some() {
                return true;
            }
            if is_reached() {
                running.kill().unwrap();
                running.wait().unwrap();
                return false;
            }
            std::thread::yield_now();
        }
    });
    let watched = tokio::time::timeout(COMMAND_TIMEOUT, watch).await;
    watched.expect("the command waits on").unwrap()
}

/// The sizes of packs that arrive in workspaces.
fn received(home: &Path) -> Vec<u64> {
    let entries = |directory: PathBuf| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let workspaces = entries(home.join("projects"))
        .into_iter()
        .flat_map(|project| {
            let mut workspaces = entries(project.join("workspaces"));
            workspaces.push(project.join("workspace"));
            workspaces
        });
    let files = workspaces.flat_map(|workspace| entries(workspace.join(".git/objects/pack")));
    let is_temporary = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("tmp_")
    };
    let sizes = files.filter(is_temporary);
    sizes
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .collect()
}

fn random_bytes(random: &mut Random, count: usize) -> Vec<u8> {
    let words = std::iter::repeat_with(|| random.below(u64::MAX).to_le_bytes());
    words.take(count / 8).flatten().collect()
}
