//! Entries for a program that the client starts, and the removal of entries.

use super::*;

const PROGRAM: &str = "/opt/bin/oubliette";

fn program() -> Connection {
    Connection::Stdio {
        program: PROGRAM.to_owned(),
        arguments: vec!["mcp".to_owned(), "stdio".to_owned()],
    }
}

fn set_up(case: &Case, connection: &Connection) -> Change {
    let (name, home) = (case.client.name, case.home.path());
    let change = plan(name, &ConfigScope::User, home, &|_| None, connection).unwrap();
    change.apply().unwrap();
    change
}

fn remove(case: &Case) -> Change {
    let (name, home) = (case.client.name, case.home.path());
    let change = plan_removal(name, &ConfigScope::User, home, &|_| None).unwrap();
    change.apply().unwrap();
    change
}

#[test]
fn a_program_is_written_without_a_key_and_everything_else_survives() {
    for client in CLIENTS {
        let case = Case::with(client, &hand_written(client));
        let change = set_up(&case, &program());
        assert_keeps_lines(&hand_written(client), &case.read());
        assert!(case.read().contains(PROGRAM) && case.read().contains("stdio"));
        assert!(!case.read().contains("oub_"), "{}", case.read());
        assert!(change.summary().contains(PROGRAM), "{}", change.summary());
        let again = set_up(&case, &program());
        assert!(again.is_noop(), "{}", again.summary());
    }
}

#[test]
fn an_entry_can_become_one_of_the_other_kind() {
    for client in http_clients() {
        let case = Case::with(client, &hand_written(client));
        case.set_up();
        set_up(&case, &program());
        let text = case.read();
        assert!(!text.contains(TOKEN) && !text.contains(URL), "{text}");
        case.set_up();
        case.assert_complete();
        assert!(!case.read().contains(PROGRAM), "{}", case.read());
    }
}

#[test]
fn an_entry_is_found_with_its_kind_and_key() {
    for client in http_clients() {
        let case = Case::with(client, &hand_written(client));
        let found = || {
            let home = case.home.path();
            let found = inspect(client.name, &ConfigScope::User, home, &|_| None);
            found.unwrap().1
        };
        assert!(found().is_none());
        case.set_up();
        assert_eq!(found().unwrap().token.as_deref(), Some(TOKEN));
        assert!(!found().unwrap().is_stdio);
        set_up(&case, &program());
        assert!(found().unwrap().is_stdio && found().unwrap().token.is_none());
    }
}

#[test]
fn a_removed_entry_leaves_the_file_as_it_was() {
    for client in CLIENTS {
        let case = Case::with(client, &hand_written(client));
        assert!(remove(&case).is_noop());
        set_up(&case, &program());
        let change = remove(&case);
        assert!(!change.is_noop());
        assert!(change.summary().contains("oubliette"));
        assert_keeps_lines(&hand_written(client), &case.read());
        assert!(!case.read().contains(PROGRAM), "{}", case.read());
        assert!(remove(&case).is_noop());
        // A file that is not there has no entry.
        let case = Case::new(client);
        assert!(remove(&case).is_noop() && !case.path.exists());
    }
}

#[test]
fn a_client_without_files_of_projects_says_so() {
    let home = tempfile::tempdir().unwrap();
    let scope = ConfigScope::Project(home.path().to_owned());
    let planned = plan("claude-desktop", &scope, home.path(), &|_| None, &program());
    assert!(matches!(planned, Err(SetupError::NoProjectFile { .. })));
}
