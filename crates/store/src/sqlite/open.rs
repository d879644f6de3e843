//! Opens the database file, checks that it belongs to Oubliette, and migrates its format.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::convert::convert_error;
use crate::{Result, StoreError};

/// `OUBL`; distinguishes the file from databases of other programs.
const APPLICATION_ID: i64 = 0x4F55_424C;

pub(super) const MIGRATIONS: [&str; 15] = [
    include_str!("../../migrations/0001_ground.sql"),
    include_str!("../../migrations/0002_containers.sql"),
    include_str!("../../migrations/0003_workspace_containers.sql"),
    include_str!("../../migrations/0004_sessions.sql"),
    include_str!("../../migrations/0005_relay_calls.sql"),
    include_str!("../../migrations/0006_session_tokens.sql"),
    include_str!("../../migrations/0007_callers.sql"),
    include_str!("../../migrations/0008_schedules.sql"),
    include_str!("../../migrations/0009_shown_once.sql"),
    include_str!("../../migrations/0010_stored_bytes.sql"),
    include_str!("../../migrations/0011_counted_bytes.sql"),
    include_str!("../../migrations/0012_command_hash.sql"),
    include_str!("../../migrations/0013_checkpoints.sql"),
    include_str!("../../migrations/0014_polled_turns.sql"),
    include_str!("../../migrations/0015_charges.sql"),
];

/// The format version that this program writes.
pub(super) const FORMAT_VERSION: i64 = MIGRATIONS.len() as i64;

/// Earlier formats left what was deleted in the file: secrets of projects, and keys that agents had created.
const FIRST_FORMAT_WITH_SECURE_DELETE: u32 = 11;

/// Overwrites what is deleted from a page that is written anyway, which costs nothing. Pages that become
/// unused keep their content, because overwriting them would double what it costs to trim logs; those of
/// secrets are overwritten by `Writer::write_and_purge`.
pub(super) const SECURE_DELETE: &str = "fast";

pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Slightly more than the size of the write-ahead log between two checkpoints.
pub(super) const WAL_USUAL_BYTES: u64 = 4608 << 10;
/// What the log has in addition, for writes that free space on a full disk.
const WAL_RESERVE_BYTES: u64 = 2048 << 10;
pub(super) const WAL_PREALLOCATED_BYTES: u64 = WAL_USUAL_BYTES + WAL_RESERVE_BYTES;
/// The log is preallocated only if the disk has more free space than this.
const MIN_FREE_DISK_BYTES: u64 = 20 << 20;

pub(super) fn open_for_writing(path: &Path) -> Result<Connection> {
    let fresh = std::fs::metadata(path).map_or(true, |meta| meta.len() == 0);
    if fresh {
        create_private_file(path).map_err(StoreError::failed)?;
    } else {
        check_file(path)?;
    }
    let mut connection = Connection::open(path).map_err(|e| convert_error(e, path))?;
    prepare_for_writing(&connection).map_err(|e| convert_error(e, path))?;
    migrate(&mut connection, path)?;
    Ok(connection)
}

/// Creates the file with access for its owner only; SQLite gives its logs the same permissions.
fn create_private_file(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

pub(super) fn open_for_reading(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(path, flags).map_err(|e| convert_error(e, path))?;
    prepare(&connection, 64).map_err(|e| convert_error(e, path))?;
    Ok(connection)
}

/// Preallocates the write-ahead log with zeros, because syncing a commit to a growing file takes many
/// times as long. SQLite does not read the log behind the last commit. Only the writer may call this,
/// before its first commit to a log that is empty.
pub(super) fn preallocate_wal(path: &Path) -> std::io::Result<()> {
    let mut wal_path = path.as_os_str().to_owned();
    wal_path.push("-wal");
    let mut wal = OpenOptions::new().append(true).open(wal_path)?;
    let len = wal.metadata()?.len();
    if len < WAL_PREALLOCATED_BYTES && free_bytes(path)? > MIN_FREE_DISK_BYTES {
        let written = wal.write_all(&vec![0; (WAL_PREALLOCATED_BYTES - len) as usize]);
        if let Err(error) = written.and_then(|()| wal.sync_all()) {
            wal.set_len(len)?;
            return Err(error);
        }
    }
    Ok(())
}

/// The space that the disk of a file has left.
pub(super) fn free_bytes(path: &Path) -> std::io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Checks the owner and the format of a file without changing it.
pub(super) fn check_file(path: &Path) -> Result<()> {
    let connection = open_for_reading(path)?;
    let pragma = |name| connection.query_row(&format!("pragma {name}"), [], |row| row.get(0));
    let application: i64 = pragma("application_id").map_err(|e| convert_error(e, path))?;
    let format: i64 = pragma("user_version").map_err(|e| convert_error(e, path))?;
    let tables: i64 = connection
        .query_row("select count(*) from sqlite_schema", [], |row| row.get(0))
        .map_err(|e| convert_error(e, path))?;
    // The first start may have been killed before its first commit, which leaves an empty database.
    let is_empty = application == 0 && format == 0 && tables == 0;
    if application != APPLICATION_ID && !is_empty {
        return Err(StoreError::ForeignFile(path.to_owned()));
    }
    if format > FORMAT_VERSION {
        return Err(StoreError::NewerFormat {
            path: path.to_owned(),
            found: format,
            known: FORMAT_VERSION,
        });
    }
    Ok(())
}

fn prepare(connection: &Connection, statements: usize) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(statements);
    // Without this, SQLite recompiles a statement with a bound limit on each execution.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn prepare_for_writing(connection: &Connection) -> rusqlite::Result<()> {
    prepare(connection, 128)?;
    // Closing keeps the log and its space: the next server may start on a full disk.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "secure_delete", SECURE_DELETE)?;
    connection.pragma_update(None, "foreign_keys", true)
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<()> {
    let run = |connection: &mut Connection| -> rusqlite::Result<()> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let format: u32 = transaction.query_row("pragma user_version", [], |row| row.get(0))?;
        for migration in MIGRATIONS.iter().skip(format as usize) {
            transaction.execute_batch(migration)?;
        }
        if i64::from(format) < FORMAT_VERSION {
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", FORMAT_VERSION)?;
        }
        transaction.commit()?;
        if (1..FIRST_FORMAT_WITH_SECURE_DELETE).contains(&format) {
            purge_deleted_content(connection);
        }
        Ok(())
    };
    run(connection).map_err(|e| convert_error(e, path))
}

/// Removes what was deleted or replaced from the files, where unused pages and the log still have it.
/// It needs as much free space as the database has, so it may fail.
fn purge_deleted_content(connection: &Connection) {
    let purged = connection
        .execute_batch("vacuum")
        .and_then(|()| connection.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())));
    if let Err(error) = purged {
        tracing::warn!(%error, "could not remove deleted content from the database file");
    }
}
