//! `oubliette container exec` without `-i`: nothing of a command's output is lost, changed or late.

use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::{Server, ServerOptions, binary, run_cli, stderr, stdout};

fn sandbox() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

fn start(server: &Server, arguments: &[&str]) -> Child {
    Command::new(binary())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", server.home())
        .env("OUBLIETTE_HOME", server.home())
        .args(["container", "exec"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

async fn exec(server: &Server, arguments: &[&str]) -> Output {
    run_cli(server.home(), &[&["container", "exec"], arguments].concat()).await
}

#[test(needs(sandbox))]
async fn all_bytes_arrive_as_they_are_with_the_exit_code() {
    let server = sandbox();
    server.admin().project("app").await;
    let lines = exec(&server, &["app", "seq 1 300000"]).await;
    assert!(stdout(&lines).ends_with("\n300000\n"), "{}", stderr(&lines));
    assert_eq!(stdout(&lines).lines().count(), 300_000);

    let script = "head -c 3000000 /dev/urandom > data; sha256sum < data >&2; cat data; exit 42";
    let random = exec(&server, &["app", script]).await;
    assert_eq!(random.status.code(), Some(42));
    assert_eq!(random.stdout.len(), 3_000_000);
    let mut sum = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    sum.stdin.take().unwrap().write_all(&random.stdout).unwrap();
    let sum = sum.wait_with_output().unwrap();
    assert_eq!(stdout(&sum), stderr(&random));

    for (script, code) in [
        ("true", 0),
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("nosuch", 127),
    ] {
        let ended = exec(&server, &["app", script]).await;
        assert_eq!(
            ended.status.code(),
            Some(code),
            "{script}: {}",
            stderr(&ended)
        );
    }
    let missing = exec(&server, &["app", "--", "nosuch", "x"]).await;
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    assert!(stderr(&missing).contains("nosuch"), "{}", stderr(&missing));
    // The input is empty, whatever that of this process is.
    let empty = exec(&server, &["app", "wc -c"]).await;
    assert_eq!(stdout(&empty).trim(), "0");
    let given = exec(&server, &["app", "--stdin", "four", "wc -c"]).await;
    assert_eq!(stdout(&given).trim(), "4", "{}", stderr(&given));
    let json = exec(&server, &["app", "--json", "echo hi"]).await;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["stdout"], "hi\n");
}

#[test(needs(sandbox), multi_thread)]
async fn output_arrives_while_the_command_runs_and_an_interrupt_ends_it() {
    let server = sandbox();
    let project = server.admin().project("app").await;
    let script = "echo one; while ! [ -e go ]; do sleep 0.02; done; echo two; exec sleep 1000";
    let mut running = start(&server, &["app", script]);
    let mut output = running.stdout.take().unwrap();
    let (one, mut output) = blocking(move || {
        let mut line = [0; 4];
        output.read_exact(&mut line).unwrap();
        (line, output)
    })
    .await;
    assert_eq!(&one, b"one\n");
    std::fs::write(server.workspace(&project).join("go"), "").unwrap();
    let (two, mut output) = blocking(move || {
        let mut line = [0; 4];
        output.read_exact(&mut line).unwrap();
        (line, output)
    })
    .await;
    assert_eq!(&two, b"two\n");
    let pid = Pid::from_raw(running.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let (status, rest) = blocking(move || {
        let mut rest = Vec::new();
        output.read_to_end(&mut rest).unwrap();
        (running.wait().unwrap(), rest)
    })
    .await;
    assert_eq!(status.code(), Some(130));
    assert_eq!(rest, b"");
    let left = exec(&server, &["app", "ps ax | grep 'sleep 100[0]' || true"]).await;
    assert_eq!(stdout(&left), "", "it still runs");
}

#[test(needs(sandbox))]
async fn a_timeout_kills_the_command_and_shows_its_output() {
    let server = sandbox();
    server.admin().project("app").await;
    let started = Instant::now();
    let late = exec(
        &server,
        &["app", "--timeout", "1", "echo begun; sleep 1000"],
    )
    .await;
    assert_eq!(late.status.code(), Some(1));
    assert_eq!(stdout(&late), "begun\n");
    assert!(
        stderr(&late).contains("timeout of 1 s"),
        "{}",
        stderr(&late)
    );
    assert!(started.elapsed() < Duration::from_secs(60));
    let wrong = exec(&server, &["app", "--timeout", "0", "true"]).await;
    assert!(stderr(&wrong).contains("more than 0"), "{}", stderr(&wrong));
}

#[test(needs(sandbox), multi_thread)]
async fn a_reader_that_goes_away_ends_the_command() {
    let server = sandbox();
    server.admin().project("app").await;
    let mut running = start(&server, &["app", "exec yes"]);
    let mut output = running.stdout.take().unwrap();
    let status = blocking(move || {
        let mut some = [0; 4096];
        output.read_exact(&mut some).unwrap();
        drop(output);
        running.wait().unwrap()
    })
    .await;
    assert_eq!(status.code(), Some(141));
    support::wait_until("the end of the command", async || {
        let left = exec(&server, &["app", "ps ax | grep '[y]es' || true"]).await;
        stdout(&left).is_empty()
    })
    .await;
}
