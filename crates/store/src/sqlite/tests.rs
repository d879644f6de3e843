//! Runs the contract tests on SQLite, and tests what is specific to the database file.

use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::contract::CASES;
use crate::{
    AuditEntry, AuditFilter, AuditOutcome, AuditStore, ContainerStore, Exec, Project, ProjectStore,
    StoreError,
};
use oubliette_model::ProjectSettings;

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("oubliette.db");
    (directory, path)
}

fn entry(operation: &str) -> AuditEntry {
    AuditEntry {
        at: jiff::Timestamp::from_second(1).unwrap(),
        token_id: None,
        operation: operation.to_owned(),
        project_id: None,
        outcome: AuditOutcome::Ok,
        address: None,
    }
}

#[tokio::test]
async fn sqlite_passes_the_store_contract() {
    for case in CASES {
        let (_directory, path) = directory();
        let store = Sqlite::open(&path).unwrap();
        println!("{}", case.name);
        (case.run)(&store).await;
    }
}

#[tokio::test]
async fn writes_survive_reopening() {
    let (_directory, path) = directory();
    Sqlite::open(&path)
        .unwrap()
        .append_audit(vec![entry("kept")])
        .await
        .unwrap();
    let reopened = Sqlite::open(&path).unwrap();
    assert_eq!(
        reopened
            .audit_records(&AuditFilter::default(), None, 9)
            .await
            .unwrap()
            .rows
            .len(),
        1
    );
}

#[tokio::test]
async fn a_preallocated_log_keeps_commits_after_a_crash() {
    let (_directory, path) = directory();
    let log = |path: &Path| PathBuf::from(format!("{}-wal", path.display()));
    let mut written = 0;
    for crash in 0..3 {
        let (_next, copy) = directory();
        let store = Sqlite::open(&path).unwrap();
        for _ in 0..10 {
            store.append_audit(vec![entry("kept")]).await.unwrap();
            written += 1;
        }
        assert!(std::fs::metadata(log(&path)).unwrap().len() >= open::WAL_PREALLOCATED_BYTES);
        // Opens the files as a killed server would leave them.
        std::fs::copy(&path, &copy).unwrap();
        std::fs::copy(log(&path), log(&copy)).unwrap();
        drop(store);
        std::fs::copy(&copy, &path).unwrap();
        std::fs::copy(log(&copy), log(&path)).unwrap();
        let next = Sqlite::open(&path).unwrap();
        let found = next
            .audit_records(&AuditFilter::default(), None, 99)
            .await
            .unwrap();
        assert_eq!(found.rows.len(), written, "after crash {crash}");
    }
}

#[test]
fn a_statement_with_a_limit_is_compiled_once() {
    let (_directory, path) = directory();
    drop(Sqlite::open(&path).unwrap());
    let connection = open::open_for_reading(&path).unwrap();
    let mut statement = connection
        .prepare("select id from audit where id > ?1 order by id limit ?2")
        .unwrap();
    for limit in [1, 2, 2, 300] {
        assert!(!statement.exists([0, limit]).unwrap());
    }
    assert_eq!(
        statement.get_status(rusqlite::StatementStatus::RePrepare),
        0
    );
}

#[test]
fn a_newer_database_is_refused_and_not_changed() {
    let (_directory, path) = directory();
    drop(Sqlite::open(&path).unwrap());
    let future = Connection::open(&path).unwrap();
    future.pragma_update(None, "user_version", 999).unwrap();
    drop(future);
    let before = std::fs::read(&path).unwrap();
    let error = Sqlite::open(&path).unwrap_err();
    assert!(
        matches!(error, StoreError::NewerFormat { found: 999, .. }),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn foreign_and_damaged_files_are_refused_and_not_changed() {
    let (_directory, path) = directory();
    let foreign = Connection::open(&path).unwrap();
    foreign.execute_batch("create table theirs (x)").unwrap();
    drop(foreign);
    let foreign_database = std::fs::read(&path).unwrap();

    let text = b"this is not a database, it must not be changed ".repeat(100);
    let mut torn = foreign_database.clone();
    torn[100..].fill(0xA5);
    for bytes in [foreign_database, text, torn] {
        std::fs::write(&path, &bytes).unwrap();
        let error = Sqlite::open(&path).unwrap_err();
        assert!(
            matches!(error, StoreError::ForeignFile(_) | StoreError::Damaged(_)),
            "{error}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

#[tokio::test]
async fn a_failing_write_does_not_affect_others_in_its_commit() {
    let (_directory, path) = directory();
    let store = Sqlite::open(&path).unwrap();
    let good = store.write(|c| {
        Ok(c.execute(
            "insert into audit (at, operation, outcome) values (1, 'a', 'ok')",
            [],
        )?)
    });
    let bad = store.write(|c| Ok(c.execute("insert into nowhere values (1)", [])?));
    let panics = store.write(|_| -> Result<()> { panic!("a bug in one write") });
    let last = store.write(|c| {
        Ok(c.execute(
            "insert into audit (at, operation, outcome) values (2, 'b', 'ok')",
            [],
        )?)
    });
    let (good, bad, panics, last) = tokio::join!(good, bad, panics, last);
    assert_eq!((good.unwrap(), last.unwrap()), (1, 1));
    assert!(bad.is_err() && panics.is_err());
    assert_eq!(
        store
            .audit_records(&AuditFilter::default(), None, 9)
            .await
            .unwrap()
            .rows
            .len(),
        2
    );
}

#[tokio::test]
async fn a_full_disk_is_reported_and_the_write_is_rolled_back() {
    let (_directory, path) = directory();
    let store = Sqlite::open(&path).unwrap();
    store.append_audit(vec![entry("before")]).await.unwrap();
    // SQLite reports the page limit of a file like a full disk.
    store
        .write(|c| Ok(c.pragma_update(None, "max_page_count", 30)?))
        .await
        .unwrap();
    let big = AuditEntry {
        operation: "x".repeat(1 << 20),
        ..entry("")
    };
    let outcome = store.append_audit(vec![entry("half"), big]).await;
    assert!(matches!(outcome, Err(StoreError::DiskFull)), "{outcome:?}");
    store
        .write(|c| Ok(c.pragma_update(None, "max_page_count", 1 << 20)?))
        .await
        .unwrap();
    store.append_audit(vec![entry("after")]).await.unwrap();
    let logged = store
        .audit_records(&AuditFilter::default(), None, 9)
        .await
        .unwrap();
    let names: Vec<_> = logged
        .rows
        .iter()
        .map(|r| r.entry.operation.as_str())
        .collect();
    assert_eq!(names, ["after", "before"]);
}

#[tokio::test]
async fn a_backup_made_under_load_is_consistent() {
    let (directory, path) = directory();
    let store = std::sync::Arc::new(Sqlite::open(&path).unwrap());
    let writing = tokio::spawn({
        let store = store.clone();
        async move {
            for n in 0..300 {
                store
                    .append_audit(vec![entry(&format!("{n}")); 20])
                    .await
                    .unwrap();
            }
        }
    });
    let copy = directory.path().join("copy.db");
    let (from, to) = (path.clone(), copy.clone());
    tokio::task::spawn_blocking(move || backup(&from, &to, |_, _| {}))
        .await
        .unwrap()
        .unwrap();
    writing.await.unwrap();
    verify(&copy).unwrap();
    let restored = Sqlite::open(&copy).unwrap();
    let logged = restored
        .audit_records(&AuditFilter::default(), None, 10_000)
        .await
        .unwrap();
    assert_eq!(
        logged.rows.len() % 20,
        0,
        "a backup must not contain a partial write"
    );
}

#[tokio::test]
async fn an_older_database_is_migrated() {
    let (_directory, path) = directory();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(include_str!("../../migrations/0001_ground.sql"))
        .unwrap();
    old.execute_batch("insert into audit (at, operation, outcome) values (1, 'kept', 'ok')")
        .unwrap();
    old.pragma_update(None, "application_id", 0x4F55_424C)
        .unwrap();
    old.pragma_update(None, "user_version", 1).unwrap();
    drop(old);
    let store = Sqlite::open(&path).unwrap();
    assert_eq!(
        store
            .audit_records(&AuditFilter::default(), None, 9)
            .await
            .unwrap()
            .rows
            .len(),
        1
    );
    assert!(ContainerStore::containers(&store).await.unwrap().is_empty());
}

#[tokio::test]
async fn keys_in_the_outcomes_of_older_versions_are_removed_from_the_files() {
    let (directory, path) = directory();
    let key = format!("oub_{}", "k".repeat(43));
    let old = Connection::open(&path).unwrap();
    old.pragma_update(None, "journal_mode", "wal").unwrap();
    for migration in &open::MIGRATIONS[..8] {
        old.execute_batch(migration).unwrap();
    }
    old.pragma_update(None, "application_id", 0x4F55_424C)
        .unwrap();
    old.pragma_update(None, "user_version", 8).unwrap();
    let insert =
        "insert into tool_calls (token_id, call_id, begun_at, outcome) values ('t', ?1, 1, ?2)";
    let outcome = |name: &str| format!(r#"{{"done":{{"key":"{key}","name":"{name}"}}}}"#);
    old.execute(insert, ("kept", outcome("ci"))).unwrap();
    old.execute(insert, ("other", r#"{"failed":"no"}"#))
        .unwrap();
    for n in 0..100 {
        let name = "x".repeat(500);
        old.execute(insert, (format!("deleted {n}"), outcome(&name)))
            .unwrap();
    }
    old.execute_batch("delete from tool_calls where call_id like 'deleted %'")
        .unwrap();
    drop(old);
    let store = Sqlite::open(&path).unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap().flatten() {
        let content = std::fs::read(entry.path()).unwrap();
        let found = content.windows(key.len()).any(|it| it == key.as_bytes());
        assert!(!found, "{}", entry.path().display());
    }
    drop(store);
    let read = Connection::open(&path).unwrap();
    let outcome = |call: &str| -> String {
        let query = "select outcome from tool_calls where call_id = ?1";
        read.query_row(query, [call], |row| row.get(0)).unwrap()
    };
    let kept = outcome("kept");
    assert!(
        kept.contains("shown once") && kept.contains(r#""name":"ci""#),
        "{kept}"
    );
    assert_eq!(outcome("other"), r#"{"failed":"no"}"#);
}

#[tokio::test]
async fn nothing_of_a_deleted_projects_secrets_stays_in_the_files_or_a_backup() {
    let (directory, path) = directory();
    let store = Sqlite::open(&path).unwrap();
    // One that fits into a page, and one that needs several.
    let secrets = ["small-canary-".repeat(3), "large-canary-".repeat(3000)];
    let contains = |file: &Path, text: &str| {
        let bytes = std::fs::read(file).unwrap_or_default();
        bytes
            .windows(24)
            .any(|window| window == &text.as_bytes()[..24])
    };
    let log = PathBuf::from(format!("{}-wal", path.display()));
    for (n, secret) in (1..).zip(&secrets) {
        let id = oubliette_model::ProjectId::new(uuid::Uuid::from_u128(n));
        let mut project = Project {
            id,
            name: format!("p{n}").parse().unwrap(),
            revision: 1,
            settings: ProjectSettings::default(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
            updated_at: jiff::Timestamp::UNIX_EPOCH,
        };
        project.settings.description = secret.clone();
        store.reserve_project(&project).await.unwrap();
        store.confirm_project(id, None).await.unwrap();
        let exec = Exec {
            project_id: id,
            exec_id: "x".to_owned(),
            boot_id: "b".to_owned(),
            started_at: jiff::Timestamp::UNIX_EPOCH,
            command_hash: None,
            result: None,
        };
        store.add_exec(&exec, None).await.unwrap();
        store.set_exec_result(id, "x", secret).await.unwrap();
        assert!(contains(&log, secret), "it is stored");
        store.mark_project_deleting(id, None).await.unwrap();
        store.delete_project(id).await.unwrap();
        for file in [&path, &log] {
            assert!(!contains(file, secret), "{} {n}", file.display());
        }
    }
    assert!(std::fs::metadata(&log).unwrap().len() >= open::WAL_PREALLOCATED_BYTES);

    // What an older version left in unused pages is not copied.
    let old = Connection::open(&path).unwrap();
    old.execute_batch(
        "pragma secure_delete = off; create table t (x); insert into t values ('left-by-an-older-version');
         drop table t; pragma wal_checkpoint(truncate);",
    )
    .unwrap();
    drop(old);
    assert!(contains(&path, "left-by-an-older-version"));
    let copy = directory.path().join("copy.db");
    backup(&path, &copy, |_, _| {}).unwrap();
    assert!(!contains(&copy, "left-by-an-older-version"));
    store.append_audit(vec![entry("later")]).await.unwrap();
    drop(Sqlite::open(&copy).unwrap());
}
