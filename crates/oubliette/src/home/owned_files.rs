//! Files in the data directory that commands write and read. The directory may belong to another user than that of the
//! command, which then is root's, and that user may have planted links.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::geteuid;

use super::Home;

/// Descriptors of directories, and of files that are read.
const NO_LINKS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

impl Home {
    /// Whether the directory belongs to another user than that of this process.
    pub(crate) fn is_foreign(&self) -> bool {
        fs::metadata(self.path()).is_ok_and(|meta| meta.uid() != geteuid().as_raw())
    }

    /// Fails if a directory of a data directory of another user is a link.
    pub(crate) fn require_no_links(&self, directories: &[&str]) -> io::Result<()> {
        let mut path = self.path().to_owned();
        for name in directories {
            path.push(name);
            if self.is_foreign() && path.is_symlink() {
                let text = format!("{} is a link of another user", path.display());
                return Err(io::Error::other(text));
            }
        }
        Ok(())
    }

    /// Replaces a file in a directory of the data directory atomically; it is the owner's, and only the owner can read
    /// it. No link is followed.
    pub(crate) fn write_owned(&self, directory: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let top = File::open(self.path())?;
        let owner = top.metadata()?;
        let give = |file: &File| -> io::Result<()> {
            if geteuid().is_root() {
                std::os::unix::fs::fchown(file, Some(owner.uid()), Some(owner.gid()))?;
            }
            Ok(())
        };
        let is_new = match rustix::fs::mkdirat(&top, directory, Mode::RWXU) {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = NO_LINKS | OFlags::DIRECTORY | OFlags::RDONLY;
        let directory: File = rustix::fs::openat(&top, directory, flags, Mode::empty())?.into();
        if is_new {
            give(&directory)?;
        }
        let found = directory.metadata()?;
        if found.uid() != owner.uid() {
            return Err(io::Error::other("its directory belongs to another user"));
        }
        if found.mode() & 0o077 != 0 {
            rustix::fs::fchmod(&directory, Mode::RWXU)?;
        }
        // Another command may write at the same time.
        let draft = format!(".{name}.{}", std::process::id());
        let _ = rustix::fs::unlinkat(&directory, draft.as_str(), AtFlags::empty());
        let flags = NO_LINKS | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file: OwnedFd =
            rustix::fs::openat(&directory, draft.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        give(&file)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        rustix::fs::renameat(&directory, draft.as_str(), &directory, name)?;
        directory.sync_all()
    }

    /// The text of a file of the data directory. Root reads only files of the directory's owner: another user may have
    /// put a link to one of root's there.
    pub(crate) fn read_owned(&self, path: &Path) -> io::Result<String> {
        let mut options = File::options();
        // A pipe in its place is not waited for.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut file = options.read(true).custom_flags(flags).open(path)?;
        if geteuid().is_root() {
            let (found, owner) = (file.metadata()?, fs::metadata(self.path())?);
            if found.uid() != owner.uid() {
                return Err(io::Error::other("it belongs to another user"));
            }
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_is_followed_and_the_directory_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("data");
        fs::create_dir(&top).unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        let home = Home::find(Some(&top)).unwrap();
        home.write_owned("cli", "file", b"one").unwrap();
        let mode = |path: &str| fs::metadata(top.join(path)).unwrap().mode() & 0o777;
        assert_eq!((mode("cli"), mode("cli/file")), (0o700, 0o600));
        // A link in the place of the draft, of the file, and of the directory.
        let draft = format!("cli/.file.{}", std::process::id());
        symlink(&victim, top.join(draft)).unwrap();
        fs::remove_file(top.join("cli/file")).unwrap();
        symlink(&victim, top.join("cli/file")).unwrap();
        home.write_owned("cli", "file", b"two").unwrap();
        assert_eq!(fs::read(top.join("cli/file")).unwrap(), b"two");
        symlink(directory.path(), top.join("linked")).unwrap();
        assert!(home.write_owned("linked", "victim", b"three").is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
    }
}
