//! Setting a session back, and continuing it in another direction.

use std::fs;
use std::time::Instant;

use serde_json::{Value, json};
use support::{Modern, Random, server_with, server_with_git};

async fn rewind(admin: &Modern, session: &str, turn: u32, what: &str) -> Value {
    let call = json!({ "session_id": session, "turn": turn, "what": what });
    admin.call("session_rewind", call).await.ok().clone()
}

#[test(runtimes)]
async fn files_are_set_back_to_the_end_of_a_turn(runtime: &str) {
    let server = server_with_git(runtime, "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let commit = |message: &str| {
        let identity = "-c user.name=t -c user.email=t@t";
        format!("git add -A; git {identity} commit -qm {message}")
    };
    let first = format!(
        "/sh printf 'a\\n' > a; mkdir -p dir/deep; echo d > dir/deep/d; ln -s a link; printf '#!/bin/sh\\necho ok\\n' > run; \
         chmod 755 run; echo cache > .gitignore; {}",
        commit("one")
    );
    let session = admin.spawn(&project, &first).await;
    admin.turn(&session, 1).await;
    let second = format!(
        "/sh echo changed > a; rm -r dir link; echo file > dir; mkdir -p new/er cache; echo n > new/er/n; \
         echo c > cache/c; chmod 644 run; {}",
        commit("two")
    );
    admin.message(&session, &second).await;
    admin.turn(&session, 2).await;
    let done = rewind(&admin, &session, 1, "files").await;
    assert_eq!(done["not_restored"], Value::Null, "{runtime}: {done}");
    assert_eq!(done["checkpoint_id"].as_str().unwrap().len(), 32);
    let root = server.workspace(&project);
    assert_eq!(
        fs::read_to_string(root.join("a")).unwrap(),
        "a\n",
        "{runtime}"
    );
    assert_eq!(fs::read_to_string(root.join("dir/deep/d")).unwrap(), "d\n");
    assert_eq!(
        fs::read_link(root.join("link")).unwrap().to_str(),
        Some("a")
    );
    assert!(!root.join("new").exists(), "{runtime}");
    // What git ignores is left alone.
    assert!(root.join("cache/c").exists(), "{runtime}");
    // The agent owns the files, and the repository is where it was.
    let prompt = "/sh ./run && echo more >> a && git status --short && git log --format=%s";
    admin.message(&session, prompt).await;
    let completion = admin.turn(&session, 3).await;
    assert_eq!(completion["text"], "ok\n M a\none", "{runtime}");
    let log = admin.log(&session).await;
    let rewound = log.iter().find(|event| event["type"] == "rewound").unwrap();
    assert_eq!(
        (&rewound["turn"], &rewound["what"]),
        (&json!(1), &json!("files"))
    );
    assert_eq!(rewound["checkpoint_id"], done["checkpoint_id"]);
    rewind(&admin, &session, 2, "files").await;
    assert_eq!(
        fs::read_to_string(root.join("dir")).unwrap(),
        "file\n",
        "{runtime}"
    );
    rewind(&admin, &session, 0, "files").await;
    assert!(
        !root.join("a").exists() && root.join("cache/c").exists(),
        "{runtime}"
    );
}

#[test(needs(sandbox))]
async fn nothing_is_set_back_while_a_turn_runs_in_the_workspace() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/sh echo one > one").await;
    admin.turn(&session, 1).await;
    let other = json!({ "new_session": true });
    let busy = admin
        .spawn_with(
            &project,
            "/sh touch begun; while [ ! -e go ]; do sleep 0.02; done",
            other,
        )
        .await;
    admin
        .follow(&busy, |event| event["type"] == "tool_call")
        .await;
    let call = json!({ "session_id": session, "turn": 0, "what": "both" });
    let refused = admin.call("session_rewind", call).await;
    assert!(
        refused.is_error() && refused.sentence().contains(&busy),
        "{}",
        refused.text
    );
    assert!(server.workspace(&project).join("one").exists());
    fs::write(server.workspace(&project).join("go"), "").unwrap();
    admin.turn(&busy, 1).await;
    admin.status(&busy, "idle").await;
    let call = json!({ "session_id": session, "turn": 0, "what": "both", "force": true });
    admin.call("session_rewind", call).await.ok();
    assert!(!server.workspace(&project).join("one").exists());
    let late = json!({ "session_id": session, "turn": 7, "what": "files" });
    assert!(admin.call("session_rewind", late).await.is_error());
}

#[test(needs(sandbox))]
async fn the_later_work_of_another_session_is_not_undone_unasked() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let first = admin.spawn(&project, "/sh echo a > a").await;
    admin.turn(&first, 1).await;
    let other = json!({ "new_session": true });
    let second = admin.spawn_with(&project, "/sh echo b > b", other).await;
    admin.turn(&second, 1).await;
    admin.status(&second, "idle").await;
    let call =
        |force: bool| json!({ "session_id": first, "turn": 0, "what": "files", "force": force });
    let refused = admin.call("session_rewind", call(false)).await;
    assert!(refused.sentence().contains(&second), "{}", refused.text);
    let workspace = server.workspace(&project);
    assert!(workspace.join("a").exists() && workspace.join("b").exists());
    admin.call("session_rewind", call(true)).await.ok();
    assert!(!workspace.join("a").exists() && !workspace.join("b").exists());
}

#[test(needs(sandbox))]
async fn the_work_of_another_session_between_two_turns_is_not_undone_unasked() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let first = admin.spawn(&project, "/sh echo 1 > a").await;
    admin.turn(&first, 1).await;
    let other = json!({ "new_session": true });
    let second = admin.spawn_with(&project, "/sh echo b > b", other).await;
    admin.turn(&second, 1).await;
    // The first session is the last one at work, and what it says of itself changes nothing about that.
    admin.message(&first, "/sh echo 2 > a").await;
    admin.turn(&first, 2).await;
    admin.status(&first, "idle").await;
    admin.status(&second, "idle").await;
    rewind(&admin, &first, 2, "conversation").await;
    let workspace = server.workspace(&project);
    for turn in [0, 1] {
        let call = json!({ "session_id": first, "turn": turn, "what": "files" });
        let refused = admin.call("session_rewind", call).await;
        assert!(refused.sentence().contains(&second), "{}", refused.text);
        assert!(workspace.join("a").exists() && workspace.join("b").exists());
    }
    // The state after turn 2 has the work of both.
    admin.exec(&project, "echo 3 > a; rm b").await;
    let done = rewind(&admin, &first, 2, "files").await;
    assert_eq!(
        (&done["files_written"], &done["files_removed"]),
        (&json!(2), &json!(0)),
        "{done}"
    );
    assert_eq!(fs::read_to_string(workspace.join("a")).unwrap(), "2\n");
    assert!(workspace.join("b").exists());
}

#[test(needs(sandbox))]
async fn a_file_that_was_too_large_to_be_kept_is_named_and_left_alone() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let first =
        "/sh for name in changed gone; do head -c 11000000 /dev/zero > $name; done; echo 1 > small";
    let session = admin.spawn(&project, first).await;
    admin.turn(&session, 1).await;
    let second =
        "/sh rm gone; echo new > changed; head -c 12000000 /dev/zero > added; echo 2 > small";
    admin.message(&session, second).await;
    admin.turn(&session, 2).await;
    admin.status(&session, "idle").await;
    let done = rewind(&admin, &session, 1, "files").await;
    let named = done["not_restored"].as_array().unwrap().iter();
    let named: Vec<&str> = named.map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(named, ["changed", "gone"], "{done}");
    let workspace = server.workspace(&project);
    let read = |name: &str| fs::read_to_string(workspace.join(name)).unwrap_or_default();
    assert_eq!(
        (read("small").as_str(), read("changed").as_str()),
        ("1\n", "new\n")
    );
}

/// The demo agent's own answer tells which prompts it has had; the transcript is in its first prompt.
#[test(needs(sandbox))]
async fn a_conversation_is_set_back_and_forked_with_its_transcript() {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin
        .spawn(&project, "/say first word\n/sh echo 1 > one")
        .await;
    admin.turn(&session, 1).await;
    admin
        .message(&session, "/say second word\n/sh echo 2 > two")
        .await;
    admin.turn(&session, 2).await;
    admin.message(&session, "/say third word").await;
    admin.turn(&session, 3).await;
    admin.status(&session, "idle").await;

    let forked = json!({
        "session_id": session, "turn": 1, "workspace_id": "other",
        "prompt": "/sh ls; cat one; pwd",
    });
    let forked = admin.call("session_fork", forked).await.ok().clone();
    assert_eq!(forked["workspace_id"], "other");
    let fork = forked["session_id"].as_str().unwrap();
    let completion = admin.turn(fork, 1).await;
    assert!(
        completion["text"]
            .as_str()
            .unwrap()
            .ends_with("one\n1\n/workspaces/other"),
        "{completion}"
    );
    let log = admin.log(fork).await;
    let event = log.iter().find(|event| event["type"] == "forked").unwrap();
    assert_eq!(
        (&event["turn"], &event["from_session_id"]),
        (&json!(1), &json!(session))
    );
    let transcript = event["transcript"].as_str().unwrap();
    assert!(
        transcript.contains("first word") && !transcript.contains("second word"),
        "{transcript}"
    );
    let again = json!({ "session_id": session, "workspace_id": "other" });
    let again = admin.call("session_fork", again).await;
    let sentence = again.sentence();
    assert!(
        sentence.starts_with("workspace already exists: `other`"),
        "{sentence}"
    );

    rewind(&admin, &session, 1, "conversation").await;
    assert!(server.workspace(&project).join("two").exists());
    admin
        .message(&session, "/say fourth word\nhow many turns?")
        .await;
    let completion = admin.turn(&session, 4).await;
    let text = completion["text"].as_str().unwrap();
    assert!(
        text.contains("This is turn") && !text.contains("This is turn 4"),
        "the agent remembers what was set back: {text}"
    );
    // What the agent remembers of turn 4 goes back to turn 1.
    let fork = json!({ "session_id": session, "turn": 4 });
    let fork = admin.call("session_fork", fork).await.ok().clone();
    let log = admin.log(fork["session_id"].as_str().unwrap()).await;
    let event = log.iter().find(|event| event["type"] == "forked").unwrap();
    let transcript = event["transcript"].as_str().unwrap();
    for (word, is_there) in [
        ("first", true),
        ("second", false),
        ("third", false),
        ("fourth", true),
    ] {
        let word = format!("{word} word");
        assert_eq!(transcript.contains(&word), is_there, "{word}: {transcript}");
    }
}

/// Kills the server at random moments of rewinds and forks: afterwards each is done, or is not.
#[test(needs(sandbox), limit = 300)]
async fn a_server_that_dies_leaves_no_half_of_a_rewind_or_fork() {
    /// At most; two with and two without the rewind are enough.
    const MAX_ROUNDS: u32 = 24;
    let mut server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let mut random = Random::new();
    let first = "/sh for n in $(seq 300); do echo one > file-$n; done";
    let session = admin.spawn(&project, first).await;
    admin.turn(&session, 1).await;
    let second = "/sh for n in $(seq 250); do echo two > file-$n; done; rm file-2?? file-300; \
                  mkdir new; for n in $(seq 100); do echo two > new/file-$n; done";
    admin.message(&session, second).await;
    admin.turn(&session, 2).await;
    admin.status(&session, "idle").await;
    let states = ["one 300", "two 299"];
    let look =
        "cat file-* new/file-* 2>/dev/null | sort -u; ls file-* new/file-* 2>/dev/null | wc -l";
    let mut turns = 2;
    let (mut state, mut known_rewinds) = (1, 0);
    // About how long a rewind takes when nothing kills it; the moments then follow what they meet.
    let started = Instant::now();
    for turn in [1, 2] {
        rewind(&admin, &session, turn, "both").await;
        known_rewinds += 1;
    }
    let mut longest = started.elapsed();
    let (mut undone, mut done_rounds) = (0, 0);
    for round in 0..MAX_ROUNDS {
        if undone >= 2 && done_rounds >= 2 {
            break;
        }
        // Back and forth.
        let wanted = 1 - state;
        let rewind = json!({ "session_id": session, "turn": wanted + 1, "what": "both" });
        let fork =
            json!({ "session_id": session, "turn": 1, "workspace_id": format!("fork-{round}") });
        let (one, other) = (server.admin(), server.admin());
        let calls = async {
            tokio::join!(
                one.call_until_answered("session_rewind", rewind.clone()),
                other.call_until_answered("session_fork", fork.clone()),
            )
        };
        let moment = random.duration_below(longest);
        let _ = tokio::time::timeout(moment, calls).await;
        server.kill();
        server.start_again();
        // The turn starts when the rewind is over.
        admin.message(&session, &format!("/sh {look}")).await;
        turns += 1;
        let completion = admin.turn(&session, turns).await;
        let text = completion["text"].as_str().unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        // An agent that has forgotten everything greets first.
        let seen = states
            .iter()
            .position(|state| words.join(" ").ends_with(state) && !text.contains("one\ntwo"));
        let seen = seen.unwrap_or_else(|| panic!("round {round}: {text}"));
        let log = admin.log(&session).await;
        let rewinds = log.iter().filter(|event| event["type"] == "rewound");
        let done = usize::from(seen == wanted);
        assert_eq!(rewinds.count(), known_rewinds + done, "round {round}");
        known_rewinds += done;
        done_rounds += done;
        undone += 1 - done;
        longest = if seen == wanted {
            longest * 2 / 3
        } else {
            longest * 3 / 2
        };
        state = seen;
        admin.status(&session, "idle").await;

        let id = fork["workspace_id"].as_str().unwrap();
        let in_project = json!({ "project_id": project });
        let sessions = admin.call("session_list", in_project.clone()).await;
        let has_session = sessions.ok().to_string().contains(id);
        let workspaces = admin.call("workspace_list", in_project).await;
        let has_workspace = workspaces.ok().to_string().contains(id);
        assert_eq!(has_session, has_workspace, "round {round}");
        if has_workspace {
            let list = json!({ "project_id": project, "workspace_id": id, "limit": 500 });
            let files = admin.call("workspace_files", list).await.ok().to_string();
            assert_eq!(files.matches("file-").count(), 300, "round {round}");
        }
    }
    assert!(
        undone >= 2 && done_rounds >= 2,
        "killed {undone} times before a rewind was certain, {done_rounds} times after it"
    );
}
