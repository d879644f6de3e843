//! Converts rows to values and SQLite errors to [`StoreError`].

use std::path::Path;
use std::str::FromStr;

use jiff::Timestamp;
use rusqlite::{ErrorCode, Row, ffi};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Result, StoreError};

/// Converts an error of SQLite. `path` is the database file, for errors that name it.
pub(super) fn convert_error(error: rusqlite::Error, path: &Path) -> StoreError {
    let failure = error.sqlite_error();
    match failure.map(|e| e.extended_code) {
        Some(ffi::SQLITE_CONSTRAINT_FOREIGNKEY) => return StoreError::Gone,
        // The index of the write-ahead log could not grow.
        Some(ffi::SQLITE_IOERR_SHMSIZE) => return StoreError::DiskFull,
        _ => {}
    }
    match failure.map(|e| e.code) {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed,
        ) => StoreError::Busy,
        Some(ErrorCode::DiskFull) => StoreError::DiskFull,
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Damaged(path.to_owned()),
        Some(ErrorCode::NotADatabase) => StoreError::ForeignFile(path.to_owned()),
        Some(ErrorCode::ConstraintViolation) => StoreError::Duplicate,
        _ => StoreError::failed(error),
    }
}

/// For errors inside a write or read, which do not know the path of the file.
impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        convert_error(error, Path::new("oubliette.db"))
    }
}

pub(super) fn to_millis(at: Timestamp) -> i64 {
    at.as_millisecond()
}

/// Reads typed columns by position; an invalid value is an error.
pub(super) trait ReadColumns {
    fn time(&self, column: usize) -> rusqlite::Result<Timestamp>;
    fn optional_time(&self, column: usize) -> rusqlite::Result<Option<Timestamp>>;
    fn parsed<T: FromStr>(&self, column: usize) -> rusqlite::Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static;
    fn optional_parsed<T: FromStr>(&self, column: usize) -> rusqlite::Result<Option<T>>
    where
        T::Err: std::error::Error + Send + Sync + 'static;
}

impl ReadColumns for Row<'_> {
    fn time(&self, column: usize) -> rusqlite::Result<Timestamp> {
        Timestamp::from_millisecond(self.get(column)?).map_err(|e| conversion_error(column, e))
    }

    fn optional_time(&self, column: usize) -> rusqlite::Result<Option<Timestamp>> {
        let at: Option<i64> = self.get(column)?;
        at.map(Timestamp::from_millisecond)
            .transpose()
            .map_err(|e| conversion_error(column, e))
    }

    fn parsed<T: FromStr>(&self, column: usize) -> rusqlite::Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let text = self.get_ref(column)?.as_str()?;
        text.parse()
            .map_err(|e: T::Err| conversion_error(column, e))
    }

    fn optional_parsed<T: FromStr>(&self, column: usize) -> rusqlite::Result<Option<T>>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let text = self.get_ref(column)?.as_str_or_null()?;
        let parsed = text.map(str::parse).transpose();
        parsed.map_err(|e: T::Err| conversion_error(column, e))
    }
}

pub(super) fn conversion_error(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}

pub(super) fn json_column<T: DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    serde_json::from_str(text).map_err(|e| conversion_error(column, e))
}

pub(super) fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(StoreError::failed)
}

/// Converts an enum value that serialises to a string, without the quotes of JSON.
pub(super) fn enum_to_string(value: &impl Serialize) -> Result<String> {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => Ok(text),
        _ => Err(StoreError::failed(
            "the value does not serialise to a string",
        )),
    }
}

pub(super) fn enum_from_string<T: DeserializeOwned>(
    column: usize,
    text: String,
) -> rusqlite::Result<T> {
    serde_json::from_value(Value::String(text)).map_err(|e| conversion_error(column, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_sqlite_are_converted_by_what_a_caller_can_do() {
        let convert = |code| {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            convert_error(error, Path::new("x.db"))
        };
        for code in [ffi::SQLITE_FULL, ffi::SQLITE_IOERR_SHMSIZE] {
            assert!(matches!(convert(code), StoreError::DiskFull));
        }
        for code in [ffi::SQLITE_BUSY, ffi::SQLITE_LOCKED, ffi::SQLITE_PROTOCOL] {
            assert!(matches!(convert(code), StoreError::Busy));
        }
        let foreign_key = convert(ffi::SQLITE_CONSTRAINT_FOREIGNKEY);
        assert!(matches!(foreign_key, StoreError::Gone));
        let unique = convert(ffi::SQLITE_CONSTRAINT_UNIQUE);
        assert!(matches!(unique, StoreError::Duplicate));
        assert!(matches!(convert(ffi::SQLITE_IOERR), StoreError::Failed(_)));
    }
}
