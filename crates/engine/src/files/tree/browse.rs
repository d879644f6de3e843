//! Lists and reads the files of a workspace for its callers, in pages.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;

use oubliette_model::{FileKind, FileTree, ReadError};
use oubliette_trees::open_dir;
use rustix::fs::{AtFlags, Dir, Stat, readlinkat, statat};
use rustix::io::Errno;

use super::{WorkspaceTree, file_kind, io_error};

/// Directories below are listed, but not what is in them.
const MAX_LISTED_DEPTH: usize = 100;

/// Which files to list.
#[derive(Debug, Clone)]
pub(crate) struct ListRequest {
    pub(crate) path: Vec<u8>,
    pub(crate) recursive: bool,
    /// The last path of the previous page, relative to `path`.
    pub(crate) after: Option<Vec<u8>>,
    pub(crate) limit: usize,
}

#[derive(Debug)]
pub(crate) struct ListedEntry {
    /// Relative to the listed directory.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: FileKind,
    pub(crate) stat: Stat,
    pub(crate) link_target: Option<Vec<u8>>,
}

/// A page of a list, sorted name by name.
#[derive(Debug, Default)]
pub(crate) struct FilePage {
    pub(crate) entries: Vec<ListedEntry>,
    pub(crate) has_more: bool,
}

/// A part of a file.
#[derive(Debug)]
pub(crate) struct FileRange {
    pub(crate) bytes: Vec<u8>,
    /// The size of the whole file.
    pub(crate) size: u64,
}

impl WorkspaceTree {
    /// Lists a directory, or names a file. Only as many names are held in memory as a page has,
    /// however many a directory has.
    pub(crate) fn list_page(&self, request: &ListRequest) -> Result<FilePage, ReadError> {
        let resolved = self.resolve(&request.path)?;
        let mut page = FilePage::default();
        let Some(directory) = resolved.directory else {
            page.entries.push(ListedEntry {
                path: Vec::new(),
                kind: file_kind(&resolved.stat),
                stat: resolved.stat,
                link_target: None,
            });
            return Ok(page);
        };
        let after: Vec<&[u8]> = request
            .after
            .as_deref()
            .map(|path| path.split(|byte| *byte == b'/').collect())
            .unwrap_or_default();
        self.list_level(&directory, &[], &after, 0, request, &mut page)?;
        Ok(page)
    }

    fn list_level(
        &self,
        directory: &OwnedFd,
        prefix: &[u8],
        after: &[&[u8]],
        depth: usize,
        request: &ListRequest,
        page: &mut FilePage,
    ) -> Result<(), ReadError> {
        self.count_lookup()?;
        let first = after.first().copied();
        let wanted = request.limit - page.entries.len() + 2;
        for name in self.smallest_names(directory, first, wanted)? {
            let is_listed = first == Some(name.as_slice());
            let stat = match statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(io_error(error)),
            };
            let kind = file_kind(&stat);
            let mut path = prefix.to_vec();
            path.extend_from_slice(&name);
            if !is_listed {
                if page.entries.len() == request.limit {
                    page.has_more = true;
                    return Ok(());
                }
                let link_target = (kind == FileKind::Link)
                    .then(|| readlinkat(directory, name.as_slice(), Vec::new()))
                    .and_then(Result::ok)
                    .map(std::ffi::CString::into_bytes);
                page.entries.push(ListedEntry {
                    path: path.clone(),
                    kind,
                    stat,
                    link_target,
                });
            }
            let is_entered = request.recursive
                && kind == FileKind::Directory
                && depth < MAX_LISTED_DEPTH
                && name != b".git";
            if !is_entered {
                continue;
            }
            let below = match open_dir(directory, name.as_slice()) {
                Ok(below) => below,
                // Replaced, gone, or closed to the server's user: it is only named.
                Err(_) => continue,
            };
            path.push(b'/');
            let after = if is_listed { &after[1..] } else { &[] };
            self.list_level(&below, &path, after, depth + 1, request, page)?;
            if page.has_more {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The first names of a directory from one on, sorted.
    fn smallest_names(
        &self,
        directory: &OwnedFd,
        from: Option<&[u8]>,
        count: usize,
    ) -> Result<Vec<Vec<u8>>, ReadError> {
        let mut smallest = BinaryHeap::with_capacity(count + 1);
        for entry in Dir::read_from(directory).map_err(io_error)? {
            self.check_limits()?;
            let entry = entry.map_err(io_error)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || from.is_some_and(|from| name < from) {
                continue;
            }
            let is_full = smallest.len() == count;
            if is_full
                && smallest
                    .peek()
                    .is_some_and(|last: &Vec<u8>| name >= last.as_slice())
            {
                continue;
            }
            smallest.push(name.to_vec());
            if is_full {
                smallest.pop();
            }
        }
        Ok(smallest.into_sorted_vec())
    }

    /// Opens a regular file: with its size, and a text that changes when it is replaced or written to.
    pub(crate) fn open_to_read(&self, path: &[u8]) -> Result<(File, u64, String), ReadError> {
        let (file, stat) = self.open_file(path)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let (seconds, nanoseconds) = (stat.st_mtime, stat.st_mtime_nsec);
        let version = format!("{:x}-{size:x}-{seconds:x}.{nanoseconds:x}", stat.st_ino);
        Ok((file, size, version))
    }

    /// Reads a part of a regular file.
    pub(crate) fn read_range(
        &self,
        path: &[u8],
        offset: u64,
        length: u64,
    ) -> Result<FileRange, ReadError> {
        let failed = |error: std::io::Error| ReadError::Io(error.to_string());
        let (mut file, stat) = self.open_file(path)?;
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(length).read_to_end(&mut bytes).map_err(failed)?;
        let end = offset + bytes.len() as u64;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(FileRange {
            // It may have grown since it was opened.
            size: if bytes.is_empty() {
                size
            } else {
                size.max(end)
            },
            bytes,
        })
    }
}
