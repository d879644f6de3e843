//! `oubliette backup` and `restore`: a data directory in one file.
//!
//! The file is a plain tar of the database (a consistent copy, also while a server is running), the
//! configuration, the admin token and the projects' files. Installed agents are not included.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use oubliette_store::sqlite;
use tar::{Archive, Builder, EntryType, Header};

use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::ProgressLine;

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
    progress.clear();
    let size = written.map_err(|error| failed("cannot write the backup", &error))?;
    fs::rename(&draft, target)
        .map_err(|error| failed(&format!("cannot write {}", target.display()), &error))?;
    eprintln!(
        "Backed up {} to {} ({} KiB).",
        home.path().display(),
        target.display(),
        size / 1024
    );
    Ok(())
}

fn write_archive(
    home: &Home,
    database: &Path,
    draft: &Path,
    with_files: bool,
    progress: &mut ProgressLine,
) -> io::Result<u64> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    let mut archive = Builder::new(BufWriter::new(file));
    append(&mut archive, database, Path::new(DATABASE_FILE))?;
    for path in [home.config_file(), home.admin_token_file()] {
        if let (true, Some(name)) = (path.exists(), path.file_name()) {
            append(&mut archive, &path, Path::new(name))?;
        }
    }
    if with_files {
        let mut count = 0u64;
        walk(
            &home.path().join("projects"),
            Path::new("projects"),
            &mut |path, name| {
                count += 1;
                if count.is_multiple_of(100) {
                    progress.show(&format!("copying files: {count}"));
                }
                append(&mut archive, path, name)
            },
        )?;
    }
    let file = archive
        .into_inner()?
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Visits a tree without following links. Files that are deleted meanwhile are left out.
fn walk(
    path: &Path,
    name: &Path,
    visit: &mut dyn FnMut(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    visit(path, name)?;
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        if name == Path::new("projects/.deleted") {
            continue;
        }
        if entry.file_type()?.is_dir() {
            walk(&path, &name, visit)?;
        } else {
            visit(&path, &name)?;
        }
    }
    Ok(())
}

fn append<W: Write>(archive: &mut Builder<W>, path: &Path, name: &Path) -> io::Result<()> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut header = Header::new_gnu();
    header.set_mode(meta.mode() & 0o777);
    header.set_mtime(u64::try_from(meta.mtime()).unwrap_or_default());
    header.set_size(0);
    if meta.is_symlink() {
        header.set_entry_type(EntryType::Symlink);
        return archive.append_link(&mut header, name, fs::read_link(path)?);
    }
    if meta.is_dir() {
        header.set_entry_type(EntryType::Directory);
        return archive.append_data(&mut header, name, io::empty());
    }
    if !meta.is_file() {
        // Sockets and pipes have no content.
        return Ok(());
    }
    header.set_entry_type(EntryType::Regular);
    header.set_size(meta.len());
    // The file may grow or shrink while it is read; the size in the header is fixed.
    let content = File::open(path)?.chain(io::repeat(0)).take(meta.len());
    archive.append_data(&mut header, name, content)
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
    unpack(file, scratch.path()).map_err(|error| {
        Failure::with_cause(
            format!("{} is not a complete backup", source.display()),
            &error,
        )
    })?;
    sqlite::verify(&scratch.path().join(DATABASE_FILE)).map_err(|error| {
        Failure::with_cause(
            format!("the database in {} cannot be used", source.display()),
            &error,
        )
    })?;
    let replaced_dir = home
        .path()
        .join(format!("replaced-{}", jiff::Timestamp::now().as_second()));
    swap(home.path(), scratch.path(), &replaced_dir)
        .map_err(|error| Failure::with_cause("cannot restore", &error))?;
    if replaced_dir.exists() {
        eprintln!("Moved the previous files to {}.", replaced_dir.display());
    }
    eprintln!(
        "Restored {} from {}.",
        home.path().display(),
        source.display()
    );
    Ok(())
}

/// Unpacks an archive, and refuses entries that do not belong into a data directory.
fn unpack(file: File, target: &Path) -> io::Result<()> {
    let mut archive = Archive::new(io::BufReader::new(file));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let is_known = match path.components().next() {
            Some(Component::Normal(first)) => ARCHIVE_ENTRIES.iter().any(|part| first == *part),
            _ => false,
        };
        if !is_known || !entry.unpack_in(target)? {
            return Err(io::Error::other(format!("it contains {}", path.display())));
        }
    }
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
