//! `oubliette up` and `oubliette down`: the address of a server, and the sessions that end with it.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::{FreshHome, eventually, stderr, stdout};

#[test]
async fn a_taken_address_is_named_with_its_server_and_up_takes_another() {
    let (first, second) = (FreshHome::new(), FreshHome::new());
    let up = first.run(&["up", "--json"]).await;
    let up: Value = serde_json::from_slice(&up.stdout).unwrap();
    let url = up["url"].as_str().unwrap();
    let address = url.trim_start_matches("http://").trim_end_matches("/mcp");
    let taken = second.run(&["up", "--listen", address]).await;
    assert_eq!(taken.status.code(), Some(1));
    let error = stderr(&taken);
    let owner = format!(
        "the server of {} already has {address}",
        first.path().display()
    );
    assert!(error.contains(&owner), "{error}");
    let config = second.path().join("oubliette.toml");
    assert!(error.contains(&config.display().to_string()), "{error}");
    let stop = format!("`oubliette --data-dir {} down`", first.path().display());
    assert!(error.contains(&stop), "{error}");
    let free = second.run(&["up", "--listen", "127.0.0.1:0"]).await;
    assert_eq!(free.status.code(), Some(0), "{}", stderr(&free));
    let other = second.run(&["up", "--listen", address]).await;
    assert!(
        stderr(&other).contains("up --restart --listen"),
        "{}",
        stderr(&other)
    );
}

#[test(needs(sandbox))]
async fn down_names_the_sessions_that_it_ends_and_their_followers_and_logs_say_so() {
    let home = FreshHome::new();
    std::fs::write(
        home.path().join("oubliette.toml"),
        "runtime = \"sandbox\"\n",
    )
    .unwrap();
    let follower = home
        .command(&["run", "/sleep 600"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut session = String::new();
    let is_running = eventually(Duration::from_secs(60), async || {
        let listed = home
            .run(&["session", "list", "--status", "running", "--json"])
            .await;
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        let id = listed["sessions"][0]["session_id"].as_str();
        session = id.unwrap_or_default().to_owned();
        !session.is_empty()
    });
    assert!(is_running.await);
    let down = home.run(&["down"]).await;
    assert_eq!(down.status.code(), Some(0), "{}", stderr(&down));
    let said = stdout(&down);
    assert!(
        said.contains("Stopped the server and one container"),
        "{said}"
    );
    assert!(
        said.contains(&format!("the session at work: {session}")),
        "{said}"
    );
    assert!(said.contains("session message"), "{said}");
    let ended = follower.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        stderr(&ended).contains("stopped by `oubliette down`"),
        "{}",
        stderr(&ended)
    );
    assert!(
        !stderr(&ended).contains("keeps working"),
        "{}",
        stderr(&ended)
    );
    // The first answer of the next server has it.
    let found = home.run(&["session", "get", &session, "--json"]).await;
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["status"], "interrupted", "{found}");
    let error = found["error"].as_str().unwrap();
    assert!(error.contains("`oubliette down`"), "{found}");
    let resumed = home
        .run(&["session", "message", &session, "/say again", "--wait", "40"])
        .await;
    assert_eq!(resumed.status.code(), Some(0), "{}", stderr(&resumed));
    assert!(stdout(&resumed).contains("again"), "{}", stdout(&resumed));
}
