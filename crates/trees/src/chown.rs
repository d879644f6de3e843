//! Gives a tree to another user.

use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Stat, Uid, chownat, fchown, statat};
use rustix::io::Errno;

use crate::open::{is_dir, is_not_a_dir, open_dir};
use crate::walk::{Entry, Next, Visitor, walk};

/// The ids that an entry is to get; none for one that stays.
pub type NewOwner = (Option<Uid>, Option<Gid>);

/// Changes the owners of a file, or of a directory and everything in it. Mounts below are not entered,
/// and what is on a read-only one keeps its owner. An entry that cannot be changed does not stop the
/// others; the first error is returned.
pub fn chown_tree(path: &Path, new_owner: impl Fn(&Stat) -> NewOwner) -> io::Result<()> {
    let top = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let (uid, gid) = new_owner(&top);
    if !is_dir(&top) {
        return Ok(chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?);
    }
    let mut chown = Chown {
        new_owner,
        device: device(&top),
        outcome: Ok(()),
    };
    let dir = open_dir(CWD, path)?;
    walk(dir.try_clone()?, &mut chown)?;
    chown.outcome?;
    // Last, so that the owner of the top shows whether a walk was interrupted.
    tolerate(fchown(dir, uid, gid))
}

struct Chown<F> {
    new_owner: F,
    /// Mounts below have another one.
    device: u64,
    outcome: io::Result<()>,
}

/// The device that an entry is on. Systems disagree on the type.
#[allow(clippy::unnecessary_cast, reason = "not all of them have u64")]
fn device(stat: &Stat) -> u64 {
    stat.st_dev as u64
}

impl<F: Fn(&Stat) -> NewOwner> Chown<F> {
    fn change(
        &mut self,
        stat: &Stat,
        change: impl FnOnce(Option<Uid>, Option<Gid>) -> rustix::io::Result<()>,
    ) {
        let (uid, gid) = (self.new_owner)(stat);
        if uid.is_some() || gid.is_some() {
            self.record(tolerate(change(uid, gid)));
        }
    }

    fn record(&mut self, result: io::Result<()>) {
        if self.outcome.is_ok() {
            self.outcome = result;
        }
    }
}

impl<F: Fn(&Stat) -> NewOwner> Visitor for Chown<F> {
    fn directory(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        if device(entry.stat) != self.device {
            return Ok(Next::Skip);
        }
        self.change(entry.stat, |uid, gid| fchown(entry.dir, uid, gid));
        Ok(Next::Continue)
    }

    fn file(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        self.change(entry.stat, |uid, gid| {
            chownat(entry.dir, entry.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        });
        Ok(Next::Continue)
    }

    fn skipped(&mut self, _: &[u8], error: &io::Error) {
        match Errno::from_io_error(error) {
            // It was moved away meanwhile, or replaced by something else.
            Some(errno) if errno == Errno::STALE || is_not_a_dir(errno) => {}
            Some(errno) => self.record(Err(errno.into())),
            None => self.record(Err(io::Error::other(error.to_string()))),
        }
    }
}

/// An entry that has gone, or is mounted read-only, needs no other owner.
fn tolerate(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT | Errno::ROFS) => Ok(()),
        other => Ok(other?),
    }
}
