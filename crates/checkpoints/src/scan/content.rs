//! Reads the content of files, links and rules.

use std::ffi::CStr;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::SystemTime;

use oubliette_trees::open_file;
use rustix::fs::{AtFlags, FileType, Stat, fstat, readlinkat, statat};
use rustix::io::Errno;

use super::{MAX_KEPT_FILE_BYTES, ScanError};
use crate::ignore_rules::IgnoreRules;
use crate::object_store::NewObjects;
use crate::stat_cache::{KnownFile, KnownRules, Signature};
use crate::{EntryKind, Hash};

const MAX_IGNORE_FILE_BYTES: u64 = 256 << 10;

#[derive(Debug)]
pub(super) enum Found {
    File(KnownFile),
    /// There is nothing to keep: it is gone, or a pipe, socket or device.
    Nothing,
    Unreadable,
}

/// What an entry that is no directory contains.
pub(super) fn read_entry(
    dir: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
    objects: &mut NewObjects<'_>,
) -> Result<Found, ScanError> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => read_file(dir, name, stat, objects),
        FileType::Symlink => read_link(dir, name, stat, objects),
        _ => Ok(Found::Nothing),
    }
}

fn read_link(
    dir: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
    objects: &mut NewObjects<'_>,
) -> Result<Found, ScanError> {
    let read_at = SystemTime::now();
    let target = match readlinkat(dir, name, Vec::new()) {
        Ok(target) => target,
        // It is something else by now, or gone.
        Err(Errno::NOENT | Errno::INVAL) => return Ok(Found::Nothing),
        Err(_) => return Ok(Found::Unreadable),
    };
    Ok(Found::File(KnownFile {
        signature: Signature::new(stat).settled(read_at),
        kind: EntryKind::Link,
        mode: 0,
        size: target.as_bytes().len() as u64,
        hash: put(objects, target.as_bytes())?,
    }))
}

fn read_file(
    dir: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
    objects: &mut NewObjects<'_>,
) -> Result<Found, ScanError> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > MAX_KEPT_FILE_BYTES {
        return Ok(large_file(stat, size));
    }
    let read_at = SystemTime::now();
    let (file, opened) = match open_file(dir, name) {
        Ok(Some(opened)) => opened,
        Ok(None) | Err(Errno::NOENT) => return Ok(Found::Nothing),
        Err(_) => return Ok(Found::Unreadable),
    };
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    let read = (&file)
        .take(MAX_KEPT_FILE_BYTES + 1)
        .read_to_end(&mut bytes);
    if read.is_err() {
        return Ok(Found::Unreadable);
    }
    let size = bytes.len() as u64;
    if size > MAX_KEPT_FILE_BYTES {
        return Ok(large_file(&opened, size));
    }
    let signature = Signature::new(&opened);
    let hash = put(objects, &bytes)?;
    let is_unchanged = fstat(&file).is_ok_and(|after| Signature::new(&after) == signature);
    Ok(Found::File(KnownFile {
        signature: signature.settled(read_at).filter(|_| is_unchanged),
        kind: EntryKind::File,
        mode: permissions(&opened),
        size,
        hash,
    }))
}

/// Its hash is that of its times, so it is made anew at each scan.
fn large_file(stat: &Stat, size: u64) -> Found {
    Found::File(KnownFile {
        signature: None,
        kind: EntryKind::LargeFile,
        mode: permissions(stat),
        size,
        hash: Signature::new(stat).hash(),
    })
}

pub(super) fn put(objects: &mut NewObjects<'_>, bytes: &[u8]) -> Result<Hash, ScanError> {
    let stored = objects.put(bytes)?;
    stored.ok_or(ScanError::TooLarge(objects.max_bytes()))
}

fn permissions(stat: &Stat) -> u16 {
    u16::try_from(stat.st_mode & 0o777).unwrap_or(0)
}

/// The rules of a file, if there is one. They are the same object as long as the text is the same.
pub(super) fn read_rules(
    dir: BorrowedFd<'_>,
    name: &CStr,
    known: Option<&KnownRules>,
) -> Option<KnownRules> {
    if let Some(known) = known
        && let Some(signature) = &known.signature
    {
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if Signature::new(&stat) == *signature {
            return Some(known.clone());
        }
    }
    let read_at = SystemTime::now();
    // Not through a link, as git.
    let (file, stat) = open_file(dir, name).ok()??;
    let mut bytes = Vec::new();
    let mut reader = (&file).take(MAX_IGNORE_FILE_BYTES);
    reader.read_to_end(&mut bytes).ok()?;
    let signature = Signature::new(&stat);
    let is_unchanged = fstat(&file).is_ok_and(|after| Signature::new(&after) == signature);
    let text = Hash::of(&bytes);
    let same = known.filter(|known| known.text == text);
    Some(KnownRules {
        signature: signature.settled(read_at).filter(|_| is_unchanged),
        text,
        rules: same.map_or_else(
            || Arc::new(IgnoreRules::parse(&bytes)),
            |known| known.rules.clone(),
        ),
    })
}
