//! Runs the contract tests on SQLite, and tests what is specific to the database file.

use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::contract::CASES;
use crate::{AuditEntry, AuditFilter, AuditOutcome, AuditStore, StoreError};

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
    assert!(
        crate::ContainerStore::containers(&store)
            .await
            .unwrap()
            .is_empty()
    );
}
