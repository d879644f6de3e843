//! Interactive commands: terminals through the command line, and call by call.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Modern, Pty, Server, binary, server_with};

async fn in_terminal<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[test(runtimes)]
async fn a_terminal_echoes_interrupts_resizes_and_ends_as_its_shell_does(runtime: &str) {
    let server = server_with(runtime, "").await;
    server.admin().project("one").await;
    let home = server.home().to_owned();
    in_terminal(move || {
        let mut terminal = Pty::run(&home, (33, 99), &["container", "exec", "-it", "one"]);
        terminal.type_keys("stty size; echo $TERM; pwd; tty\r");
        terminal.wait_for("33 99\r\n");
        terminal.wait_for("dumb\r\n/workspace\r\n/dev/pts/");
        assert!(!terminal.has_line_editing());
        terminal.resize(44, 111);
        // The new size arrives a little later.
        terminal.type_keys("until stty size | grep '44 11''1'; do sleep 0.05; done\r");
        terminal.wait_for("44 111\r\n");
        // The script reports when its trap is set: a shell that is still starting ignores the key.
        let script =
            "trap 'echo cau\"\"ght; exit 9' INT; echo rea\"\"dy; while :; do sleep 0.1; done";
        terminal.type_keys(&format!("sh -c '{}'\r", script.replace('\'', "'\\''")));
        terminal.wait_for("ready\r\n");
        terminal.type_keys("\u{3}");
        terminal.wait_for("caught\r\n");
        terminal.type_keys("echo $?-interrupted\r");
        terminal.wait_for("9-interrupted\r\n");
        terminal.type_keys("printf '%s' 'grüße 日本'; exit 7\r");
        terminal.wait_for("grüße 日本");
        assert_eq!(terminal.exit_code(), Some(7), "{}", terminal.shown());
        assert!(terminal.has_line_editing());
    })
    .await;
    let audit = json!({ "operation": "container_exec" });
    let audit = server.admin().call("audit_list", audit).await;
    let entries = audit.ok()["entries"].as_array().unwrap().len();
    assert!(
        (1..=3).contains(&entries),
        "{entries} entries for one terminal"
    );
}

#[test(runtimes)]
async fn a_terminal_survives_kills_of_its_server(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    server.admin().project("one").await;
    let home = server.home().to_owned();
    let (mut terminal, mut server) = in_terminal(move || {
        let mut terminal = Pty::run(&home, (24, 80), &["container", "exec", "-it", "one"]);
        terminal.type_keys("kept=yes; echo rea''dy\r");
        terminal.wait_for("ready\r\n");
        server.kill();
        // Typed while no server runs.
        terminal.type_keys("echo kept-$kept\r");
        server.start_again();
        terminal.wait_for("kept-yes\r\n");
        server.kill();
        terminal.wait_for("the server does not answer");
        (terminal, server)
    })
    .await;
    in_terminal(move || {
        server.start_again();
        terminal.wait_for("the server is back");
        terminal.type_keys("echo again-$kept; exit 3\r");
        terminal.wait_for("again-yes\r\n");
        assert_eq!(terminal.exit_code(), Some(3), "{}", terminal.shown());
        assert!(terminal.has_line_editing());
    })
    .await;
}

#[test(runtimes)]
async fn a_signal_or_giving_up_on_a_dead_server_restores_the_terminal(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let id = server.admin().project("one").await;
    let home = server.home().to_owned();
    let begin = |home: &std::path::Path| {
        let script = "trap 'echo > hung-up; exit' HUP; echo rea''dy; while :; do sleep 0.1; done";
        let mut terminal = Pty::run(
            home,
            (24, 80),
            &["container", "exec", "-it", "one", "--", "sh", "-c", script],
        );
        terminal.wait_for("ready\r\n");
        terminal
    };
    let hung_up = server.workspace(&id).join("hung-up");
    in_terminal(move || {
        let mut terminal = begin(&home);
        terminal.signal(Signal::TERM);
        assert_eq!(terminal.exit_code(), Some(128 + 15));
        assert!(terminal.has_line_editing());
        let deadline = Instant::now() + Duration::from_secs(20);
        while !hung_up.exists() {
            assert!(Instant::now() < deadline, "the command got no hangup");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut terminal = begin(&home);
        server.kill();
        terminal.wait_for("the server does not answer");
        terminal.type_keys("\u{3}");
        assert_eq!(terminal.exit_code(), Some(1));
        terminal.wait_for("given up");
        assert!(terminal.has_line_editing());
    })
    .await;
}

#[test(runtimes)]
async fn without_a_terminal_input_is_passed_on_and_outputs_stay_apart(runtime: &str) {
    let server = server_with(runtime, "").await;
    server.admin().project("one").await;
    let home = server.home().to_owned();
    in_terminal(move || {
        let run = |flags: &str, script: &str, input: Vec<u8>| {
            let mut child = Command::new(binary())
                .env_clear()
                .env("HOME", &home)
                .env("OUBLIETTE_HOME", &home)
                .args(["container", "exec", flags, "one", "--", "sh", "-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
            let output = child.wait_with_output().unwrap();
            writing.join().unwrap();
            output
        };
        let bytes: Vec<u8> = (0..3_000_000u64).map(|n| ((n * n) >> 7) as u8).collect();
        let copied = run("-i", "cat; echo problem >&2; exit 5", bytes.clone());
        assert!(
            copied.stdout == bytes,
            "{} bytes returned",
            copied.stdout.len()
        );
        assert_eq!(String::from_utf8_lossy(&copied.stderr), "problem\n");
        assert_eq!(copied.status.code(), Some(5));
        // The command ends without reading its input.
        assert_eq!(run("-i", "exit 0", bytes).status.code(), Some(0));
        let refused = run("-it", "true", Vec::new());
        assert_eq!(refused.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(errors.contains("-t needs a terminal"), "{errors}");
        let missing = Command::new(binary())
            .env_clear()
            .env("OUBLIETTE_HOME", &home)
            .args([
                "container",
                "exec",
                "-i",
                "one",
                "--",
                "/no/such",
                "program",
            ])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(missing.status.code(), Some(127), "{missing:?}");
        assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such"));
    })
    .await;
}

async fn step(admin: &Modern, project: &str, mut parameters: Value) -> Value {
    parameters["project_id"] = json!(project);
    admin.call("container_exec", parameters).await.ok().clone()
}

#[test(runtimes)]
async fn commands_take_input_call_by_call_and_a_repeated_call_has_the_same_result(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let script = "read a; echo \"first $a\"; read b; echo \"and $b\" >&2; exit 4";
    let first = json!({
        "exec_id": "talk", "command": script, "stdin": "one\n", "wait_seconds": 20,
    });
    let output = step(&admin, &id, first.clone()).await;
    assert_eq!(output["stdout"], "first one\n", "{output}");
    assert_eq!(
        (&output["running"], &output["exit_code"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!(
        output["offsets"],
        json!({ "stdin": 4, "stdout": 10, "stderr": 0 })
    );
    // The same call again is the same start, the same input and the same answer.
    let again = step(&admin, &id, first).await;
    assert_eq!(
        (&again["stdout"], &again["offsets"]),
        (&output["stdout"], &output["offsets"])
    );
    let next = json!({
        "exec_id": "talk", "offsets": output["offsets"], "stdin": "two\n", "wait_seconds": 20,
    });
    let second = step(&admin, &id, next).await;
    assert_eq!(
        (&second["stdout"], &second["stderr"]),
        (&json!(""), &json!("and two\n"))
    );
    let last = json!({ "exec_id": "talk", "offsets": second["offsets"], "wait_seconds": 20 });
    let ended = step(&admin, &id, last.clone()).await;
    assert_eq!(
        (&ended["running"], &ended["exit_code"]),
        (&json!(false), &json!(4))
    );
    assert_eq!(step(&admin, &id, last).await["exit_code"], 4);

    let terminal = json!({
        "exec_id": "size", "command": "stty size; read x", "wait_seconds": 20,
        "terminal": { "rows": 10, "columns": 20 },
    });
    let shown = step(&admin, &id, terminal).await;
    assert_eq!(shown["stdout"], "10 20\r\n", "{shown}");
    let hang_up = json!({
        "exec_id": "size", "signal": "hangup", "offsets": shown["offsets"], "wait_seconds": 20,
    });
    assert_eq!(step(&admin, &id, hang_up).await["exit_code"], 129);
}

#[test(each(sandbox))]
async fn invalid_calls_of_an_interactive_command_are_refused_with_the_reason(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    for (parameters, expected) in [
        (
            json!({ "command": "true", "offsets": {} }),
            "`wait_seconds`",
        ),
        (json!({ "command": "true", "wait_seconds": 1 }), "`exec_id`"),
        (json!({ "exec_id": "x", "wait_seconds": 51 }), "0 to 50"),
        (
            json!({ "exec_id": "unknown", "wait_seconds": 0 }),
            "not found",
        ),
        (json!({}), "missing parameter `command`"),
        (
            json!({ "exec_id": "x", "wait_seconds": 0, "stdin": "?", "encoding": "base64" }),
            "base64",
        ),
        (
            json!({
                "exec_id": "x", "command": "cat", "wait_seconds": 0, "stdin": "late",
                "offsets": { "stdin": 7 },
            }),
            "has received only 0 bytes",
        ),
        (
            json!({
                "exec_id": "x", "command": "cat", "wait_seconds": 0, "timeout_seconds": 1,
            }),
            "`signal`",
        ),
    ] {
        let mut parameters = parameters;
        parameters["project_id"] = json!(id);
        if parameters.get("exec_id") == Some(&json!("unknown")) {
            admin
                .call("container_start", json!({ "project_id": id }))
                .await
                .ok();
        }
        let reply = admin.call("container_exec", parameters.clone()).await;
        assert!(reply.is_error(), "{parameters}: {}", reply.text);
        assert!(
            reply.sentence().contains(expected),
            "{parameters}: {}",
            reply.sentence()
        );
    }
}

#[test(runtimes)]
async fn an_interactive_command_keeps_its_container_until_no_caller_reads_it(runtime: &str) {
    let config = "[containers]\nidle_seconds = 1\nabsence_seconds = 3\n";
    let server: Server = server_with(runtime, config).await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let begin = json!({
        "exec_id": "left", "command": "echo here; sleep 1000", "wait_seconds": 20,
    });
    let begun = Instant::now();
    let output = step(&admin, &id, begin).await;
    assert_eq!(output["stdout"], "here\n");
    let stopped = async {
        loop {
            let logs = admin
                .call("container_logs", json!({ "project_id": id }))
                .await;
            if logs.ok()["status"] == "stopped" {
                return;
            }
            support::pause().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(40), stopped)
        .await
        .expect("it never stops");
    assert!(
        begun.elapsed() >= Duration::from_secs(3),
        "stopped under a terminal"
    );
    let last = json!({ "exec_id": "left", "offsets": output["offsets"], "wait_seconds": 0 });
    let late = admin.call("container_exec", {
        let mut last = last;
        last["project_id"] = json!(id);
        last
    });
    let late = late.await;
    assert!(
        late.is_error() || late.ok()["exit_code"] == 129,
        "{}",
        late.text
    );
}
