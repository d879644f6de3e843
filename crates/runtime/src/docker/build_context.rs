//! The directory of a Dockerfile as an archive. Its size is limited, because the directory may come
//! from an untrusted repository.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use crate::{Result, RuntimeError};

/// Enough for tools and configuration; larger files belong in a download step.
const MAX_CONTEXT_BYTES: u64 = 64 << 20;
const MAX_CONTEXT_FILES: usize = 10_000;

/// An archive, and the path of the Dockerfile in it.
#[derive(Debug)]
pub(super) struct BuildContext {
    pub(super) archive: Vec<u8>,
    pub(super) dockerfile: String,
}

impl BuildContext {
    /// A context with only a Dockerfile.
    pub(super) fn of_text(dockerfile: &str) -> Result<Self> {
        let name = "Dockerfile".to_owned();
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(dockerfile.len() as u64);
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_data(&mut header, &name, dockerfile.as_bytes())?;
        Ok(Self {
            archive: archive.into_inner()?,
            dockerfile: name,
        })
    }

    /// Reads the directory that a Dockerfile is in. Blocks.
    pub(super) fn read(dockerfile: &Path) -> Result<Self> {
        let missing = || {
            RuntimeError::Failed(format!(
                "There is no Dockerfile at {}.",
                dockerfile.display()
            ))
        };
        let file = if dockerfile.is_dir() {
            dockerfile.join("Dockerfile")
        } else {
            dockerfile.to_owned()
        };
        if !file.is_file() {
            return Err(missing());
        }
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(missing)?;
        let directory = file.parent().ok_or_else(missing)?;
        let mut builder = ArchiveBuilder {
            root: directory,
            archive: tar::Builder::new(Vec::new()),
            bytes: 0,
            files: 0,
        };
        builder.add_directory(Path::new(""))?;
        Ok(Self {
            archive: builder.archive.into_inner()?,
            dockerfile: name.to_owned(),
        })
    }
}

struct ArchiveBuilder<'a> {
    root: &'a Path,
    archive: tar::Builder<Vec<u8>>,
    bytes: u64,
    files: usize,
}

impl ArchiveBuilder<'_> {
    fn add_directory(&mut self, inside: &Path) -> Result<()> {
        let entries = fs::read_dir(self.root.join(inside))?;
        let mut names: Vec<PathBuf> = entries
            .map(|entry| entry.map(|entry| inside.join(entry.file_name())))
            .collect::<io::Result<_>>()?;
        // Sorted, so that the same files give the same archive and the engine's cache applies.
        names.sort();
        for name in names {
            let metadata = fs::symlink_metadata(self.root.join(&name))?;
            self.check_size(&metadata)?;
            let kind = metadata.file_type();
            if kind.is_dir() {
                self.add_entry(&name, &metadata, io::empty())?;
                self.add_directory(&name)?;
            } else if kind.is_symlink() {
                self.add_symlink(&name, &metadata)?;
            } else if kind.is_file() {
                let file = File::open(self.root.join(&name))?;
                self.add_entry(&name, &metadata, file)?;
            }
        }
        Ok(())
    }

    fn check_size(&mut self, metadata: &Metadata) -> Result<()> {
        self.files += 1;
        self.bytes += if metadata.is_file() {
            metadata.len()
        } else {
            0
        };
        if self.bytes > MAX_CONTEXT_BYTES || self.files > MAX_CONTEXT_FILES {
            return Err(RuntimeError::Failed(format!(
                "The directory {} is too large to build from: at most {} MiB in {MAX_CONTEXT_FILES} \
                 files. Keep the Dockerfile in a directory with only what it copies.",
                self.root.display(),
                MAX_CONTEXT_BYTES >> 20,
            )));
        }
        Ok(())
    }

    fn add_entry(&mut self, name: &Path, metadata: &Metadata, data: impl io::Read) -> Result<()> {
        let mut header = header(metadata);
        // A file that grows while it is read must not corrupt the archive.
        let data = data.take(header.size()?);
        self.archive.append_data(&mut header, name, data)?;
        Ok(())
    }

    fn add_symlink(&mut self, name: &Path, metadata: &Metadata) -> Result<()> {
        let target = fs::read_link(self.root.join(name))?;
        self.archive
            .append_link(&mut header(metadata), name, target)?;
        Ok(())
    }
}

/// The file's metadata without its owner and times, which do not belong in an image.
fn header(metadata: &Metadata) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_metadata_in_mode(metadata, tar::HeaderMode::Deterministic);
    if metadata.file_type().is_symlink() {
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
    }
    header
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn names(archive: &[u8]) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let link = entry.link_name().unwrap();
            let text = match link {
                Some(link) => format!("-> {}", link.display()),
                None => io::read_to_string(&mut entry).unwrap(),
            };
            (name.trim_end_matches('/').to_owned(), text)
        });
        entries.collect()
    }

    #[test]
    fn the_same_directory_gives_the_same_archive() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        fs::write(path("Dockerfile.dev"), "FROM scratch\n").unwrap();
        fs::write(path("sub/file"), "content").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let context = BuildContext::read(&path("Dockerfile.dev")).unwrap();
        assert_eq!(context.dockerfile, "Dockerfile.dev");
        let expected = [
            ("Dockerfile.dev", "FROM scratch\n"),
            ("link", "-> /etc/passwd"),
            ("sub", ""),
            ("sub/file", "content"),
        ];
        let expected: BTreeMap<_, _> = expected
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into();
        assert_eq!(names(&context.archive), expected);
        let again = BuildContext::read(&path("Dockerfile.dev")).unwrap();
        assert!(again.archive == context.archive, "the archives differ");
    }

    #[test]
    fn a_directory_means_the_dockerfile_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let error = BuildContext::read(directory.path()).unwrap_err();
        assert!(error.to_string().contains("no Dockerfile"), "{error}");
        fs::write(directory.path().join("Dockerfile"), "").unwrap();
        let context = BuildContext::read(directory.path()).unwrap();
        assert_eq!(context.dockerfile, "Dockerfile");
    }

    #[test]
    fn a_directory_that_is_too_large_is_refused_before_it_is_read() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("Dockerfile"), "").unwrap();
        let sparse = File::create(directory.path().join("big")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let error = BuildContext::read(directory.path()).unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
    }
}
