//! What a turn changed, and what is kept of it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Modern, Random, Server, ServerOptions, server_with};

pub(super) async fn diff(admin: &Modern, session: &str, mut more: Value) -> Value {
    more["session_id"] = json!(session);
    admin.call("session_diff", more).await.ok().clone()
}

/// The whole patch, page by page.
async fn whole_patch(admin: &Modern, session: &str) -> (String, usize) {
    let (mut text, mut pages, mut cursor) = (String::new(), 0, Value::Null);
    loop {
        let page = diff(admin, session, json!({ "cursor": cursor })).await;
        text.push_str(page["diff"].as_str().unwrap());
        pages += 1;
        cursor = page["next_cursor"].clone();
        assert_eq!(page["truncated"], !cursor.is_null());
        if cursor.is_null() {
            return (text, pages);
        }
    }
}

fn git_apply(directory: &Path, patch: &str) {
    use std::io::Write;
    let mut git = Command::new("git")
        .current_dir(directory)
        .env("GIT_CEILING_DIRECTORIES", directory.parent().unwrap())
        .args(["apply", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = git.stdin.take().unwrap();
    stdin.write_all(patch.as_bytes()).unwrap();
    drop(stdin);
    assert!(git.wait().unwrap().success(), "{patch}");
}

fn statuses(diff: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let files = diff["files"].as_array().unwrap().iter();
    files
        .map(|file| (text(&file["path"]), text(&file["status"])))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(path, status): &(&str, &str)| ((*path).to_owned(), (*status).to_owned());
    expected.iter().map(owned).collect()
}

fn objects(server: &Server, project: &str) -> Vec<std::path::PathBuf> {
    let directory = server
        .home()
        .join("projects")
        .join(project)
        .join("checkpoints");
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test(runtimes)]
async fn a_turn_says_what_it_changed_and_the_patch_can_be_applied(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let write = json!({ "project_id": project, "path": "kept.txt", "content": "one\ntwo\n" });
    admin.call("workspace_write", write).await.ok();
    let first = "/sh printf 'two\\nthree\\n' > kept.txt; echo new > new.txt; mkdir -p target; echo t > target/x; \
                 echo target > .gitignore; printf '\\000\\001' > raw";
    let session = admin.spawn(&project, first).await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(
        completion["changed"],
        json!({ "files": 4, "added": 3, "removed": 1 }),
        "{runtime}"
    );
    let log = admin.log(&session).await;
    let made = log.iter().position(|e| e["type"] == "checkpoint").unwrap();
    assert_eq!(log[made]["turn"], 1);
    for field in ["files", "added", "removed"] {
        assert_eq!(
            log[made][field], completion["changed"][field],
            "{runtime}: {field}"
        );
    }
    assert_eq!(log[made + 1]["type"], "completion");
    let id = log[made]["checkpoint_id"].as_str().unwrap();
    assert_eq!(id.len(), 32);

    admin
        .message(
            &session,
            "/sh echo more >> new.txt; mv raw moved; rm kept.txt",
        )
        .await;
    let completion = admin.turn(&session, 2).await;
    assert_eq!(completion["changed"]["files"], 3, "{runtime}: {completion}");
    admin.message(&session, "/say nothing").await;
    let completion = admin.turn(&session, 3).await;
    assert_eq!(
        completion["changed"],
        json!({ "files": 0, "added": 0, "removed": 0 })
    );

    let second = diff(&admin, &session, json!({ "turn": 2 })).await;
    assert_eq!(
        statuses(&second),
        pairs(&[
            ("kept.txt", "deleted"),
            ("moved", "renamed"),
            ("new.txt", "modified")
        ]),
        "{runtime}"
    );
    let range = diff(&admin, &session, json!({ "from_turn": 1, "to_turn": 3 })).await;
    assert_eq!(statuses(&range), statuses(&second), "{runtime}");
    let first = diff(&admin, &session, json!({ "turn": 1 })).await;
    let range = diff(&admin, &session, json!({ "to_turn": 1 })).await;
    assert_eq!(statuses(&range), statuses(&first), "{runtime}");
    assert_ne!(statuses(&first), statuses(&second));
    let both = json!({ "session_id": session, "turn": 1, "from_turn": 1 });
    let refused = admin.call("session_diff", both).await;
    assert!(
        refused.sentence().contains("`turn`"),
        "{}",
        refused.sentence()
    );
    let whole = diff(&admin, &session, json!({})).await;
    assert_eq!(
        statuses(&whole),
        pairs(&[
            (".gitignore", "added"),
            ("kept.txt", "deleted"),
            ("moved", "added"),
            ("new.txt", "added"),
        ])
    );
    assert_eq!(whole["files"][2]["binary"], true);
    let copy = tempfile::tempdir().unwrap();
    let copy = copy.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::write(copy.join("kept.txt"), "one\ntwo\n").unwrap();
    git_apply(&copy, whole["diff"].as_str().unwrap());
    assert_eq!(
        std::fs::read_to_string(copy.join("new.txt")).unwrap(),
        "new\nmore\n"
    );
    assert_eq!(std::fs::read(copy.join("moved")).unwrap(), [0, 1]);
    assert!(!copy.join("kept.txt").exists());

    let one = diff(&admin, &session, json!({ "path": "new.txt", "stat": true })).await;
    assert_eq!((statuses(&one).len(), &one["diff"]), (1, &json!("")));
    assert_eq!(one["files"][0]["added"], 2);
    let review = json!({ "session_id": session, "turn": 1 });
    admin.call("session_review", review).await.ok();
    let rest = diff(&admin, &session, json!({ "since_review": true })).await;
    assert_eq!(statuses(&rest).len(), 3);
    let review = admin
        .call("session_review", json!({ "session_id": session }))
        .await;
    assert_eq!(review.ok()["turn"], 3);
    let rest = diff(&admin, &session, json!({ "since_review": true })).await;
    assert!(statuses(&rest).is_empty());
    let none = json!({ "session_id": session, "turn": 9 });
    let none = admin.call("session_diff", none).await;
    assert!(
        none.is_error() && none.sentence().contains("turn 9"),
        "{}",
        none.text
    );
}

#[test(needs(sandbox))]
async fn checkpoints_are_paged_collected_and_deleted_with_their_project() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let script = "/sh seq 1 150000 > large.txt; head -c 11000000 /dev/zero > huge; \
                  for n in $(seq 1 1200); do echo $n > file-$n; done";
    let session = admin.spawn(&project, script).await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["changed"]["files"], 1202, "{completion}");
    let (patch, pages) = whole_patch(&admin, &session).await;
    assert!(pages >= 3, "{pages}");
    assert!(
        patch.contains("# huge is larger than 10 MB"),
        "{}",
        &patch[..1000]
    );
    let copy = tempfile::tempdir().unwrap();
    let copy = copy.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    git_apply(&copy, &patch);
    let lines = std::fs::read_to_string(copy.join("large.txt")).unwrap();
    assert_eq!(lines.lines().count(), 150_000);

    let before: u64 = objects(&server, &project)
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert!(before > 500_000, "{before}");
    let ended = json!({ "session_id": session });
    admin.call("session_end", ended).await.ok();
    let cleanup = json!({ "project_id": project, "max_age_hours": 0 });
    admin.call("session_cleanup", cleanup).await.ok();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !objects(&server, &project).is_empty() {
        assert!(std::time::Instant::now() < deadline, "objects are left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let again = admin.spawn(&project, "/sh echo again > again").await;
    assert_eq!(admin.turn(&again, 1).await["changed"]["files"], 1);
    assert!(!objects(&server, &project).is_empty());
    let deleted = json!({ "project_id": project });
    admin.call("project_delete", deleted).await.ok();
    assert!(!server.home().join("projects").join(&project).exists());
}

fn stored_bytes(server: &Server, project: &str) -> u64 {
    let sizes = objects(server, project)
        .into_iter()
        .filter_map(|path| Some(path.metadata().ok()?.len()));
    sizes.sum()
}

#[test(needs(sandbox))]
async fn what_other_sessions_need_outlives_a_session_that_is_deleted() {
    let mut server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let random = "head -c 600000 /dev/urandom > random";
    let kept = admin
        .spawn(
            &project,
            "/sh echo one > file; mkdir dir; echo deep > dir/deep",
        )
        .await;
    admin.turn(&kept, 1).await;
    // Some of what it has is the same.
    let elsewhere =
        json!({ "workspace_id": "other", "create_workspace": true, "new_session": true });
    let script = format!("/sh echo one > file; mkdir dir; echo deep > dir/deep; {random}");
    let deleted = admin.spawn_with(&project, &script, elsewhere).await;
    admin.turn(&deleted, 1).await;
    admin.message(&kept, "/sh echo two > file; rm -r dir").await;
    admin.turn(&kept, 2).await;
    admin.status(&kept, "idle").await;
    // Its files before it is set back are in no turn.
    admin.exec(&project, "echo made-by-hand > file").await;
    let rewind = json!({ "session_id": kept, "turn": 2, "what": "files" });
    admin.call("session_rewind", rewind).await.ok();
    let before = stored_bytes(&server, &project);
    let end = json!({ "session_id": deleted });
    admin.call("session_end", end).await.ok();
    let cleanup = json!({ "project_id": project, "max_age_hours": 0 });
    let cleaned = admin.call("session_cleanup", cleanup).await;
    assert_eq!(cleaned.ok()["deleted"], json!([deleted]));
    support::wait_until(
        "the objects of the deleted session are removed",
        async || stored_bytes(&server, &project) + 600_000 <= before,
    )
    .await;
    // Also for a server that reads the objects anew, and collects again when it starts.
    for _ in 0..2 {
        let admin = server.admin();
        let first = diff(&admin, &kept, json!({ "turn": 1 })).await;
        let text = first["diff"].as_str().unwrap();
        assert!(text.contains("+one") && text.contains("+deep"), "{text}");
        for (turn, content) in [(1, "one\n"), (2, "two\n")] {
            let rewind = json!({ "session_id": kept, "turn": turn, "what": "files" });
            let rewound = admin.call("session_rewind", rewind).await;
            assert_eq!(rewound.ok()["not_restored"], Value::Null);
            let root = server.workspace(&project);
            let found = std::fs::read_to_string(root.join("file")).unwrap();
            assert_eq!(
                (found.as_str(), root.join("dir/deep").exists()),
                (content, turn == 1)
            );
        }
        let has_text = |path: &std::path::PathBuf| {
            let pack = std::fs::read(path).unwrap_or_default();
            pack.windows(12).any(|bytes| bytes == b"made-by-hand")
        };
        assert!(objects(&server, &project).iter().any(has_text));
        server.kill();
        server.start_again();
    }
}

#[test(needs(sandbox))]
async fn checkpoints_count_for_the_disk_limit_of_their_project() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let create = json!({ "name": "one", "disk_mb": 200 });
    let created = admin.call("project_create", create).await;
    let project = created.ok()["project_id"].as_str().unwrap().to_owned();
    let large = "/sh for n in 1 2 3 4; do head -c 9000000 /dev/urandom > large-$n; done";
    let session = admin.spawn(&project, large).await;
    admin.turn(&session, 1).await;
    admin.message(&session, "/sh rm large-*; ls | wc -l").await;
    assert_eq!(admin.turn(&session, 2).await["text"], "0");
    let get = json!({ "project_id": project });
    let mut used = Value::Null;
    support::wait_until("only the checkpoints are counted", async || {
        used = admin.call("project_get", get.clone()).await.ok()["disk_used_mb"].clone();
        used.as_u64().is_some_and(|used| (34..60).contains(&used))
    })
    .await;
    let update = json!({ "project_id": project, "disk_mb": 30 });
    admin.call("project_update", update).await.ok();
    let message = json!({ "session_id": session, "prompt": "/say hi" });
    support::wait_until("the limit holds", async || {
        let refused = admin.call("session_message", message.clone()).await;
        refused.is_error() && refused.sentence().contains("`disk_mb`")
    })
    .await;
}

/// Objects are removed all the time while turns end: none of theirs may be missing.
#[test(needs(sandbox), limit = 240)]
async fn objects_are_not_removed_between_a_scan_and_its_event() {
    const TURNS: usize = 25;
    const MIN_COLLECTIONS: usize = 5;
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let first = "/sh for n in $(seq 400); do echo 1 $n > file-$n; done";
    let session = admin.spawn(&project, first).await;
    admin.turn(&session, 1).await;
    for turn in 2..=TURNS {
        let prompt = format!("/sh for n in $(seq 400); do echo {turn} $n > file-$n; done");
        admin.message(&session, &prompt).await;
    }
    // Sessions of the same project, whose objects are garbage when they are deleted.
    let collections = std::cell::Cell::new(0);
    let is_over = std::cell::Cell::new(false);
    let collecting = async {
        while !is_over.get() || collections.get() < MIN_COLLECTIONS {
            let number = collections.get();
            let prompt =
                format!("/sh head -c 100000 /dev/urandom > garbage-{number}; rm garbage-*");
            let new = json!({ "new_session": true, "workspace_id": "other", "create_workspace": number == 0 });
            let garbage = admin.spawn_with(&project, &prompt, new).await;
            admin.turn(&garbage, 1).await;
            admin.status(&garbage, "idle").await;
            let end = json!({ "session_id": garbage });
            admin.call("session_end", end).await.ok();
            let cleanup = json!({ "project_id": project, "max_age_hours": 0 });
            let cleaned = admin.call("session_cleanup", cleanup).await;
            assert_eq!(cleaned.ok()["deleted"], json!([garbage]));
            collections.set(number + 1);
        }
    };
    let working = async {
        // More turns than the collections need, so that they are at the same time.
        admin.turn(&session, TURNS).await;
        is_over.set(true);
        collections.get()
    };
    let (during, ()) = tokio::join!(working, collecting);
    assert!(during > 0, "no collection was at the same time as a turn");
    for turn in 1..=TURNS {
        let seen = diff(&admin, &session, json!({ "turn": turn, "full": true })).await;
        assert_eq!(statuses(&seen).len(), 400, "turn {turn}");
    }
    let log = admin.log(&session).await;
    let kept = log.iter().filter(|event| event["type"] == "checkpoint");
    assert_eq!(kept.count(), TURNS);
}

#[test(needs(sandbox))]
async fn a_workspace_that_cannot_be_kept_is_logged_and_ends_no_turn() {
    let config = "[limits]\ncheckpoint_mb = 1\n";
    let server = server_with("sandbox", config).await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin
        .spawn(&project, "/sh head -c 3000000 /dev/urandom > big")
        .await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn");
    assert!(completion["changed"].is_null(), "{completion}");
    let log = admin.log(&session).await;
    assert!(!log.iter().any(|event| event["type"] == "checkpoint"));
    let note = |event: &&Value| {
        event["type"] == "log" && event["message"].to_string().contains("`checkpoint_mb`")
    };
    assert!(log.iter().find(note).is_some(), "{log:#?}");
    // The next turn, whose workspace fits again, has no older tree in its place.
    admin
        .message(&session, "/sh rm big; echo small > small")
        .await;
    admin.turn(&session, 2).await;
    let unknown = json!({ "session_id": session, "turn": 2 });
    let unknown = admin.call("session_diff", unknown).await;
    assert!(unknown.is_error(), "{}", unknown.text);
    let whole = diff(&admin, &session, json!({})).await;
    assert_eq!(statuses(&whole), pairs(&[("small", "added")]));
}

#[test(needs(sandbox))]
async fn two_sessions_in_a_workspace_each_see_what_changed_during_their_turns() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let wait = "/sh echo a > a; while [ ! -e go ]; do sleep 0.02; done; echo A > A";
    let long = admin.spawn(&project, wait).await;
    admin
        .follow(&long, |event| event["type"] == "tool_call")
        .await;
    let other = json!({ "new_session": true });
    let short = admin
        .spawn_with(
            &project,
            "/sh while [ ! -e a ]; do sleep 0.02; done; echo b > b; touch go",
            other,
        )
        .await;
    admin.turn(&short, 1).await;
    admin.turn(&long, 1).await;
    let seen = statuses(&diff(&admin, &long, json!({ "turn": 1 })).await);
    assert_eq!(
        seen,
        pairs(&[
            ("A", "added"),
            ("a", "added"),
            ("b", "added"),
            ("go", "added")
        ])
    );
    let seen = statuses(&diff(&admin, &short, json!({ "turn": 1 })).await);
    assert!(
        seen.contains(&("b".to_owned(), "added".to_owned())),
        "{seen:?}"
    );
}

/// Kills the server while it scans: afterwards every turn has its checkpoint, once, and the whole can be read.
#[test(needs(sandbox), limit = 300)]
async fn a_server_that_dies_while_it_scans_loses_and_doubles_nothing() {
    const TURNS: usize = 12;
    /// How many of the kills must have come before the checkpoint was stored.
    const HITS: usize = 3;
    let mut server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let mut random = Random::new();
    // A file outside of the workspace says that the agent's work is done, and that the scan comes next.
    let many = "/sh for n in $(seq 1 300); do echo $RANDOM$n > file-$n; done; touch /root/mark-1";
    let session = admin.spawn(&project, many).await;
    for turn in 2..=TURNS {
        let prompt = format!(
            "/sh for n in $(seq 1 100); do echo {turn} >> file-$n; done; touch /root/mark-{turn}"
        );
        admin.message(&session, &prompt).await;
    }
    let home = server.home().join("projects").join(&project).join("home");
    let mut hits = 0;
    for turn in 1..=TURNS {
        let mark = home.join(format!("mark-{turn}"));
        support::wait_until("the end of the agent's work", async || mark.exists()).await;
        tokio::time::sleep(random.duration_below(Duration::from_millis(30))).await;
        server.kill();
        hits += usize::from(stored_checkpoints(&server) < turn);
        server.start_again();
    }
    assert!(hits >= HITS, "only {hits} of the kills hit a scan");
    admin.turn(&session, TURNS).await;
    let log = admin.log(&session).await;
    let turns: Vec<u64> = log
        .iter()
        .filter(|event| event["type"] == "checkpoint")
        .map(|event| event["turn"].as_u64().unwrap())
        .collect();
    assert_eq!(turns, (1..=TURNS as u64).collect::<Vec<_>>());
    for (turn, files) in (1..=TURNS).map(|turn| (turn, if turn == 1 { 300 } else { 100 })) {
        let seen = diff(&admin, &session, json!({ "turn": turn, "stat": true })).await;
        assert_eq!(statuses(&seen).len(), files, "turn {turn}");
    }
    let drafts = |path: &&std::path::PathBuf| path.to_string_lossy().contains("/new-");
    assert_eq!(objects(&server, &project).iter().filter(drafts).count(), 0);
}

/// How many checkpoints are in the database of a server that does not run.
fn stored_checkpoints(server: &Server) -> usize {
    let database = rusqlite::Connection::open(server.home().join("oubliette.db")).unwrap();
    let count = "select count(*) from events where kind = 'checkpoint'";
    let stored: u32 = database.query_row(count, [], |row| row.get(0)).unwrap();
    stored as usize
}
