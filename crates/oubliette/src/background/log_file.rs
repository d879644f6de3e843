//! The log of a server in the background: a file of bounded size, and the one before it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// A longer file is replaced by a new one.
const MAX_LOG_BYTES: u64 = 8 << 20;
/// The name of the file before the current one ends with this.
const EARLIER_SUFFIX: &str = ".1";

/// Clones write to the same file.
#[derive(Debug, Clone)]
pub(crate) struct LogFile {
    open: Arc<Mutex<OpenLog>>,
}

#[derive(Debug)]
struct OpenLog {
    path: PathBuf,
    file: File,
    max_bytes: u64,
    is_stderr: bool,
}

impl LogFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::open_with_limit(path, MAX_LOG_BYTES)
    }

    fn open_with_limit(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let open = OpenLog {
            file: open_file(path)?,
            path: path.to_owned(),
            max_bytes,
            is_stderr: false,
        };
        Ok(Self {
            open: Arc::new(Mutex::new(open)),
        })
    }

    /// Makes the file the standard error of this process, so that it has what a panic says.
    pub(crate) fn replace_stderr(&self) -> io::Result<()> {
        let mut open = self.open.lock();
        rustix::stdio::dup2_stderr(&open.file)?;
        open.is_stderr = true;
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).append(true).mode(0o600).open(path)
}

impl OpenLog {
    /// Starts a new file if the current one would be too long.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        if self.file.metadata()?.len() + bytes <= self.max_bytes {
            return Ok(());
        }
        let mut earlier = self.path.clone().into_os_string();
        earlier.push(EARLIER_SUFFIX);
        let replaced =
            fs::rename(&self.path, Path::new(&earlier)).and_then(|()| open_file(&self.path));
        match replaced {
            Ok(file) => self.file = file,
            // Where no file can be made, for example for want of space, this one stays bounded too.
            Err(_) => return self.file.set_len(0),
        }
        if self.is_stderr {
            rustix::stdio::dup2_stderr(&self.file)?;
        }
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut open = self.open.lock();
        open.make_room(bytes.len() as u64)?;
        open.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_the_newest_lines_within_its_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.log");
        let mut log = LogFile::open_with_limit(&path, 100).unwrap();
        for n in 0..100 {
            writeln!(log, "line {n:04}").unwrap();
        }
        let earlier = fs::read_to_string(directory.path().join("server.log.1")).unwrap();
        let current = fs::read_to_string(&path).unwrap();
        assert!(current.len() <= 100 && earlier.len() <= 100);
        let both = format!("{earlier}{current}");
        assert!(both.ends_with("line 0098\nline 0099\n"), "{both}");
        assert!(
            earlier.len() + current.len() > 100,
            "the older half is kept"
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        // A new server continues the file.
        let mut again = LogFile::open_with_limit(&path, 100).unwrap();
        writeln!(again, "next").unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with("next\n"));
    }
}
