//! What a machine is said to be able to do is what it does.

use oubliette_sandbox::{Method, probe};

use crate::support::{Host, Mode, in_modes, init_binary};

fn a_machine_that_runs_sandboxes_says_so(host: &Host) {
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
in_modes!(a_machine_that_runs_sandboxes_says_so: root, user);

fn bubblewrap_is_tried_only_where_it_is_needed(host: &Host) {
    let probe = probe(&init_binary(), host.dir.path());
    assert_eq!(probe.method, Some(Method::Native), "{probe:#?}");
    assert!(
        probe.items.iter().all(|item| item.name != "bwrap"),
        "{probe:#?}"
    );
    host.assert_nothing_left();
}
in_modes!(bubblewrap_is_tried_only_where_it_is_needed: root, user);

/// A launcher that is none: nothing works, and nothing is left.
fn a_machine_that_runs_none_says_what_is_wrong(host: &Host) {
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
in_modes!(a_machine_that_runs_none_says_what_is_wrong: root, user);
