//! `oubliette session attach`: conversations at a terminal, and messages through a pipe.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;
use support::{Pty, Server, ServerOptions, binary, stderr, stdout};

fn sandbox() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

/// The command in a terminal that can move its cursor.
fn attach(home: &Path, session: &str) -> Pty {
    let variables = [
        ("OUBLIETTE_HOME".to_owned(), home.display().to_string()),
        ("TERM".to_owned(), "xterm-256color".to_owned()),
    ];
    Pty::run_in(home, (40, 80), &["session", "attach", session], &variables)
}

async fn in_terminal<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// What the editor shows when it reads; before prompts that were sent the space has no colour.
const PROMPT: &str = "› ";

#[test(needs(sandbox), multi_thread)]
async fn a_conversation_has_earlier_turns_history_completion_and_several_lines() {
    let server = sandbox();
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say The first words.").await;
    admin.turn(&session, 1).await;
    let (home, id) = (server.home().to_owned(), session.clone());
    in_terminal(move || {
        let mut terminal = attach(&home, &id);
        terminal.wait_for("/say The first words.");
        terminal.wait_for("The first words.");
        terminal.wait_for("turn 1 done");
        terminal.wait_for(PROMPT);
        // Tab completes a command of the agent.
        terminal.type_keys("/rep\t2 /say again\r");
        terminal.wait_for("again");
        terminal.wait_for("turn 2 done");
        terminal.wait_for(PROMPT);
        // The key that goes up shows what was sent before.
        terminal.type_keys("\x1b[A\r");
        terminal.wait_for("turn 3 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("/say one\\\r/say two\x1b\r/say three\r");
        terminal.wait_for("turn 4 done");
        terminal.wait_for(PROMPT);
        // Ctrl-C clears the line, and on an empty one says how to leave.
        terminal.type_keys("never sent");
        terminal.wait_for("never sent");
        terminal.type_keys("\x03");
        terminal.wait_for(PROMPT);
        terminal.type_keys("\x03");
        terminal.wait_for("Ctrl-D detaches; the session stays");
        terminal.type_keys("\x04");
        terminal.wait_for("reattach with `oubliette session attach gogol_");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        assert!(terminal.has_line_editing());
    })
    .await;
    assert_eq!(admin.turn(&session, 2).await["text"], "again\nagain");
    assert_eq!(admin.turn(&session, 3).await["text"], "again\nagain");
    assert_eq!(admin.turn(&session, 4).await["text"], "one\ntwo\nthree");
    let (home, id) = (server.home().to_owned(), session.clone());
    in_terminal(move || {
        let mut terminal = attach(&home, &id);
        terminal.wait_for("1 earlier turn");
        terminal.wait_for("turn 4 done");
        terminal.wait_for(PROMPT);
        // The history outlives the command.
        terminal.type_keys("\x1b[A\r");
        terminal.wait_for("turn 5 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("\x04");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    })
    .await;
    assert_eq!(admin.turn(&session, 5).await["text"], "one\ntwo\nthree");
    assert_eq!(admin.session(&session).await["turns"], 5);
}

#[test(needs(sandbox), multi_thread)]
async fn ctrl_c_interrupts_a_turn_and_pressed_again_detaches() {
    let server = sandbox();
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say ready").await;
    admin.turn(&session, 1).await;
    let (home, id) = (server.home().to_owned(), session.clone());
    in_terminal(move || {
        let mut terminal = attach(&home, &id);
        terminal.wait_for("turn 1 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("/sleep 2\r");
        terminal.wait_for("⠙");
        // What is typed during a turn is there when it has ended.
        terminal.type_keys("/say typed ahead\r");
        terminal.wait_for("turn 2 done");
        terminal.wait_for("turn 3 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("/sh sleep 1000\r");
        terminal.wait_for("⠙");
        // Ctrl-D detaches in the middle of a turn, too.
        terminal.type_keys("\x04");
        terminal.wait_for("The session keeps running");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        let mut terminal = attach(&home, &id);
        terminal.wait_for("⠙");
        terminal.type_keys("\x03");
        terminal.wait_for("press Ctrl-C again to detach");
        terminal.wait_for("turn 4 interrupted");
        terminal.type_keys("/hang\r");
        terminal.wait_for("⠙");
        terminal.type_keys("\x03");
        terminal.wait_for("press Ctrl-C again to detach");
        terminal.type_keys("\x03");
        terminal.wait_for("The session keeps running");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        assert!(terminal.has_line_editing());
    })
    .await;
    assert_eq!(admin.turn(&session, 3).await["text"], "typed ahead");
}

#[test(needs(sandbox), multi_thread)]
async fn questions_show_the_command_and_only_a_yes_or_no_answers_them() {
    let server = sandbox();
    let admin = server.admin();
    let project = admin.project("one").await;
    let spawn = json!({ "autonomy": "off" });
    let prompt = "/sh echo first > a\n/sh echo second > b\n/sh echo third > c";
    let session = admin.spawn_with(&project, prompt, spawn).await;
    let waiting = admin.status(&session, "waiting").await;
    let (home, id) = (server.home().to_owned(), session.clone());
    let mut terminal = in_terminal(move || {
        let mut terminal = attach(&home, &id);
        terminal.wait_for("echo first > a");
        terminal.wait_for("Allow it? [y]es, [a]lways, [n]o:");
        // Neither a word with these letters nor an empty line is an answer.
        terminal.type_keys("any way you like\r");
        terminal.wait_for("Allow it?");
        terminal.type_keys("\r");
        terminal.wait_for("Allow it?");
        terminal
    })
    .await;
    // Another client answers the first one.
    let request = waiting["waiting_for"]["request_id"].clone();
    let answer = json!({ "session_id": session, "request_id": request, "decision": "allow" });
    admin.call("session_permit", answer).await.ok();
    in_terminal(move || {
        terminal.wait_for("allowed");
        terminal.wait_for("echo second > b");
        terminal.wait_for("Allow it?");
        terminal.type_keys("n\r");
        terminal.wait_for("denied");
        terminal.wait_for("echo third > c");
        terminal.wait_for("Allow it?");
        terminal.type_keys("y\r");
        terminal.wait_for("turn 1 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("\x04");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    })
    .await;
    let workspace = server.workspace(&project);
    let made = ["a", "b", "c"].map(|name| workspace.join(name).exists());
    assert_eq!(made, [true, false, true]);
}

#[test(needs(sandbox), multi_thread)]
async fn what_others_cause_appears_above_the_prompt_and_what_is_typed_stays() {
    let server = sandbox();
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say ready").await;
    admin.turn(&session, 1).await;
    let (home, id) = (server.home().to_owned(), session.clone());
    let mut terminal = in_terminal(move || {
        let mut terminal = attach(&home, &id);
        terminal.wait_for("turn 1 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("/say mi");
        terminal.wait_for("/say mi");
        terminal
    })
    .await;
    let hostile = "/say from elsewhere\u{1b}]0;PWNED\u{7}\u{9b}2J";
    admin.message(&session, hostile).await;
    admin.turn(&session, 2).await;
    in_terminal(move || {
        terminal.wait_for("from elsewhere");
        terminal.wait_for("turn 2 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("ne\r");
        terminal.wait_for("turn 3 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("\x04");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        let shown = terminal.shown();
        for control in ["\u{1b}]0;", "\u{9b}2J", "\u{7}"] {
            assert!(!shown.contains(control), "{shown:?}");
        }
    })
    .await;
    assert_eq!(admin.turn(&session, 3).await["text"], "mine");
}

#[test(needs(sandbox), multi_thread)]
async fn a_conversation_survives_a_kill_of_the_server() {
    let mut server = sandbox();
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say ready").await;
    admin.turn(&session, 1).await;
    let (home, id) = (server.home().to_owned(), session.clone());
    in_terminal(move || {
        let mut terminal = attach(&home, &id);
        terminal.wait_for("turn 1 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("/sh sleep 3\r");
        terminal.wait_for("⠙");
        server.kill();
        terminal.wait_for("the server does not answer");
        server.start_again();
        terminal.wait_for("the server is back");
        terminal.wait_for("turn 2 done");
        terminal.wait_for(PROMPT);
        terminal.type_keys("\x04");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    })
    .await;
}

/// Runs the command with this standard input.
async fn piped(home: &Path, session: &str, input: &str) -> Output {
    let (home, session, input) = (home.to_owned(), session.to_owned(), input.to_owned());
    tokio::task::spawn_blocking(move || {
        let mut child = Command::new(binary())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("OUBLIETTE_HOME", &home)
            .current_dir(&home)
            .args(["session", "attach", &session])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap()
    })
    .await
    .unwrap()
}

#[test(needs(sandbox))]
async fn piped_input_is_one_message_and_its_turn_is_the_result() {
    let server = sandbox();
    let admin = server.admin();
    let project = admin.project("one").await;
    // The turn before has not ended when the message comes.
    let session = admin.spawn(&project, "/sleep 2").await;
    let home = server.home();
    let answered = piped(home, &session, "/say one\n/sleep 1\n/say two\n").await;
    assert_eq!(answered.status.code(), Some(0), "{}", stderr(&answered));
    assert_eq!(stdout(&answered), "one\ntwo\n", "{}", stderr(&answered));
    let failed = piped(home, "latest", "/fail out of luck").await;
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(stderr(&failed).lines().last(), Some("error: out of luck"));
    let empty = piped(home, "-", "\n").await;
    assert_eq!(empty.status.code(), Some(1));
    assert!(stderr(&empty).contains("no message"), "{}", stderr(&empty));
    assert_eq!(admin.session(&session).await["turns"], 3);
}

#[test(needs(sandbox), multi_thread)]
async fn the_end_of_input_at_a_question_detaches_and_leaves_it_open() {
    let server = sandbox();
    let admin = server.admin();
    let project = admin.project("one").await;
    let asks = json!({ "autonomy": "off" });
    let session = admin.spawn_with(&project, "/sh touch asked", asks).await;
    admin.status(&session, "waiting").await;
    let (home, id) = (server.home().to_owned(), session.clone());
    in_terminal(move || {
        let mut terminal = attach(&home, &id);
        terminal.wait_for("Allow it?");
        terminal.type_keys("\x04");
        terminal.wait_for("reattach with `oubliette session attach gogol_");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    })
    .await;
    let log = admin.log(&session).await;
    let answered = log.iter().any(|event| event["type"] == "permission_answer");
    assert!(!answered, "{log:#?}");
    admin.status(&session, "waiting").await;
}
