//! Makes a consistent copy of the file while a server writes to it.

use std::path::Path;

use super::convert::convert_error;
use super::open::{FORMAT_VERSION, open_for_reading};
use crate::{Result, StoreError};

/// Copies the store at `from` into a new file at `to` and verifies the copy. It has only what the store has:
/// pages that are no longer used, and with them what was deleted, are not copied. `progress` is called with
/// the number of copied pages and of all pages.
pub fn backup(from: &Path, to: &Path, mut progress: impl FnMut(u64, u64)) -> Result<()> {
    let source = open_for_reading(from)?;
    let pages: i64 = source
        .query_row("pragma page_count", [], |row| row.get(0))
        .map_err(|e| convert_error(e, from))?;
    let pages = u64::try_from(pages).unwrap_or_default();
    progress(0, pages);
    let target = to
        .to_str()
        .ok_or_else(|| StoreError::failed(format!("{} is not valid UTF-8", to.display())))?;
    source
        .execute("vacuum into ?1", [target])
        .map_err(|e| convert_error(e, from))?;
    progress(pages, pages);
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

/// A container and the name of its project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerOwner {
    pub project: String,
    pub container_id: String,
}

/// The containers that the file has, by the names of their projects.
pub fn container_owners(path: &Path) -> Result<Vec<ContainerOwner>> {
    let connection = open_for_reading(path)?;
    let read = || {
        let mut statement = connection.prepare(
            "select projects.name, containers.id from containers
             join projects on projects.id = containers.project_id
             where projects.state = 'ready' order by projects.name, containers.id",
        )?;
        let rows = statement.query_map([], |row| {
            Ok(ContainerOwner {
                project: row.get(0)?,
                container_id: row.get(1)?,
            })
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    };
    read().map_err(|e| convert_error(e, path))
}
