//! Makes a consistent copy of the file while a server writes to it.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::convert::convert_error;
use super::open::{FORMAT_VERSION, open_for_reading};
use crate::{Result, StoreError};

const PAGES_PER_STEP: i32 = 1024;
const BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Copies the store at `from` into a new file at `to` and verifies the copy. `progress` is called with
/// the number of copied pages and of all pages.
pub fn backup(from: &Path, to: &Path, mut progress: impl FnMut(u64, u64)) -> Result<()> {
    let source = open_for_reading(from)?;
    let mut target = Connection::open(to).map_err(|e| convert_error(e, to))?;
    let copy = Backup::new(&source, &mut target).map_err(|e| convert_error(e, from))?;
    loop {
        let step = copy
            .step(PAGES_PER_STEP)
            .map_err(|e| convert_error(e, from))?;
        let state = copy.progress();
        let total = u64::try_from(state.pagecount).unwrap_or_default();
        let remaining = u64::try_from(state.remaining).unwrap_or_default();
        progress(total.saturating_sub(remaining), total);
        match step {
            StepResult::Done => break,
            StepResult::More => {}
            _ => std::thread::sleep(BUSY_RETRY_INTERVAL),
        }
    }
    drop(copy);
    // Without a separate log file, the copy can be moved as one file.
    target
        .pragma_update(None, "journal_mode", "delete")
        .map_err(|e| convert_error(e, to))?;
    drop(target);
    verify(to)
}

/// Reads the whole file and checks that it is an undamaged store of a known format.
pub fn verify(path: &Path) -> Result<()> {
    let connection = open_for_reading(path)?;
    let read = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    super::open::check_file(path)?;
    let format = read("pragma user_version").map_err(|e| convert_error(e, path))?;
    if format == 0 || format > FORMAT_VERSION {
        return Err(StoreError::ForeignFile(path.to_owned()));
    }
    let verdict: String = connection
        .query_row("pragma integrity_check(1)", [], |row| row.get(0))
        .map_err(|e| convert_error(e, path))?;
    if verdict == "ok" {
        Ok(())
    } else {
        Err(StoreError::Damaged(path.to_owned()))
    }
}
