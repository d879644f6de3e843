//! A launch that fails, dies or hangs at any step leaves nothing and names the step.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use oubliette_sandbox::{Error, Spec, clean_up, find_running, launch, remove};

use crate::support::{Host, Mode, in_modes, init_binary, wait_for, wait_for_ends};

const STEPS: &[&str] = &[
    "after cgroups",
    "after clone",
    "in build",
    "after build",
    "before pivot",
    "after pivot",
    "before exec",
];

/// The steps of the launcher in a mode: bubblewrap does some by itself.
fn steps(host: &Host) -> Vec<&'static str> {
    let own = ["after cgroups", "after clone", "before exec"];
    let is_there = |step: &&&str| host.mode != Mode::Bwrap || own.contains(step);
    STEPS.iter().filter(is_there).copied().collect()
}

/// A launcher whose name makes it fail, die or hang at a step.
fn launcher(host: &Host, fault: &str, step: &str) -> PathBuf {
    let path = host.path(&format!("{fault}={step}"));
    symlink(init_binary(), &path).unwrap();
    path
}

fn spec(host: &Host) -> Spec {
    let mut spec = host.spec("a");
    spec.limits.processes = Some(50);
    spec.limits.memory_bytes = Some(1 << 28);
    spec
}

fn every_failing_step_is_named_and_leaves_nothing(host: &Host) {
    let spec = spec(host);
    for step in steps(host) {
        match launch(&spec, &launcher(host, "fail", step)) {
            Err(Error::Step { step: named, .. }) => assert_eq!(named, format!("injected {step}")),
            other => panic!("{step}: {other:?}"),
        }
        assert!(find_running(&spec.state_dir).is_none());
        if host.mode == Mode::Bwrap {
            // The processes of bubblewrap exit by themselves at their next step.
            host.wait_for_ends();
        }
        host.assert_nothing_left();
    }
    host.launch(spec).remove();
    host.assert_nothing_left();
}
in_modes!(every_failing_step_is_named_and_leaves_nothing: root, user, bwrap);

fn a_launcher_that_dies_at_any_step_leaves_nothing(host: &Host) {
    let spec = spec(host);
    for step in steps(host) {
        let launched = launch(&spec, &launcher(host, "die", step));
        assert!(launched.is_err(), "{step}: {launched:?}");
        assert!(find_running(&spec.state_dir).is_none());
        if host.mode == Mode::Bwrap {
            // The processes of bubblewrap exit by themselves at their next step.
            host.wait_for_ends();
        }
        host.assert_nothing_left();
    }
    remove(&spec.state_dir, &spec.layers_dir).unwrap();
    host.assert_nothing_left();
}
in_modes!(a_launcher_that_dies_at_any_step_leaves_nothing: root, user, bwrap);

fn a_launch_dies_with_its_caller(host: &Host) {
    let spec = spec(host);
    let spec_file = host.path("spec.json");
    fs::write(&spec_file, serde_json::to_vec(&spec).unwrap()).unwrap();
    for step in steps(host) {
        let mut caller = Command::new(std::env::current_exe().unwrap())
            .args(["--in-process", "lifecycle::launched_by_another_process"])
            .env("OUBLIETTE_TEST_LAUNCH", &spec_file)
            .env("OUBLIETTE_TEST_INIT", launcher(host, "hang", step))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let log = spec.state_dir.join("init.log");
        let hanging = format!("hanging {step}\n");
        fs::create_dir_all(&spec.state_dir).unwrap();
        wait_for("the step", &spec.state_dir, || {
            fs::read_to_string(&log)
                .is_ok_and(|log| log.contains(&hanging))
                .then_some(())
        });
        caller.kill().unwrap();
        caller.wait().unwrap();
        host.wait_for_ends();
        wait_for_ends(find_running(&spec.state_dir).map(|running| running.pid()));
        clean_up(&spec.state_dir).unwrap();
        host.assert_nothing_left();
    }
    host.launch(spec).remove();
    host.assert_nothing_left();
}
in_modes!(a_launch_dies_with_its_caller: root, user, bwrap);

fn the_error_names_a_missing_program(host: &Host) {
    let mut broken = spec(host);
    broken.init.binary = "/no/such/program".into();
    match launch(&broken, &init_binary()) {
        Err(Error::Step { step, source }) => {
            assert_eq!(step, "bind the program of PID 1");
            assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
        }
        other => panic!("{other:?}"),
    }
    let mut broken = spec(host);
    broken.init.binary = "/etc/passwd".into();
    assert!(launch(&broken, &init_binary()).is_err());
    let mut broken = spec(host);
    broken.binds[0].host = "/no/such/place".into();
    assert!(launch(&broken, &init_binary()).is_err());
    assert!(launch(&spec(host), "/no/such/launcher".as_ref()).is_err());
    assert!(launch(&spec(host), "/bin/true".as_ref()).is_err());
    remove(&broken.state_dir, &broken.layers_dir).unwrap();
    host.assert_nothing_left();
}
in_modes!(the_error_names_a_missing_program: root, user, bwrap);

fn a_program_that_exits_immediately_is_not_found_running(host: &Host) {
    let mut spec = spec(host);
    spec.init.args = vec!["/no/such/dir/socket".to_owned()];
    let launched = launch(&spec, &init_binary());
    // The launch may succeed if the program is still alive when it is checked.
    if let Ok(running) = launched {
        wait_for_ends([running.pid()]);
    }
    assert!(find_running(&spec.state_dir).is_none());
    remove(&spec.state_dir, &spec.layers_dir).unwrap();
    host.assert_nothing_left();
}
in_modes!(a_program_that_exits_immediately_is_not_found_running: root, user, bwrap);

fn a_launch_that_hangs_times_out(host: &Host) {
    // In the launcher, and in the process that becomes PID 1.
    let faults = [("a", "after clone"), ("b", "after pivot")];
    std::thread::scope(|scope| {
        for (id, step) in faults {
            scope.spawn(move || {
                let spec = host.spec(id);
                let launched = launch(&spec, &launcher(host, "hang", step));
                assert!(matches!(launched, Err(Error::Timeout(_))), "{launched:?}");
                remove(&spec.state_dir, &spec.layers_dir).unwrap();
            });
        }
    });
    host.assert_nothing_left();
}
in_modes!(a_launch_that_hangs_times_out: root, user);
