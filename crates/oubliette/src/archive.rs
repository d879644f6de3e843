//! `oubliette backup` and `restore`: a data directory in one file.
//!
//! The file is a plain tar of the database (a consistent copy, also while a server is running), the
//! configuration, the admin token and the projects' files. Installed agents are not included. A backup
//! is read again before it gets its name; what it could not copy is named.

mod collect;
mod format;
mod skipped;
mod unpack;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use oubliette_store::sqlite;
use oubliette_trees::remove_tree;
use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::ProgressLine;

use format::{Entry, Kind};
use skipped::Skipped;

const DATABASE_FILE: &str = "oubliette.db";
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
    let draft = scratch.path().join("archive");
    let written = write_archive(home, &copy, &draft, with_files, &mut progress);
    let (size, digest, skipped) = written.map_err(|error| {
        progress.clear();
        failed("cannot write the backup", &error)
    })?;
    progress.show("reading the backup again");
    let verified = verify(&draft, &digest);
    progress.clear();
    verified
        .map_err(|error| failed("the backup cannot be read again, so it is removed", &error))?;
    fs::rename(&draft, target)
        .map_err(|error| failed(&format!("cannot write {}", target.display()), &error))?;
    eprintln!(
        "Backed up {} to {} ({} KiB).",
        home.path().display(),
        target.display(),
        size / 1024
    );
    skipped.print();
    Ok(())
}

/// Writes the archive. Returns its size, its digest and what was left out.
fn write_archive(
    home: &Home,
    database: &Path,
    draft: &Path,
    with_files: bool,
    progress: &mut ProgressLine,
) -> io::Result<(u64, Sha256, Skipped)> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    let mut out = BufWriter::new(Digested::new(file));
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
    let Digested { inner, digest } = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    inner.sync_all()?;
    Ok((inner.metadata()?.len(), digest, skipped))
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

/// Checks that a new archive can be restored and has the bytes that were written.
fn verify(draft: &Path, written: &Sha256) -> io::Result<()> {
    let source = Digested::new(File::open(draft)?);
    let mut source = unpack::check(BufReader::new(source))?;
    io::copy(&mut source, &mut io::sink())?;
    if source.into_inner().digest.finalize() == written.clone().finalize() {
        Ok(())
    } else {
        Err(io::Error::other("it has other bytes than were written"))
    }
}

/// Computes the digest of everything that is read or written.
#[derive(Debug)]
struct Digested<T> {
    inner: T,
    digest: Sha256,
}

impl<T> Digested<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            digest: Sha256::new(),
        }
    }
}

impl<T: Write> Write for Digested<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Digested<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.digest.update(&buffer[..read]);
        Ok(read)
    }
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
    let _lock = home.lock()?;
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
    let skipped = unpack::unpack(BufReader::new(file), &scratch.0).map_err(|error| {
        Failure::with_cause(
            format!("{} is not a complete backup", source.display()),
            &error,
        )
    })?;
    sqlite::verify(&scratch.0.join(DATABASE_FILE)).map_err(|error| {
        Failure::with_cause(
            format!("the database in {} cannot be used", source.display()),
            &error,
        )
    })?;
    let replaced_dir = home
        .path()
        .join(format!("replaced-{}", jiff::Timestamp::now().as_second()));
    swap(home.path(), &scratch.0, &replaced_dir)
        .map_err(|error| Failure::with_cause("cannot restore", &error))?;
    if replaced_dir.exists() {
        eprintln!("Moved the previous files to {}.", replaced_dir.display());
    }
    eprintln!(
        "Restored {} from {}.",
        home.path().display(),
        source.display()
    );
    skipped.print();
    Ok(())
}

/// Moves the old entries away and the new ones in, the database last: a start in between would create a new
/// one beside the old files.
fn swap(home: &Path, new: &Path, replaced_dir: &Path) -> io::Result<()> {
    let leftovers = ["oubliette.db-wal", "oubliette.db-shm"];
    let old: Vec<PathBuf> = ARCHIVE_ENTRIES
        .iter()
        .chain(&leftovers)
        .map(PathBuf::from)
        .collect();
    for name in old.iter().filter(|name| home.join(name).exists()) {
        fs::create_dir_all(replaced_dir)?;
        fs::rename(home.join(name), replaced_dir.join(name))?;
    }
    for name in ARCHIVE_ENTRIES
        .iter()
        .rev()
        .filter(|name| new.join(name).exists())
    {
        fs::rename(new.join(name), home.join(name))?;
    }
    File::open(home)?.sync_all()
}
