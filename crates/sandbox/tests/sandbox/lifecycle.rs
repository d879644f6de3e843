//! Launch, lookup, stop and removal, also of many sandboxes at once; nothing stays on the host.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use oubliette_sandbox::{Error, find_running, launch, remove};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Host, STOP_TIMEOUT, in_modes, init_binary, request_at, wait_for_ends};

fn a_sandbox_is_found_again_by_its_state(host: &Host) {
    let sandbox = host.start("a");
    let pid = sandbox.running.pid();
    let again = find_running(&sandbox.spec.state_dir).unwrap();
    assert_eq!(again.pid(), pid);
    assert!(again.is_alive());
    assert_eq!(again.enforced(), sandbox.running.enforced());
    match launch(&sandbox.spec, &init_binary()) {
        Err(Error::AlreadyRunning { pid: found }) => assert_eq!(found, pid),
        other => panic!("{other:?}"),
    }
    match remove(&sandbox.spec.state_dir, &sandbox.spec.layers_dir) {
        Err(Error::StillRunning { pid: found }) => assert_eq!(found, pid),
        other => panic!("{other:?}"),
    }
    again.stop(STOP_TIMEOUT).unwrap();
    assert!(!sandbox.running.is_alive());
    assert!(find_running(&sandbox.spec.state_dir).is_none());
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(a_sandbox_is_found_again_by_its_state: root, user, bwrap);

fn daemons_in_sessions_of_their_own_die_on_stop(host: &Host) {
    let sandbox = host.start("a");
    // A number that no daemon of another test has.
    let seconds = (900_000 + std::process::id()).to_string();
    sandbox.read(&format!(
        "setsid -f sh -c 'touch /workspace/up; exec sleep {seconds}' </dev/null >/dev/null 2>&1; \
         until [ -e /workspace/up ]; do :; done",
    ));
    let daemons = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let commands =
            processes.map(|entry| fs::read(entry.path().join("cmdline")).unwrap_or_default());
        let texts = commands.map(|command| String::from_utf8_lossy(&command).into_owned());
        texts.filter(|text| text.contains(&seconds)).count()
    };
    // While it becomes `sleep`, it has no command line.
    let deadline = Instant::now() + STOP_TIMEOUT;
    while daemons() != 1 {
        assert!(Instant::now() < deadline, "the daemon does not run");
        std::thread::yield_now();
    }
    sandbox.stop();
    assert_eq!(daemons(), 0, "a daemon still runs after the stop");
    sandbox.remove();
}
in_modes!(daemons_in_sessions_of_their_own_die_on_stop: root, user, bwrap);

fn a_pid_1_that_ignores_the_request_is_killed(host: &Host) {
    let mut spec = host.spec("a");
    // PID 1 gets no signal that it has no handler for.
    spec.init.binary = "/bin/busybox".into();
    spec.init.inside = "/init/busybox".into();
    spec.init.args = vec!["sleep".to_owned(), "1000".to_owned()];
    if !Path::new("/bin/busybox").exists() {
        spec.init.binary = fs::canonicalize("/bin/sleep").unwrap();
        spec.init.args.remove(0);
    }
    let sandbox = host.launch(spec);
    let started = Instant::now();
    sandbox.running.stop(Duration::from_millis(50)).unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(!sandbox.running.is_alive());
    remove(&sandbox.spec.state_dir, &sandbox.spec.layers_dir).unwrap();
    host.assert_nothing_left();
}
in_modes!(a_pid_1_that_ignores_the_request_is_killed: root, user, bwrap);

/// Launches from another process, which is then killed.
fn a_sandbox_outlives_the_process_that_launched_it(host: &Host) {
    let spec = host.spec("a");
    let spec_file = host.path("spec.json");
    fs::write(&spec_file, serde_json::to_vec(&spec).unwrap()).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--in-process", "lifecycle::launched_by_another_process"])
        .env("OUBLIETTE_TEST_LAUNCH", &spec_file)
        .env("OUBLIETTE_TEST_INIT", init_binary())
        .output()
        .unwrap();
    assert!(!output.status.success(), "it should have killed itself");
    let running = find_running(&spec.state_dir).expect("the sandbox runs");
    let output = request_at(
        &host.path("a/m/c"),
        &serde_json::json!({ "argv": ["echo", "alive"] }),
    );
    assert_eq!(output.stdout, "alive\n");
    running.stop(STOP_TIMEOUT).unwrap();
    remove(&spec.state_dir, &spec.layers_dir).unwrap();
    host.assert_nothing_left();
}
in_modes!(a_sandbox_outlives_the_process_that_launched_it: root, user, bwrap);

/// The other half of the test above.
#[oubliette_test_harness::helper]
fn launched_by_another_process() {
    let file = std::env::var_os("OUBLIETTE_TEST_LAUNCH").unwrap();
    let spec = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    launch(&spec, &init_binary()).unwrap();
    let own = Pid::from_raw(std::process::id() as i32).unwrap();
    kill_process(own, Signal::KILL).unwrap();
}

fn a_killed_sandbox_leaves_nothing_and_starts_again(host: &Host) {
    let sandbox = host.start("a");
    sandbox.read("echo kept > /workspace/kept");
    let pid = Pid::from_raw(sandbox.running.pid()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    wait_for_ends([sandbox.running.pid()]);
    assert!(find_running(&sandbox.spec.state_dir).is_none());
    let sandbox = host.launch(sandbox.spec.clone());
    assert_eq!(sandbox.read("cat /workspace/kept"), "kept");
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(a_killed_sandbox_leaves_nothing_and_starts_again: root, user, bwrap);

fn a_launch_works_with_a_huge_environment(host: &Host) {
    let spec = host.spec("a");
    let spec_file = host.path("spec.json");
    fs::write(&spec_file, serde_json::to_vec(&spec).unwrap()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--in-process", "lifecycle::launched_by_another_process"])
        .env("OUBLIETTE_TEST_LAUNCH", &spec_file)
        .env("OUBLIETTE_TEST_INIT", init_binary());
    for index in 0..15 {
        command.env(format!("HUGE_{index}"), "x".repeat(100_000));
    }
    command.output().unwrap();
    let running = find_running(&spec.state_dir).expect("the sandbox runs");
    running.stop(STOP_TIMEOUT).unwrap();
    remove(&spec.state_dir, &spec.layers_dir).unwrap();
}
in_modes!(a_launch_works_with_a_huge_environment: root, user);

fn every_tree_that_a_sandbox_leaves_in_its_layers_can_be_removed(host: &Host) {
    let sandbox = host.start("a");
    sandbox.read(
        "cd /var/tmp && mkdir -p a/b/c locked/inner && ln -s / a/root && chmod 0 locked && \
         i=0; while [ $i -lt 300 ]; do mkdir d && cd d; i=$((i+1)); done; touch end",
    );
    sandbox.remove();
    host.assert_nothing_left();
}
in_modes!(every_tree_that_a_sandbox_leaves_in_its_layers_can_be_removed: root, user);

fn a_hundred_sandboxes_run_at_once(host: &Host) {
    let specs: Vec<_> = (0..100)
        .map(|index| host.spec(&format!("n{index}")))
        .collect();
    let started = Instant::now();
    let sandboxes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = specs
            .chunks(13)
            .map(|chunk| {
                scope.spawn(move || {
                    chunk
                        .iter()
                        .map(|spec| host.launch(spec.clone()))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let up = started.elapsed();
    for (index, sandbox) in sandboxes.iter().enumerate() {
        assert_eq!(
            sandbox.read(&format!("echo {index} > /tmp/x; cat /tmp/x")),
            index.to_string()
        );
    }
    let used = started.elapsed();
    for sandbox in sandboxes {
        sandbox.remove();
    }
    eprintln!(
        "100 sandboxes: up after {up:?}, used after {used:?}, gone after {:?}",
        started.elapsed()
    );
    host.assert_nothing_left();
}
in_modes!(a_hundred_sandboxes_run_at_once: root, user, bwrap);

fn concurrent_launches_of_one_sandbox_make_one(host: &Host) {
    let spec = host.spec("a");
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| launch(&spec, &init_binary())))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let (up, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(up.len(), 1, "{refused:?}");
    for error in refused {
        assert!(
            matches!(error, Err(Error::Locked | Error::AlreadyRunning { .. })),
            "{error:?}"
        );
    }
    find_running(&spec.state_dir)
        .unwrap()
        .stop(STOP_TIMEOUT)
        .unwrap();
    remove(&spec.state_dir, &spec.layers_dir).unwrap();
    host.assert_nothing_left();
}
in_modes!(concurrent_launches_of_one_sandbox_make_one: root, user);
