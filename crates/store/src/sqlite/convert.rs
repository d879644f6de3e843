//! Between rows and values, and from SQLite's errors to ours.

use std::path::Path;
use std::str::FromStr;

use jiff::Timestamp;
use rusqlite::{ErrorCode, Row};

use crate::StoreError;

/// Says what an error of SQLite means to the caller. `path` is named if the file is at fault.
pub(super) fn explain(error: rusqlite::Error, path: &Path) -> StoreError {
    let code = error.sqlite_error().map(|e| e.code);
    match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        Some(ErrorCode::DiskFull) => StoreError::Full,
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Damaged(path.to_owned()),
        Some(ErrorCode::NotADatabase) => StoreError::NotOurs(path.to_owned()),
        Some(ErrorCode::ConstraintViolation) => StoreError::Duplicate,
        _ => StoreError::failed(error),
    }
}

/// An error inside a unit of work, before the file's path is known to it.
impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        explain(error, Path::new("oubliette.db"))
    }
}

pub(super) fn time(at: Timestamp) -> i64 {
    at.as_millisecond()
}

/// Reads columns by position; a value that cannot be what it should be is an error, not a panic.
pub(super) trait Columns {
    fn time(&self, column: usize) -> rusqlite::Result<Timestamp>;
    fn maybe_time(&self, column: usize) -> rusqlite::Result<Option<Timestamp>>;
    fn parsed<T: FromStr>(&self, column: usize) -> rusqlite::Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static;
    fn maybe_parsed<T: FromStr>(&self, column: usize) -> rusqlite::Result<Option<T>>
    where
        T::Err: std::error::Error + Send + Sync + 'static;
}

impl Columns for Row<'_> {
    fn time(&self, column: usize) -> rusqlite::Result<Timestamp> {
        Timestamp::from_millisecond(self.get(column)?).map_err(|e| misread(column, e))
    }

    fn maybe_time(&self, column: usize) -> rusqlite::Result<Option<Timestamp>> {
        let at: Option<i64> = self.get(column)?;
        at.map(Timestamp::from_millisecond)
            .transpose()
            .map_err(|e| misread(column, e))
    }

    fn parsed<T: FromStr>(&self, column: usize) -> rusqlite::Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let text = self.get_ref(column)?.as_str()?;
        text.parse().map_err(|e: T::Err| misread(column, e))
    }

    fn maybe_parsed<T: FromStr>(&self, column: usize) -> rusqlite::Result<Option<T>>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let text = self.get_ref(column)?.as_str_or_null()?;
        let parsed = text.map(str::parse).transpose();
        parsed.map_err(|e: T::Err| misread(column, e))
    }
}

pub(super) fn misread(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}
