//! `oubliette backup` and `restore`: a data directory in one file.
//!
//! The file is a plain tar of the database (a consistent copy, also while a server is running), the
//! configuration, the admin token and the projects' files, with a checksum at its end. Installed agents,
//! stored credentials and what was installed in containers are not included. A backup is read again before
//! it gets its name; what it could not copy, and what it does not have, is named.

mod collect;
mod digest;
mod format;
mod not_included;
mod skipped;
mod unpack;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use oubliette_store::sqlite;
use oubliette_trees::remove_tree;
use serde_json::json;

use crate::down;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::output::{self, note};
use crate::terminal::{self, ProgressLine};

use digest::Digested;
use format::{Entry, Kind};
use skipped::Skipped;

const DATABASE_FILE: &str = "oubliette.db";
/// What a backup has of the data directory; `not_included.rs` says what it has not.
const ARCHIVE_ENTRIES: [&str; 4] = [DATABASE_FILE, "oubliette.toml", "admin.token", "projects"];

/// Writes the archive to a temporary directory and renames it to `target` when it is complete.
pub(crate) fn backup(home: &Home, target: &Path, with_files: bool) -> Result<(), Failure> {
    let failed = |what: &str, error: &io::Error| Failure::with_cause(what, error);
    if !home.database().exists() {
        return Err(Failure::new(format!(
            "there is no database in {}, so there is nothing to back up",
            home.path().display()
        )));
    }
    if target == Path::new("-") {
        return Err(Failure::new(
            "a backup is read again after it was written, so it cannot go to the standard output; name a \
             file",
        ));
    }
    if target.exists() {
        return Err(Failure::new(format!(
            "{} already exists; choose another name or remove it first",
            target.display()
        )));
    }
    let directory = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !directory.is_dir() {
        return Err(Failure::new(format!(
            "the directory {} does not exist",
            directory.display()
        )));
    }
    let scratch = tempfile::tempdir_in(directory)
        .map_err(|error| failed(&format!("cannot write to {}", directory.display()), &error))?;
    let mut progress = ProgressLine::default();
    let copy = scratch.path().join(DATABASE_FILE);
    sqlite::backup(&home.database(), &copy, |done, total| {
        progress.show(&format!("copying the database: {done} of {total} pages"));
    })?;
    let owners = sqlite::container_owners(&copy)?;
    let draft = scratch.path().join("archive");
    let written = write_archive(home, &copy, &draft, with_files, &mut progress);
    let (size, skipped) = written.map_err(|error| {
        progress.clear();
        failed("cannot write the backup", &error)
    })?;
    progress.show("reading the backup again");
    let verified = File::open(&draft).and_then(|file| unpack::check(BufReader::new(file)));
    progress.clear();
    verified
        .map_err(|error| failed("the backup cannot be read again, so it is removed", &error))?;
    fs::rename(&draft, target)
        .map_err(|error| failed(&format!("cannot write {}", target.display()), &error))?;
    if output::is_json() {
        terminal::print_json(&json!({
            "file": target, "bytes": size, "data_dir": home.path(), "with_files": with_files,
            "left_out": skipped.count(),
        }));
    } else {
        note!(
            "Backed up {} to {} ({} KiB).",
            home.path().display(),
            target.display(),
            size / 1024
        );
    }
    skipped.print();
    not_included::print(home, &owners, with_files);
    Ok(())
}

/// Writes the archive. Returns its size and what was left out.
fn write_archive(
    home: &Home,
    database: &Path,
    draft: &Path,
    with_files: bool,
    progress: &mut ProgressLine,
) -> io::Result<(u64, Skipped)> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    let mut out = Digested::new(BufWriter::new(file));
    format::start(&mut out)?;
    append_own_file(&mut out, database, DATABASE_FILE)?;
    for path in [home.config_file(), home.admin_token_file()] {
        if let (true, Some(name)) = (
            path.exists(),
            path.file_name().and_then(|name| name.to_str()),
        ) {
            append_own_file(&mut out, &path, name)?;
        }
    }
    let mut skipped = Skipped::default();
    if with_files {
        skipped = collect::collect(&home.path().join("projects"), &mut out, progress)?;
    }
    format::finish(&mut out)?;
    let file = out.into_inner().into_inner();
    let file = file.map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok((file.metadata()?.len(), skipped))
}

/// Appends a file of the data directory that only the server and its user write.
fn append_own_file(out: &mut impl Write, path: &Path, name: &str) -> io::Result<()> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    let entry = Entry {
        path: name.as_bytes().to_vec(),
        kind: Kind::File { size: meta.len() },
        mode: meta.mode(),
        modified: u64::try_from(meta.mtime()).unwrap_or_default(),
    };
    format::append(out, &entry, file)
}

/// A directory for unpacked files, which may be a tree that is hard to remove.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = remove_tree(&self.0);
    }
}

/// Restores a data directory from an archive. With `replace`, the existing files are moved to a subdirectory.
pub(crate) fn restore(home: &Home, source: &Path, replace: bool) -> Result<(), Failure> {
    let _lock = down::lock_without_server(home)?;
    if home.database().exists() && !replace {
        return Err(Failure::new(format!(
            "{} already has a database; use --replace to move it aside, or choose another --data-dir",
            home.path().display()
        )));
    }
    let file = File::open(source).map_err(|error| {
        Failure::with_cause(format!("cannot open {}", source.display()), &error)
    })?;
    let scratch = tempfile::tempdir_in(home.path())
        .map_err(|error| Failure::with_cause("cannot restore", &error))?;
    let scratch = Scratch(scratch.keep());
    let unpacked = unpack::unpack(BufReader::new(file), &scratch.0)
        .map_err(|error| unpack_failure(source, &error))?;
    let database = scratch.0.join(DATABASE_FILE);
    sqlite::verify(&database).map_err(|error| {
        Failure::with_cause(
            format!(
                "nothing was restored; the database in {} cannot be used",
                source.display()
            ),
            &error,
        )
    })?;
    let has_containers = !sqlite::container_owners(&database)?.is_empty();
    let replaced_dir = home
        .path()
        .join(format!("replaced-{}", jiff::Timestamp::now().as_second()));
    swap(home.path(), &scratch.0, &replaced_dir)
        .map_err(|error| Failure::with_cause("cannot restore", &error))?;
    let replaced = replaced_dir.exists().then_some(&replaced_dir);
    if output::is_json() {
        terminal::print_json(&json!({
            "data_dir": home.path(), "file": source, "previous_files": replaced,
            "verified": unpacked.is_verified, "left_out": unpacked.skipped.count(),
        }));
    } else {
        if let Some(replaced) = replaced {
            note!("Moved the previous files to {}.", replaced.display());
        }
        note!(
            "Restored {} from {}.",
            home.path().display(),
            source.display()
        );
    }
    if !unpacked.is_verified {
        eprintln!(
            "The backup is of an older version and has no checksum: its database was checked, the files of \
             projects were not."
        );
    }
    unpacked.skipped.print();
    not_included::print_after_restore(has_containers);
    Ok(())
}

/// Why an archive was not unpacked: it is damaged, or this machine could not write it.
fn unpack_failure(source: &Path, error: &io::Error) -> Failure {
    let file = source.display();
    if error.raw_os_error().is_some() {
        return Failure::with_cause(format!("nothing was restored; cannot unpack {file}"), error);
    }
    Failure::new(format!(
        "nothing was restored; {file} is damaged or not a complete backup: {error}. Copy it again from \
         where it was made, and compare sizes, or restore another backup"
    ))
}

/// Moves the old entries away and the new ones in. After an error everything is where it was.
fn swap(home: &Path, new: &Path, replaced_dir: &Path) -> io::Result<()> {
    let mut moved = Vec::new();
    let swapped = move_entries(home, new, replaced_dir, &mut moved);
    if swapped.is_err() {
        for (from, to) in moved.iter().rev() {
            let _ = fs::rename(to, from);
        }
        let _ = fs::remove_dir(replaced_dir);
    }
    swapped
}

/// Moves the database last: a start in between would create a new one beside the old files. `moved` gets
/// where each entry was and where it is.
fn move_entries(
    home: &Path,
    new: &Path,
    replaced_dir: &Path,
    moved: &mut Vec<(PathBuf, PathBuf)>,
) -> io::Result<()> {
    let mut rename = |from: PathBuf, to: PathBuf| {
        fs::rename(&from, &to)?;
        moved.push((from, to));
        io::Result::Ok(())
    };
    let leftovers = ["oubliette.db-wal", "oubliette.db-shm"];
    let old: Vec<PathBuf> = ARCHIVE_ENTRIES
        .iter()
        .chain(&leftovers)
        .map(PathBuf::from)
        .collect();
    for name in old.iter().filter(|name| home.join(name).exists()) {
        fs::create_dir_all(replaced_dir)?;
        rename(home.join(name), replaced_dir.join(name))?;
    }
    for name in ARCHIVE_ENTRIES
        .iter()
        .rev()
        .filter(|name| new.join(name).exists())
    {
        rename(new.join(name), home.join(name))?;
    }
    File::open(home)?.sync_all()
}
