//! `oubliette ps`: what is at work.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Pty, Server, ServerOptions, run_cli, stderr, stdout};

fn sandbox() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

#[test(needs(sandbox))]
async fn sessions_at_work_say_what_they_do_and_what_they_wait_for() {
    let server = sandbox();
    let admin = server.admin();
    let home = server.home();
    let nothing = run_cli(home, &["ps"]).await;
    assert_eq!(stdout(&nothing), "No session is at work.\n");
    let project = admin.project("app").await;
    let new = json!({ "new_session": true });
    let idle = admin
        .spawn_with(&project, "/say my last words", new.clone())
        .await;
    admin.turn(&idle, 1).await;
    let running = admin.spawn_with(&project, "/sh sleep 1000", new).await;
    admin
        .follow(&running, |event| event["type"] == "tool_call")
        .await;
    let asks = json!({ "new_session": true, "autonomy": "off" });
    let asking = admin.spawn_with(&project, "/sh rm -rf build", asks).await;
    admin.status(&asking, "waiting").await;

    let shown = stdout(&run_cli(home, &["ps"]).await);
    let line = |id: &str| shown.lines().find(|line| line.starts_with(id));
    let waits = line(&asking).unwrap();
    assert!(
        waits.contains("app") && waits.ends_with("? rm -rf build"),
        "{shown}"
    );
    assert!(line(&running).unwrap().ends_with("▸ sleep 1000"), "{shown}");
    assert_eq!(line(&idle), None, "{shown}");
    // Those that need a person are first.
    assert!(shown.find(&asking) < shown.find(&running), "{shown}");

    let all = stdout(&run_cli(home, &["ps", "--all"]).await);
    let line = all.lines().find(|line| line.starts_with(&idle));
    assert!(line.unwrap().ends_with("my last words"), "{all}");
    let listed = run_cli(home, &["ps", "--json"]).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(
        listed["sessions"][0]["request"]["type"],
        "permission_request"
    );
    assert_eq!(listed["sessions"][0]["now"], "? rm -rf build");

    let got = stdout(&run_cli(home, &["session", "get", &asking]).await);
    assert!(
        got.contains("waiting_for      permission: rm -rf build"),
        "{got}"
    );
    let permit = got
        .lines()
        .find(|line| line.contains("oubliette session permit"));
    let permit: Vec<&str> = permit.unwrap().split_whitespace().skip(1).take(5).collect();
    let allowed = run_cli(home, &permit).await;
    assert_eq!(allowed.status.code(), Some(0), "{}", stderr(&allowed));
    admin.turn(&asking, 1).await;
}

#[test(needs(sandbox), multi_thread)]
async fn a_watch_redraws_in_place_follows_resizes_and_ends_at_ctrl_c() {
    let server = sandbox();
    let admin = server.admin();
    let project = admin.project("app").await;
    let piped = run_cli(server.home(), &["ps", "--watch"]).await;
    assert_eq!(piped.status.code(), Some(1));
    assert!(
        stderr(&piped).contains("needs a terminal"),
        "{}",
        stderr(&piped)
    );
    let home = server.home().to_owned();
    let variables = [
        ("OUBLIETTE_HOME".to_owned(), home.display().to_string()),
        ("TERM".to_owned(), "xterm-256color".to_owned()),
    ];
    let mut terminal = tokio::task::spawn_blocking(move || {
        let mut terminal = Pty::run_in(&home, (24, 80), &["ps", "--watch"], &variables);
        terminal.wait_for("No session is at work.");
        terminal
    })
    .await
    .unwrap();
    let prompt = "/sh : a command of many words that is longer than any terminal is wide, and so cut; sleep 1000";
    admin.spawn(&project, prompt).await;
    tokio::task::spawn_blocking(move || {
        terminal.wait_for("▸ : a command");
        terminal.wait_for("Ctrl-C ends");
        let screen = terminal.screen(24, 80);
        assert_eq!(screen.matches("▸ : a command").count(), 1, "{screen}");
        assert!(!screen.contains("No session"), "{screen}");
        terminal.resize(10, 60);
        let deadline = Instant::now() + Duration::from_secs(30);
        // The last frame that is complete.
        let is_narrow = |shown: &str| {
            let frame = shown.rsplit("\x1b[H").nth(1).unwrap_or_default();
            let lines = frame
                .split('\n')
                .map(|line| line.trim_end_matches('\r').trim_end_matches("\x1b[K"));
            lines.map(|line| line.chars().count()).max().unwrap_or(0) <= 60
        };
        while !is_narrow(&terminal.shown()) {
            assert!(Instant::now() < deadline, "{:?}", terminal.shown());
            std::thread::sleep(Duration::from_millis(10));
        }
        terminal.type_keys("\x03");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        terminal.wait_for("\x1b[?25h\x1b[?1049l");
        // The last state stays on the screen of the user.
        terminal.wait_for("▸ : a command");
    })
    .await
    .unwrap();
}

#[test(needs(sandbox))]
async fn one_open_question_is_answered_without_its_id_and_errors_name_who_waits() {
    let server = sandbox();
    let admin = server.admin();
    let home = server.home();
    let project = admin.project("app").await;
    let new = json!({ "new_session": true });
    let idle = admin.spawn_with(&project, "/say done", new).await;
    admin.turn(&idle, 1).await;
    let none = run_cli(home, &["session", "permit", &idle, "allow"]).await;
    let error = format!(
        "error: {} waits for nothing; no session does\n",
        &idle[..14]
    );
    assert_eq!(stderr(&none), error);
    let asks = json!({ "new_session": true, "autonomy": "off" });
    let asking = admin
        .spawn_with(&project, "/sh touch a\n/sh touch b", asks)
        .await;
    admin.status(&asking, "waiting").await;
    let wrong = run_cli(home, &["session", "permit", &idle, "1", "allow"]).await;
    let error = format!(
        "error: {} waits for nothing; {} does\n",
        &idle[..14],
        &asking[..14]
    );
    assert_eq!(stderr(&wrong), error);
    let unknown = run_cli(home, &["session", "permit", &asking, "zzzz", "allow"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        stderr(&unknown).contains("begins with `zzzz`; open: "),
        "{}",
        stderr(&unknown)
    );
    let allowed = run_cli(home, &["session", "permit", &asking[..10], "allow"]).await;
    assert_eq!(allowed.status.code(), Some(0), "{}", stderr(&allowed));
    assert!(stderr(&allowed).contains("touch a"), "{}", stderr(&allowed));
    let second = |event: &Value| {
        event["type"] == "permission_request" && event.to_string().contains("touch b")
    };
    let log = admin.follow(&asking, second).await;
    let request = log.iter().find(|event| second(event)).unwrap()["request_id"].clone();
    let request = &request.as_str().unwrap()[..6];
    let denied = run_cli(home, &["session", "permit", &asking, request, "deny"]).await;
    assert_eq!(denied.status.code(), Some(0), "{}", stderr(&denied));
    admin.turn(&asking, 1).await;
}
