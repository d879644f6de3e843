//! The probe reports what the machine really supports.

use oubliette_sandbox::{Method, probe};

use crate::support::{Host, Mode, in_modes, init_binary};

fn the_probe_of_a_working_machine_finds_every_feature(host: &Host) {
    let probe = probe(&init_binary(), host.dir.path());
    assert_eq!(probe.method, Some(Method::Native), "{probe:#?}");
    let item = |name: &str| probe.items.iter().find(|item| item.name == name).unwrap();
    assert!(item("kernel").works && item("native").works);
    assert!(item("copy_on_write").works, "{probe:#?}");
    if host.mode == Mode::Root {
        assert!(item("user_ids").works);
        assert!(item("memory_limit").works, "{probe:#?}");
    }
    for item in &probe.items {
        assert!(!item.detail.is_empty(), "{item:?}");
    }
    let left = std::fs::read_dir(host.dir.path()).unwrap().count();
    assert_eq!(left, 0, "the probe left something");
    host.assert_nothing_left();
}
in_modes!(the_probe_of_a_working_machine_finds_every_feature: root, user);

fn bubblewrap_is_tried_only_if_needed(host: &Host) {
    let probe = probe(&init_binary(), host.dir.path());
    assert_eq!(probe.method, Some(Method::Native), "{probe:#?}");
    assert!(
        probe.items.iter().all(|item| item.name != "bwrap"),
        "{probe:#?}"
    );
    host.assert_nothing_left();
}
in_modes!(bubblewrap_is_tried_only_if_needed: root, user);

fn the_probe_of_a_binary_that_is_not_a_launcher_reports_the_failure(host: &Host) {
    let probe = probe("/bin/true".as_ref(), host.dir.path());
    assert_eq!(probe.method, None);
    let native = probe
        .items
        .iter()
        .find(|item| item.name == "native")
        .unwrap();
    assert!(!native.works && !native.detail.is_empty());
    host.assert_nothing_left();
}
in_modes!(the_probe_of_a_binary_that_is_not_a_launcher_reports_the_failure: root, user);
