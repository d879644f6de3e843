//! Commands whose server, which a command had started, dies.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use support::{FreshHome, stderr, stdout, wait_until};

use super::background::kill;

/// The workspace in which a command has made the file `begun`.
fn begun_workspace(home: &Path) -> Option<PathBuf> {
    let projects = std::fs::read_dir(home.join("projects")).ok()?.flatten();
    let mut workspaces = projects.map(|entry| entry.path().join("workspace"));
    workspaces.find(|it| it.join("begun").exists())
}

#[test(needs(sandbox))]
async fn a_crash_of_the_started_server_does_not_end_a_command() {
    let home = FreshHome::new();
    home.run(&["project", "create", "app"]).await;
    let script = "echo one; touch begun; while ! [ -e go ]; do sleep 0.05; done; echo two; exit 4";
    let mut command = home.command(&["container", "exec", "app", script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    let workspace = || begun_workspace(home.path());
    wait_until("the command", async || workspace().is_some()).await;
    let first = home.server_pid().unwrap();
    kill(first);
    std::fs::write(workspace().unwrap().join("go"), "").unwrap();
    let ended = tokio::task::spawn_blocking(move || running.wait_with_output());
    let ended = ended.await.unwrap().unwrap();
    assert_eq!(stdout(&ended), "one\ntwo\n", "{}", stderr(&ended));
    assert_eq!(ended.status.code(), Some(4));
    assert_ne!(home.server_pid(), Some(first));
}

#[test(needs(sandbox))]
async fn no_autostart_starts_no_server_in_place_of_a_crashed_one() {
    let home = FreshHome::new();
    home.run(&["project", "create", "app"]).await;
    let script = "touch begun; while ! [ -e go ]; do sleep 0.05; done; echo done";
    let exec = ["--no-autostart", "container", "exec", "app", script];
    let mut command = home.command(&exec);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let workspace = || begun_workspace(home.path());
    wait_until("the command", async || workspace().is_some()).await;
    let first = home.server_pid().unwrap();
    kill(first);
    std::fs::write(workspace().unwrap().join("go"), "").unwrap();
    let said = running.stderr.take().unwrap();
    let waiting = tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(said).lines().map_while(Result::ok);
        let found = lines.any(|line| line.contains("the server does not answer"));
        (found, lines)
    });
    let (found, _open) = waiting.await.unwrap();
    assert!(found, "the command did not wait");
    assert_eq!(home.server_pid(), Some(first), "another was started");
    home.run(&["doctor"]).await;
    assert_eq!(home.server_pid(), Some(first), "doctor started another");
    home.run(&["up"]).await;
    let ended = tokio::task::spawn_blocking(move || running.wait_with_output());
    let ended = ended.await.unwrap().unwrap();
    assert_eq!(stdout(&ended), "done\n");
}
