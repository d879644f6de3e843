//! Where the real token is looked for.

use std::os::unix::fs::MetadataExt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use support::{RunAs, eventually};

use super::{CLONE, TOKEN, USER, WAIT, World};
use crate::credentials::files_with;
use crate::gateway::{event_texts, memory_has, processes_with};

#[test(needs(root, sandbox), limit = 240)]
async fn the_token_is_nowhere_in_the_container() {
    let world = World::start().await;
    let script = format!(
        "{CLONE} git push -q origin work:oubliette/work; git push origin work:main 2>&1; env; \
         GIT_TRACE_CURL=$PWD/trace GIT_TRACE_CURL_NO_DATA=0 GIT_TRACE_REDACT=0 git fetch; \
         git ls-remote https://git.test/slow/app.git > /dev/null 2>&1 & \
         until pidof git-remote-http git-remote-https; do :; done"
    );
    let (session, text) = world.run(&script).await;
    assert!(text.contains("not allowed, only"), "{text}");
    // One request is on its way all the time.
    let is_slow = |it: &support::GitRequest| it.path.starts_with("/slow/");
    let waits = async || world.forge.requests().iter().any(is_slow);
    assert!(eventually(WAIT, waits).await);
    let encoded = BASE64_STANDARD.encode(format!("{USER}:{TOKEN}"));
    for secret in [TOKEN, encoded.as_str()] {
        // The agent still runs.
        assert_eq!(processes_with(&world.server, secret), Vec::<String>::new());
        let search = format!("grep -rlaF {secret} /tmp /root /workspace; true");
        let found = world.admin.exec(&world.project, search).await;
        assert_eq!(found["stdout"], "", "{found}");
        let log = event_texts(&world.admin.log(&session).await);
        assert!(!log.contains(secret), "{log}");
        assert!(!world.server.log().contains(secret));
        assert!(!text.contains(secret), "{text}");
    }
    let holders = processes_with(&world.server, "oub_");
    let is_git = |holder: &String| holder.starts_with("memory of") && holder.contains("git-remote");
    assert!(
        holders.iter().any(is_git),
        "the search finds what is there: {holders:?}"
    );
    let trace = world.server.workspace(&world.project).join("app/trace");
    let trace = std::fs::read_to_string(trace).unwrap();
    assert!(trace.contains("Authorization: Bearer oub_"), "{trace}");
    let stored = world.server.home().join("credentials/forge.json");
    assert_eq!(
        files_with(world.server.home(), TOKEN),
        [stored.display().to_string()]
    );
    let gate = crate::network::gate_pid(world.server.home()).unwrap();
    for file in ["cmdline", "environ"] {
        let content = std::fs::read(format!("/proc/{gate}/{file}")).unwrap();
        assert!(!String::from_utf8_lossy(&content).contains(TOKEN));
    }
}

/// Aborts a process, and waits until it is gone.
async fn abort(pid: u32) {
    let target = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(target, Signal::ABORT).unwrap();
    let status = format!("/proc/{pid}/stat");
    let is_gone = eventually(WAIT, async || {
        let stat = std::fs::read_to_string(&status).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    assert!(is_gone.await);
}

#[test(needs(root, sandbox), limit = 240)]
async fn a_core_dump_in_the_container_or_of_the_gate_has_no_token() {
    let user = RunAs {
        uid: 54_331,
        gid: 54_331,
        group: 54_331,
    };
    let world = World::start_with("runtime = \"sandbox\"\n", Some(user)).await;
    let script = format!(
        "{CLONE} ulimit -c unlimited 2>/dev/null; git ls-remote https://git.test/slow/app.git > /dev/null 2>&1 & \
         until pidof git-remote-http git-remote-https; do :; done"
    );
    world.run(&script).await;
    let is_slow = |it: &support::GitRequest| it.path.starts_with("/slow/");
    let waits = async || world.forge.requests().iter().any(is_slow);
    assert!(eventually(WAIT, waits).await);
    let holders = processes_with(&world.server, "oub_");
    let git = holders.iter().find(|it| it.contains("git-remote")).unwrap();
    abort(git.split(' ').nth(2).unwrap().parse().unwrap()).await;
    let workspace = world.server.workspace(&world.project);
    assert_eq!(files_with(&workspace, TOKEN), Vec::<String>::new());
    // The gate has the token in its memory. The files of a process that cannot be dumped belong to root in `/proc`.
    let gate = crate::network::gate_pid(world.server.home()).unwrap();
    assert!(memory_has(gate, TOKEN));
    let owner = |path: String| std::fs::metadata(path).unwrap().uid();
    assert_eq!(owner(format!("/proc/{gate}/mem")), 0);
    assert_eq!(owner(format!("/proc/{}/mem", world.server.pid())), user.uid);
    abort(gate).await;
    let stored = world.server.home().join("credentials/forge.json");
    let found = files_with(world.server.home(), TOKEN);
    assert_eq!(found, [stored.display().to_string()]);
}
