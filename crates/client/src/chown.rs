//! `own`: gives trees of files to a user.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use oubliette_trees::open_dir;
use oubliette_wire::User;
use rustix::fs::{AtFlags, CWD, Dir, Gid, Stat, Uid};

pub(crate) const SUBCOMMAND: &str = "own";

/// `own UID:GID PATH…`
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let user = arguments.next();
    let Some(user) = user.as_deref().and_then(|text| parse_user(text.to_str()?)) else {
        return ExitCode::from(2);
    };
    let mut code = ExitCode::SUCCESS;
    for path in arguments {
        if let Err(error) = chown_tree(Path::new(&path), user) {
            eprintln!("{}: {error}", path.to_string_lossy());
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// Parses `UID:GID`.
pub(crate) fn parse_user(text: &str) -> Option<User> {
    let (uid, gid) = text.split_once(':')?;
    Some(User {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
    })
}

/// Whether a directory and everything directly in it belongs to a user.
pub(crate) fn is_owned(path: &Path, user: User) -> bool {
    let check = || -> rustix::io::Result<bool> {
        let dir = open_dir(CWD, path)?;
        let mut owned = is_owner(&rustix::fs::fstat(&dir)?, user);
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name != c".." {
                let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                owned &= is_owner(&stat, user);
            }
        }
        Ok(owned)
    };
    check().unwrap_or(false)
}

/// Changes the owner of a directory and everything in it.
pub(crate) fn chown_tree(path: &Path, user: User) -> std::io::Result<()> {
    oubliette_trees::chown_tree(path, |stat| {
        if is_owner(stat, user) {
            return (None, None);
        }
        (Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))
    })
}

fn is_owner(stat: &Stat, user: User) -> bool {
    (stat.st_uid, stat.st_gid) == (user.uid, user.gid)
}
