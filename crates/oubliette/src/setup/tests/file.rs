//! What reaches the disk: whole files, through links, with their permissions.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

use super::*;

#[test]
fn a_missing_file_is_made_for_its_owner_alone() {
    for client in http_clients() {
        let case = Case::new(client);
        let change = case.set_up();
        assert!(!change.is_noop());
        assert_eq!(change.path, case.path);
        assert!(change.summary().starts_with("--- /dev/null\n"));
        assert!(!change.note().is_empty());
        case.assert_complete();
        assert_eq!(fs::metadata(&case.path).unwrap().mode() & 0o7777, 0o600);
        assert!(case.read().ends_with("\n"));
    }
}

#[test]
fn a_second_run_leaves_the_file_alone() {
    for client in http_clients() {
        for text in [hand_written(client), outdated_entry(client)] {
            let case = Case::with(client, &text);
            case.set_up();
            let (text, inode) = (case.read(), fs::metadata(&case.path).unwrap().ino());
            let again = case.set_up();
            assert!(again.is_noop());
            assert!(again.summary().contains("already set up"));
            assert_eq!(case.read(), text);
            assert_eq!(fs::metadata(&case.path).unwrap().ino(), inode);
        }
    }
}

#[test]
fn a_link_is_written_through() {
    for client in http_clients() {
        let case = Case::new(client);
        let directory = case.path.parent().unwrap();
        fs::create_dir_all(directory).unwrap();
        let target = directory.join("dotfiles/kept");
        symlink("dotfiles/kept", &case.path).unwrap();
        // First the target is missing, then it exists.
        for token in [OLD_TOKEN, TOKEN] {
            case.plan_with(token).unwrap().apply().unwrap();
            assert!(case.path.is_symlink());
            assert!(target.is_file() && !target.is_symlink());
        }
        case.assert_complete();
    }
}

#[test]
fn links_that_lead_nowhere_are_refused() {
    let case = Case::new(client("claude"));
    symlink(&case.path, &case.path).unwrap();
    assert!(matches!(case.plan(), Err(SetupError::Read { .. })));
}

#[test]
fn permissions_survive_but_only_the_owner_can_read_a_key() {
    for client in http_clients() {
        for mode in [0o644, 0o640, 0o600, 0o664, 0o400] {
            let case = Case::with(client, &hand_written(client));
            let set = |mode| {
                let mode = fs::Permissions::from_mode(mode);
                fs::set_permissions(&case.path, mode).unwrap();
            };
            let found = || fs::metadata(&case.path).unwrap().mode() & 0o7777;
            set(mode);
            let change = case.set_up();
            assert_eq!(found(), mode & 0o600);
            let is_said = change.summary().contains("permissions");
            assert_eq!(is_said, mode & 0o077 != 0, "{}", change.summary());
            // Also where the key is there already.
            set(mode);
            case.set_up();
            assert_eq!(found(), mode & 0o600);
            set(mode);
            let (name, home) = (case.client.name, case.home.path());
            let removal = plan_removal(name, &ConfigScope::User, home, &|_| None).unwrap();
            removal.apply().unwrap();
            assert_eq!(found(), mode);
        }
    }
}

#[test]
fn a_file_changed_in_the_meantime_is_not_overwritten() {
    for client in http_clients() {
        let case = Case::with(client, &hand_written(client));
        let change = case.plan().unwrap();
        case.write("someone else's\n");
        assert!(matches!(change.apply(), Err(SetupError::Changed { .. })));
        assert_eq!(case.read(), "someone else's\n");
    }
}

#[test]
fn a_file_in_place_of_the_directory_is_an_error() {
    let case = Case::new(
        CLIENTS
            .iter()
            .find(|client| client.name == "codex")
            .unwrap(),
    );
    fs::write(case.home.path().join(".codex"), "a file").unwrap();
    assert!(matches!(case.plan(), Err(SetupError::Read { .. })));
}
