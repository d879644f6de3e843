//! Takes an apply back: the files that it replaces or removes are kept, as they were, until the next one.

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::journal::{Journal, KeptFile, MergedFiles, copy, free_name};
use super::{Change, ChangeKind, check_obstacles};
use crate::failure::Failure;

const LIST: &str = "undo.json";
const FILES: &str = "files";

/// The list, with paths as bytes: they need not be text.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    session_id: String,
    root: Vec<u8>,
    files: Vec<StoredFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredFile {
    path: Vec<u8>,
    /// What the file was; none if there was none. The file itself is below `files`.
    before: Option<String>,
    /// What the apply made of it; none if it removed it.
    after: Option<String>,
}

/// What was taken back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Undone {
    pub(in super::super) session_id: String,
    pub(in super::super) written: usize,
    pub(in super::super) removed: usize,
    /// Files that were changed since the apply, and where that version is now.
    pub(in super::super) edited: Vec<(PathBuf, PathBuf)>,
    /// Files that were changed at the last moment, and left alone.
    pub(in super::super) kept: Vec<KeptFile>,
}

/// Keeps the files that an apply is about to change, in place of what was kept for an earlier one. New files
/// are below `files` in `stage`.
pub(super) fn keep(
    directory: &Path,
    journal: &Journal,
    stage: &Path,
    session_id: &str,
) -> Result<(), Failure> {
    let write = || {
        let new = directory.with_extension("undo-new");
        remove_all(&new)?;
        fs::create_dir_all(new.join(FILES))?;
        let mut files = Vec::new();
        let removed = journal.removed.iter().map(|path| (path, false));
        for (path, is_written) in removed.chain(journal.written.iter().map(|path| (path, true))) {
            let (here, kept) = (journal.root.join(path), new.join(FILES).join(path));
            let before = digest(&here)?;
            if before.is_some() {
                fs::create_dir_all(kept.parent().unwrap_or(&kept))?;
                copy(&here, &kept)?;
            }
            let staged = stage.join(FILES).join(path);
            files.push(StoredFile {
                path: path.as_os_str().as_bytes().to_vec(),
                before,
                after: if is_written { digest(&staged)? } else { None },
            });
        }
        let stored = Stored {
            session_id: session_id.to_owned(),
            root: journal.root.as_os_str().as_bytes().to_vec(),
            files,
        };
        fs::write(new.join(LIST), serde_json::to_vec(&stored)?)?;
        remove_all(directory)?;
        fs::rename(&new, directory)
    };
    write().map_err(|error| {
        let _ = remove_all(stage);
        let _ = remove_all(&directory.with_extension("undo-new"));
        Failure::with_cause(
            format!(
                "nothing was changed: cannot keep the files as they are in {}",
                directory.display()
            ),
            &error,
        )
    })
}

/// Sets the files back that the last apply has changed; None if there was none. A file that was changed since
/// gets another name. `stage` is a directory that does not exist.
pub(in super::super) fn undo(directory: &Path, stage: &Path) -> Result<Option<Undone>, Failure> {
    let failed = |error: io::Error| {
        let _ = remove_all(stage);
        Failure::with_cause(
            "nothing was changed: the files that were kept cannot be read",
            &error,
        )
    };
    let stored: Stored = match fs::read(directory.join(LIST)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text
            .and_then(|text| Ok(serde_json::from_slice(&text)?))
            .map_err(failed)?,
    };
    let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()));
    let root = path(&stored.root);
    let mut undone = Undone {
        session_id: stored.session_id,
        ..Undone::default()
    };
    let (mut removed, mut written, mut changes) = (Vec::new(), Vec::new(), Vec::new());
    remove_all(stage).map_err(failed)?;
    for file in &stored.files {
        let path = path(&file.path);
        let here = root.join(&path);
        let now = digest(&here).map_err(failed)?;
        if now == file.before {
            continue;
        }
        let mut prepare = |from: &Path, path: &Path| {
            let staged = stage.join(FILES).join(path);
            fs::create_dir_all(staged.parent().unwrap_or(&staged))?;
            copy(from, &staged)?;
            written.push(path.to_owned());
            Ok(())
        };
        if now.is_some() && now != file.after {
            let is_taken = |name: &Path| root.join(name).symlink_metadata().is_ok();
            let beside = free_name(&path, ".oubliette", is_taken);
            prepare(&here, &beside).map_err(failed)?;
            undone.edited.push((path.clone(), beside));
        }
        let kind = match (&file.before, now.is_some()) {
            (None, _) => ChangeKind::Remove,
            (Some(_), true) => ChangeKind::Modify,
            (Some(_), false) => ChangeKind::Add,
        };
        if kind == ChangeKind::Remove {
            removed.push(path.clone());
            undone.removed += 1;
        } else {
            let kept = directory.join(FILES).join(&path);
            prepare(&kept, &path).map_err(failed)?;
            undone.written += 1;
        }
        changes.push(Change { path, kind });
    }
    if !changes.is_empty() {
        if let Err(failure) = check_obstacles(&root, &changes) {
            let _ = remove_all(stage);
            return Err(failure);
        }
        let journal = Journal {
            merged: MergedFiles::look(&root, &removed, &written),
            root,
            removed,
            written,
        };
        journal.require_space(stage)?;
        journal.commit(stage)?;
        undone.kept = journal.replay(stage)?;
    }
    remove_all(directory).map_err(|error| {
        Failure::with_cause(format!("cannot remove {}", directory.display()), &error)
    })?;
    Ok(Some(undone))
}

/// The kind and content of a file or link, in short; None if there is neither.
fn digest(path: &Path) -> io::Result<Option<String>> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut hash = Sha256::new();
    let kind = if found.is_symlink() {
        hash.update(fs::read_link(path)?.as_os_str().as_bytes());
        "link"
    } else if found.is_file() {
        let mut file = fs::File::open(path)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => hash.update(&buffer[..read]),
            }
        }
        let is_executable = found.permissions().mode() & 0o100 != 0;
        if is_executable { "program" } else { "file" }
    } else {
        return Ok(None);
    };
    let bytes = hash.finalize();
    let hexadecimal: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Some(format!("{kind} {hexadecimal}")))
}

fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(root: &Path, stage: &Path, kept: &Path, (removed, written): (&[&str], &[&str])) {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let (removed, written) = (paths(removed), paths(written));
        let journal = Journal {
            merged: MergedFiles::look(root, &removed, &written),
            root: root.to_owned(),
            removed,
            written,
        };
        keep(kept, &journal, stage, "s").unwrap();
        journal.commit(stage).unwrap();
        assert_eq!(journal.replay(stage).unwrap(), Vec::new());
    }

    /// A directory in which an apply has changed `changed`, removed `gone` and made `new/file`.
    fn applied() -> (tempfile::TempDir, PathBuf, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (root, stage, kept) = (at("root"), at("stage"), at("x.undo"));
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(stage.join("files/new")).unwrap();
        fs::write(root.join("changed"), "before").unwrap();
        fs::write(root.join("gone"), "before").unwrap();
        fs::write(stage.join("files/changed"), "after").unwrap();
        fs::write(stage.join("files/new/file"), "after").unwrap();
        apply(&root, &stage, &kept, (&["gone"], &["changed", "new/file"]));
        (directory, root, stage, kept)
    }

    #[test]
    fn an_apply_is_taken_back_once() {
        let (_directory, root, stage, kept) = applied();
        let undone = undo(&kept, &stage).unwrap().unwrap();
        assert_eq!((undone.written, undone.removed), (2, 1));
        assert_eq!(undone.edited, Vec::new());
        let text = |name: &str| fs::read_to_string(root.join(name)).unwrap();
        assert_eq!(
            (text("changed"), text("gone")),
            ("before".into(), "before".into())
        );
        assert!(!root.join("new").exists());
        assert_eq!(undo(&kept, &stage).unwrap(), None);
    }

    #[test]
    fn what_was_edited_since_is_kept_under_another_name() {
        let (_directory, root, stage, kept) = applied();
        fs::write(root.join("changed"), "edited").unwrap();
        fs::write(root.join("new/file"), "edited").unwrap();
        let undone = undo(&kept, &stage).unwrap().unwrap();
        let moved = [
            ("changed", "changed.oubliette"),
            ("new/file", "new/file.oubliette"),
        ];
        let moved = moved.map(|(path, name)| (PathBuf::from(path), PathBuf::from(name)));
        assert_eq!(undone.edited, moved);
        let text = |name: &str| fs::read_to_string(root.join(name)).unwrap();
        assert_eq!(text("changed"), "before");
        assert_eq!(
            (text("changed.oubliette"), text("new/file.oubliette")),
            ("edited".into(), "edited".into())
        );
        assert!(!root.join("new/file").exists());
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (root, stage, kept) = (at("root"), at("stage"), at("x.undo"));
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("x"), "before").unwrap();
        fs::create_dir_all(stage.join("files/x")).unwrap();
        fs::write(stage.join("files/x/new"), "after").unwrap();
        apply(&root, &stage, &kept, (&["x"], &["x/new"]));
        undo(&kept, &stage).unwrap().unwrap();
        assert_eq!(fs::read_to_string(root.join("x")).unwrap(), "before");
    }
}
