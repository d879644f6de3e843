//! Looks for files that may be missing.

use oubliette_model::{FileKind, FileTree, ReadError};

/// Turns an error into `None`, except that a reached limit stays an error.
pub(crate) fn if_readable<T>(result: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ ReadError::LimitReached(_)) => Err(error),
        Err(_) => Ok(None),
    }
}

pub(crate) fn is_directory(tree: &dyn FileTree, path: &str) -> bool {
    tree.find(path)
        .is_ok_and(|found| found.kind == FileKind::Directory)
}
