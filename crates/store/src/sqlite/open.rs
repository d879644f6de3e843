//! Opening the file: whose it is, which format it has, and the way up to the current one.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::convert::explain;
use crate::{Result, StoreError};

/// `OUBL`, so that no other program's database is taken for ours.
const APPLICATION_ID: i64 = 0x4F55_424C;

const MIGRATIONS: [&str; 8] = [
    include_str!("../../migrations/0001_ground.sql"),
    include_str!("../../migrations/0002_containers.sql"),
    include_str!("../../migrations/0003_workspace_containers.sql"),
    include_str!("../../migrations/0004_sessions.sql"),
    include_str!("../../migrations/0005_relay_calls.sql"),
    include_str!("../../migrations/0006_session_tokens.sql"),
    include_str!("../../migrations/0007_callers.sql"),
    include_str!("../../migrations/0008_schedules.sql"),
];

/// The format this program writes.
pub(super) const FORMAT: i64 = MIGRATIONS.len() as i64;

const BUSY: Duration = Duration::from_secs(5);

/// Bytes of the write-ahead log between two checkpoints, and a little more.
pub(super) const LOG: u64 = 4608 << 10;
/// Free bytes of a disk on which that is nothing.
const PLENTY: u64 = 256 << 20;

pub(super) fn open_for_writing(path: &Path) -> Result<Connection> {
    let fresh = std::fs::metadata(path).map_or(true, |meta| meta.len() == 0);
    if fresh {
        make_private(path).map_err(StoreError::failed)?;
    } else {
        check_ours(path)?;
    }
    let mut connection = Connection::open(path).map_err(|e| explain(e, path))?;
    prepare_for_writing(&connection).map_err(|e| explain(e, path))?;
    migrate(&mut connection, path)?;
    Ok(connection)
}

/// Makes the file readable by its owner alone; SQLite gives its logs the same permissions.
fn make_private(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

pub(super) fn open_for_reading(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| explain(e, path))?;
    prepare(&connection, 64).map_err(|e| explain(e, path))?;
    Ok(connection)
}

/// Gives the write-ahead log its blocks before it needs them: to sync a commit to a file that grows takes
/// many times as long. What is behind the last commit in a log is not read, and this is nothing but zeros.
/// Only whoever writes may call it, and before the first commit.
pub(super) fn lay_out_log(path: &Path) -> std::io::Result<()> {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let mut log = OpenOptions::new().append(true).open(log)?;
    let there = log.metadata()?.len();
    let disk = rustix::fs::fstatvfs(&log)?;
    // Where there is little space, others need it.
    let is_free = disk.f_bavail.saturating_mul(disk.f_frsize) > PLENTY;
    if there < LOG && is_free {
        let laid_out = log.write_all(&vec![0; (LOG - there) as usize]);
        if let Err(error) = laid_out.and_then(|()| log.sync_all()) {
            log.set_len(there)?;
            return Err(error);
        }
    }
    Ok(())
}

/// Looks at a file without changing a byte of it.
pub(super) fn check_ours(path: &Path) -> Result<()> {
    let connection = open_for_reading(path)?;
    let pragma = |name| connection.query_row(&format!("pragma {name}"), [], |row| row.get(0));
    let application: i64 = pragma("application_id").map_err(|e| explain(e, path))?;
    let format: i64 = pragma("user_version").map_err(|e| explain(e, path))?;
    let tables: i64 = connection
        .query_row("select count(*) from sqlite_schema", [], |row| row.get(0))
        .map_err(|e| explain(e, path))?;
    // An empty one is ours if the first start died before its first commit.
    let unborn = application == 0 && format == 0 && tables == 0;
    if application != APPLICATION_ID && !unborn {
        return Err(StoreError::NotOurs(path.to_owned()));
    }
    if format > FORMAT {
        return Err(StoreError::Newer {
            path: path.to_owned(),
            found: format,
            known: FORMAT,
        });
    }
    Ok(())
}

fn prepare(connection: &Connection, statements: usize) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(statements);
    // Without this a statement with a bound limit is compiled anew each time it is run.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn prepare_for_writing(connection: &Connection) -> rusqlite::Result<()> {
    prepare(connection, 128)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "foreign_keys", true)
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<()> {
    let step = |connection: &mut Connection| -> rusqlite::Result<()> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let format: u32 = transaction.query_row("pragma user_version", [], |row| row.get(0))?;
        for migration in MIGRATIONS.iter().skip(format as usize) {
            transaction.execute_batch(migration)?;
        }
        if i64::from(format) < FORMAT {
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", FORMAT)?;
        }
        transaction.commit()
    };
    step(connection).map_err(|e| explain(e, path))
}
