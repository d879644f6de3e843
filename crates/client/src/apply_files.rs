//! `apply-files`: makes changes of files that the server asks for, as a user of the container.
//!
//! Everything is done by descriptors below one directory and never through a link, so that a link that
//! an agent put there leads nowhere. A file is written without a name and gets it when it is complete: a
//! reader sees the old or the new one, and of a program that is killed, or whose input ends, nothing is left.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use oubliette_trees::open_dir;
use oubliette_wire::{AppliedFiles, FileChangeHead, FileChangeKind};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fchmod, linkat, mkdirat, openat, renameat, statat,
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

fn apply_all(directory: &Path, mut input: impl Read) -> io::Result<AppliedFiles> {
    let root = open_dir(CWD, directory)?;
    let mut report = AppliedFiles::default();
    let mut position = 0;
    while let Some(change) = FileChangeHead::decode(&mut input)? {
        let mut content = input.by_ref().take(change.content_bytes);
        let applied = apply(&root, &change, &mut content);
        // The next change comes after the content of this one, also if it could not be made.
        let rest = content.limit();
        if io::copy(&mut content, &mut io::sink())? < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match applied {
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

fn apply(root: &OwnedFd, change: &FileChangeHead, content: &mut impl Read) -> io::Result<()> {
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
        change.kind,
        FileChangeKind::Remove | FileChangeKind::RemoveDirectory
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
    match change.kind {
        FileChangeKind::Write { mode } => {
            write_file(&parent, name, content, change.content_bytes, mode)
        }
        FileChangeKind::Link => {
            let target = change.read_target(content)?;
            let draft = draft_name();
            symlinkat(target.as_slice(), &parent, draft.as_str())?;
            publish(&parent, &draft, name)
        }
        FileChangeKind::CreateDirectory => make_directory(&parent, name),
        FileChangeKind::Remove => match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        },
        FileChangeKind::RemoveDirectory => match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
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

fn write_file(
    parent: &OwnedFd,
    name: &[u8],
    content: &mut impl Read,
    content_bytes: u64,
    mode: Option<u16>,
) -> io::Result<()> {
    let existing = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    if existing.as_ref().is_some_and(is_directory) {
        return Err(is_a_directory());
    }
    let existing =
        existing.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    let mode = mode
        .map(u32::from)
        .or(existing.map(|stat| stat.st_mode & 0o777))
        .unwrap_or(0o644);
    let mut draft = Draft::create(parent)?;
    if io::copy(content, &mut draft.file)? < content_bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    fchmod(&draft.file, Mode::from_raw_mode(mode & 0o777))?;
    draft.publish(name)
}

/// A file that is not complete yet.
struct Draft<'a> {
    parent: &'a OwnedFd,
    file: File,
    /// Only where the filesystem has no files without a name.
    name: Option<String>,
}

impl<'a> Draft<'a> {
    fn create(parent: &'a OwnedFd) -> io::Result<Self> {
        let mode = Mode::from_raw_mode(0o600);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let unnamed = openat(parent, c".", flags | OFlags::TMPFILE, mode);
        let (file, name) = match unnamed {
            Ok(file) => (file, None),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let name = draft_name();
                let flags = flags | OFlags::CREATE | OFlags::EXCL;
                (openat(parent, name.as_str(), flags, mode)?, Some(name))
            }
            Err(error) => return Err(error.into()),
        };
        let file = File::from(file);
        Ok(Self { parent, file, name })
    }

    /// Gives the file its name, which replaces what has the name.
    fn publish(mut self, name: &[u8]) -> io::Result<()> {
        let draft = match self.name.take() {
            Some(draft) => draft,
            None => {
                let draft = draft_name();
                let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(
                    CWD,
                    file,
                    self.parent,
                    draft.as_str(),
                    AtFlags::SYMLINK_FOLLOW,
                )?;
                draft
            }
        };
        publish(self.parent, &draft, name)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.parent, name.as_str(), AtFlags::empty());
        }
    }
}

fn is_a_directory() -> io::Error {
    io::Error::other("it is a directory")
}

/// Renames a draft to its name, which replaces what has the name.
fn publish(parent: &OwnedFd, draft: &str, name: &[u8]) -> io::Result<()> {
    let renamed = renameat(parent, draft, parent, name);
    if renamed.is_err() {
        let _ = unlinkat(parent, draft, AtFlags::empty());
    }
    renamed.map_err(|error| match error {
        Errno::ISDIR => is_a_directory(),
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

    use oubliette_wire::{FileAction, FileChange};

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

    #[test]
    fn input_that_ends_early_leaves_the_old_file_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "old").unwrap();
        let mut bytes = Vec::new();
        write("file", "a new content").encode(&mut bytes);
        for end in [bytes.len() - 1, bytes.len() - 13, 5] {
            assert!(apply_all(directory.path(), &bytes[..end]).is_err());
        }
        let old = fs::read_to_string(directory.path().join("file")).unwrap();
        assert_eq!(old, "old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_change_after_one_that_fails_is_made() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("dir")).unwrap();
        let changes = [write("dir", "a file over a directory"), write("file", "x")];
        let report = apply_to(directory.path(), &changes);
        assert_eq!((report.applied, report.failures.len()), (1, 1));
        assert_eq!(report.failures[0].1, "it is a directory");
    }
}
