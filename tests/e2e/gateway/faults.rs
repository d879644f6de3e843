//! The server or the gate is killed while agents ask their models.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::eventually;

use super::{ASK, KEY, NO_BUDGET, keys_of, run, run_again, start, start_with};
use crate::network::gate_pid;

const WAIT: Duration = Duration::from_secs(60);

pub(super) fn kill_gate(server: &support::Server) {
    let pid = gate_pid(server.home()).unwrap();
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test(needs(sandbox), limit = 240)]
async fn a_killed_server_costs_no_stream_and_no_request() {
    let (mut server, llm, admin, project) = start_with(NO_BUDGET).await;
    // One answer is held while the server dies, and one request is made without a server.
    let held = ASK.replace("say hello", "say hello\\nhold");
    let script = format!(
        "({held} > first; echo >> first) & while [ ! -e away ]; do sleep 0.1; done; {ASK} > second; echo >> second; wait; cat first second"
    );
    std::fs::write(server.workspace(&project).join("do.sh"), script).unwrap();
    let session = admin.spawn(&project, "go").await;
    assert!(eventually(WAIT, async || llm.requests().len() == 1).await);
    server.kill();
    let workspace = server.workspace(&project);
    std::fs::write(workspace.join("away"), "").unwrap();
    let read = |name: &str| std::fs::read_to_string(workspace.join(name)).unwrap_or_default();
    assert!(eventually(WAIT, async || read("second").contains("status")).await);
    assert!(read("second").contains("status 200"), "{}", read("second"));
    llm.release();
    assert!(eventually(WAIT, async || read("first").contains("status")).await);
    assert!(read("first").contains("status 200"), "{}", read("first"));
    server.start_again();
    let completion = server.admin().turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    assert_eq!(keys_of(&llm), [KEY, KEY]);
    let text = run_again(&server, &project, &session, 2, ASK).await;
    assert!(text.ends_with("status 200"), "{text}");
}

#[test(needs(sandbox), limit = 240)]
async fn a_gate_that_is_started_again_gets_the_keys_of_running_agents() {
    let (mut server, llm, _admin, project) = start().await;
    let (session, text) = run(&server, &project, ASK).await;
    assert!(text.ends_with("status 200"), "{text}");
    kill_gate(&server);
    let retrying = format!(
        "for i in 1 2 3 4 5 6 7 8; do out=$({ASK}); case $out in *'status 200') break ;; esac; sleep 0.5; done; echo $out"
    );
    let text = run_again(&server, &project, &session, 2, &retrying).await;
    assert!(text.ends_with("status 200"), "{text}");
    // Both at once: the next server finds the placeholder's hash in its store.
    server.kill();
    kill_gate(&server);
    server.start_again();
    let text = run_again(&server, &project, &session, 3, &retrying).await;
    assert!(text.ends_with("status 200"), "{text}");
    assert!(keys_of(&llm).iter().all(|key| key == KEY));
}
