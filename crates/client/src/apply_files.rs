//! `apply-files`: makes changes of files that the server asks for, as a user of the container.
//!
//! Everything is done by descriptors below one directory and never through a link, so that a link that
//! an agent put there leads nowhere. A file is written under another name and then renamed: a reader sees
//! the old or the new one.

use std::ffi::OsString;
use std::io::{self, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use oubliette_trees::open_dir;
use oubliette_wire::{AppliedFiles, FileAction, FileChange};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fchmod, mkdirat, openat, renameat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;

const MAX_REPORTED_FAILURES: usize = 100;
const BUFFER_BYTES: usize = 256 << 10;

/// `apply-files DIR`, with the changes on the standard input.
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(directory) = arguments.next() else {
        return ExitCode::from(2);
    };
    let input = BufReader::with_capacity(BUFFER_BYTES, io::stdin().lock());
    match apply_all(Path::new(&directory), input) {
        Ok(applied) => {
            let report = serde_json::to_string(&applied).unwrap_or_default();
            let written = writeln!(io::stdout(), "{report}");
            written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("{}: {error}", directory.to_string_lossy());
            ExitCode::FAILURE
        }
    }
}

fn apply_all(directory: &Path, mut input: impl io::Read) -> io::Result<AppliedFiles> {
    let root = open_dir(CWD, directory)?;
    let mut report = AppliedFiles::default();
    let mut position = 0;
    while let Some(change) = FileChange::decode(&mut input)? {
        match apply(&root, &change) {
            Ok(()) => report.applied += 1,
            Err(error) if report.failures.len() < MAX_REPORTED_FAILURES => {
                report.failures.push((position, error.to_string()));
            }
            Err(_) => {}
        }
        position += 1;
    }
    Ok(report)
}

fn apply(root: &OwnedFd, change: &FileChange) -> io::Result<()> {
    let mut names: Vec<&[u8]> = change.path.split(|byte| *byte == b'/').collect();
    let is_invalid = |name: &&[u8]| matches!(*name, b"" | b"." | b"..");
    if names.iter().any(is_invalid) {
        return Err(io::Error::other(
            "the path is not relative to the workspace",
        ));
    }
    let Some(name) = names.pop() else {
        return Ok(());
    };
    let creates = !matches!(
        change.action,
        FileAction::Remove | FileAction::RemoveDirectory
    );
    let mut parent = root.try_clone()?;
    for directory in names {
        parent = match open_dir(&parent, directory) {
            Err(Errno::NOENT) if creates => {
                make_directory(&parent, directory)?;
                open_dir(&parent, directory)
            }
            // What is to be removed is not there.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !creates => return Ok(()),
            opened => opened,
        }
        .map_err(|error| describe(error, directory))?;
    }
    match &change.action {
        FileAction::Write { content, mode } => write_file(&parent, name, content, *mode),
        FileAction::Link { target } => {
            let draft = draft_name();
            symlinkat(target.as_slice(), &parent, draft.as_str())?;
            publish(&parent, &draft, name)
        }
        FileAction::CreateDirectory => make_directory(&parent, name),
        FileAction::Remove => match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        },
        FileAction::RemoveDirectory => match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            // It has files that are left alone, or is something else by now.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error.into()),
        },
    }
}

fn describe(error: Errno, name: &[u8]) -> io::Error {
    let name = String::from_utf8_lossy(name);
    match error {
        Errno::LOOP | Errno::NOTDIR => io::Error::other(format!(
            "`{name}` in the path is not a directory, or is a link"
        )),
        error => io::Error::other(format!("`{name}`: {error}")),
    }
}

fn make_directory(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => {
            let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if is_directory(&stat) {
                return Ok(());
            }
            Err(io::Error::other(
                "there is a file with the name of a directory",
            ))
        }
        made => Ok(made?),
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn write_file(parent: &OwnedFd, name: &[u8], content: &[u8], mode: Option<u16>) -> io::Result<()> {
    let existing = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    let existing =
        existing.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    let mode = mode
        .map(u32::from)
        .or(existing.map(|stat| stat.st_mode & 0o777))
        .unwrap_or(0o644);
    let draft = draft_name();
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(parent, draft.as_str(), flags, Mode::from_raw_mode(0o600))?;
    let mut file = std::fs::File::from(file);
    let written = file
        .write_all(content)
        .and_then(|()| Ok(fchmod(&file, Mode::from_raw_mode(mode & 0o777))?));
    if let Err(error) = written {
        let _ = unlinkat(parent, draft.as_str(), AtFlags::empty());
        return Err(error);
    }
    publish(parent, &draft, name)
}

/// Renames a draft to its name, which replaces what has the name.
fn publish(parent: &OwnedFd, draft: &str, name: &[u8]) -> io::Result<()> {
    let renamed = renameat(parent, draft, parent, name);
    if renamed.is_err() {
        let _ = unlinkat(parent, draft, AtFlags::empty());
    }
    renamed.map_err(|error| match error {
        Errno::ISDIR => io::Error::other("it is a directory"),
        error => error.into(),
    })
}

/// A name that no process can guess.
fn draft_name() -> String {
    format!(".oubliette-{}", uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn change(path: &str, action: FileAction) -> FileChange {
        FileChange {
            path: path.as_bytes().to_vec(),
            action,
        }
    }

    fn write(path: &str, content: &str) -> FileChange {
        let (content, mode) = (content.as_bytes().to_vec(), None);
        change(path, FileAction::Write { content, mode })
    }

    fn apply_to(directory: &Path, changes: &[FileChange]) -> AppliedFiles {
        let mut bytes = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut bytes));
        apply_all(directory, &bytes[..]).unwrap()
    }

    #[test]
    fn files_are_written_replaced_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("script"), "old").unwrap();
        fs::set_permissions(at("script"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(at("full/dir")).unwrap();
        fs::write(at("full/ignored"), "").unwrap();
        let link = FileAction::Link {
            target: b"a/b".to_vec(),
        };
        let report = apply_to(
            directory.path(),
            &[
                write("a/b/c", "new"),
                write("script", "new"),
                change("link", link),
                change("full/dir", FileAction::RemoveDirectory),
                change("full", FileAction::RemoveDirectory),
                change("absent/x", FileAction::Remove),
                change("empty", FileAction::CreateDirectory),
            ],
        );
        assert_eq!((report.applied, report.failures.len()), (7, 0));
        assert_eq!(fs::read_to_string(at("link/c")).unwrap(), "new");
        let mode = fs::metadata(at("script")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert!(at("full/ignored").exists() && !at("full/dir").exists());
        let names = fs::read_dir(directory.path()).unwrap();
        let hidden = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with('.');
        assert!(!names.flatten().any(|entry| hidden(&entry.file_name())));
    }

    #[test]
    fn no_change_leads_out_of_the_directory() {
        let (directory, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("file"), "kept").unwrap();
        symlink(outside.path(), directory.path().join("out")).unwrap();
        symlink(outside.path().join("file"), directory.path().join("file")).unwrap();
        fs::create_dir(directory.path().join("dir")).unwrap();
        let report = apply_to(
            directory.path(),
            &[
                write("out/file", "stolen"),
                write("../x", "stolen"),
                write("/x", "stolen"),
                write("dir", "a file over a directory"),
                change("out/file", FileAction::Remove),
                // Replaces the link itself.
                write("file", "replaced"),
            ],
        );
        let failed: Vec<u64> = report.failures.iter().map(|(at, _)| *at).collect();
        assert_eq!(failed, [0, 1, 2, 3]);
        let kept = fs::read_to_string(outside.path().join("file")).unwrap();
        assert_eq!(kept, "kept");
        let replaced = fs::read_to_string(directory.path().join("file")).unwrap();
        assert_eq!(replaced, "replaced");
    }
}
