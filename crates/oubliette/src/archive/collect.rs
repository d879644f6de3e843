//! Copies the files of projects into an archive. Containers may change them meanwhile.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use oubliette_agent::catalogue;
use oubliette_engine::{MOUNT_LINK, SESSION_HOMES_DIR};
use oubliette_trees::{Entry as Found, Next, Visitor, open_dir, open_file, walk};
use rustix::fs::{CWD, FileType, SeekFrom, Stat, fstat, readlinkat, seek};
use rustix::io::Errno;

use super::format::{Entry, Kind, MAX_PATH_BYTES, MAX_SEGMENTS, Segment, append};
use super::skipped::Skipped;
use crate::terminal::ProgressLine;

/// The memory for files of a project that have several names. Those beyond it are left out: copied for each
/// name, they could fill any disk.
const MAX_LINKED_BYTES: usize = 128 << 20;
/// What a remembered file takes besides its path.
const LINKED_FILE_BYTES: usize = 64;
/// A path longer than this counts for [`MAX_LONG_PATH_BYTES`].
const LONG_PATH_BYTES: usize = 512;
/// How many bytes long paths of a project may add to the archive. On the disk they take next to nothing.
const MAX_LONG_PATH_BYTES: usize = 32 << 20;

/// Appends the directory `projects` and everything in it, if it exists.
pub(super) fn collect(
    projects: &Path,
    out: &mut impl Write,
    progress: &mut ProgressLine,
) -> io::Result<Skipped> {
    let root = match open_dir(CWD, projects) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(Skipped::default()),
        Err(error) => return Err(error.into()),
    };
    let entry = entry(b"projects".to_vec(), Kind::Directory, &fstat(&root)?);
    append(out, &entry, io::empty())?;
    let mut collector = Collector {
        out,
        progress,
        skipped: Skipped::default(),
        project: ProjectShare::default(),
        logins: catalogue()
            .iter()
            .flat_map(|agent| {
                agent
                    .sign_in
                    .login_files
                    .iter()
                    .map(|file| file.path.into())
            })
            .collect(),
        count: 0,
    };
    walk(root, &mut collector)?;
    Ok(collector.skipped)
}

struct Collector<'a, W> {
    out: &'a mut W,
    progress: &'a mut ProgressLine,
    skipped: Skipped,
    project: ProjectShare,
    /// The paths of login files in the home of a session's agent.
    logins: Vec<Vec<u8>>,
    count: u64,
}

/// What the archive has of the project that is copied now.
#[derive(Default)]
struct ProjectShare {
    /// Paths of files with several names.
    linked: HashMap<(u64, u64), Vec<u8>>,
    linked_bytes: usize,
    long_path_bytes: usize,
}

impl ProjectShare {
    /// Remembers a file with several names; false if there is no room.
    fn remember(&mut self, identity: (u64, u64), path: &[u8]) -> bool {
        let bytes = self.linked_bytes + path.len() + LINKED_FILE_BYTES;
        if bytes > MAX_LINKED_BYTES {
            return false;
        }
        self.linked_bytes = bytes;
        self.linked.insert(identity, path.to_owned());
        true
    }

    /// Counts a path of the archive; false if there is no room for it.
    fn count_path(&mut self, path: &[u8]) -> bool {
        if path.len() <= LONG_PATH_BYTES {
            return true;
        }
        let bytes = self.long_path_bytes + path.len();
        if bytes > MAX_LONG_PATH_BYTES {
            return false;
        }
        self.long_path_bytes = bytes;
        true
    }
}

impl<W: Write> Visitor for Collector<'_, W> {
    fn directory(&mut self, found: &Found<'_>) -> io::Result<Next> {
        if found.parent.is_empty() && found.name == c".deleted" {
            return Ok(Next::Skip);
        }
        if found.parent.is_empty() {
            self.project = ProjectShare::default();
        }
        let Some(path) = self.path(found) else {
            return Ok(Next::Skip);
        };
        let entry = entry(path, Kind::Directory, found.stat);
        append(self.out, &entry, io::empty())?;
        Ok(Next::Continue)
    }

    fn file(&mut self, found: &Found<'_>) -> io::Result<Next> {
        if self.is_login(&found.path()) {
            return Ok(Next::Continue);
        }
        let Some(path) = self.path(found) else {
            return Ok(Next::Continue);
        };
        if is_mount(&found.path()) {
            let directory = readlinkat(found.dir, found.name, Vec::new()).unwrap_or_default();
            let reason = format!(
                "the directory {} that the project works in is not copied, and the restored project has an \
                 empty workspace instead",
                directory.to_string_lossy()
            );
            self.skipped.add(&path, reason);
            return Ok(Next::Continue);
        }
        match FileType::from_raw_mode(found.stat.st_mode) {
            FileType::Symlink => match readlinkat(found.dir, found.name, Vec::new()) {
                Ok(target) => {
                    let target = target.into_bytes();
                    let entry = entry(path, Kind::Link { target }, found.stat);
                    append(self.out, &entry, io::empty())?;
                }
                Err(error) => self.skip(&path, error),
            },
            FileType::RegularFile => match open_file(found.dir, found.name) {
                Ok(Some((file, stat))) => self.copy_file(path, &file, &stat)?,
                Ok(None) => self.skipped.add(&path, "it was replaced meanwhile"),
                Err(error) => self.skip(&path, error),
            },
            _ => self.skipped.add_without_content(),
        }
        Ok(Next::Continue)
    }

    fn skipped(&mut self, path: &[u8], error: &io::Error) {
        self.skipped.add(&in_archive(path), error);
    }
}

impl<W: Write> Collector<'_, W> {
    /// Whether a file is the login of an agent, from a credential: those are in no backup, and written
    /// again when the agent starts.
    fn is_login(&self, path: &[u8]) -> bool {
        let mut below = path.split(|byte| *byte == b'/');
        if !below.any(|name| name == SESSION_HOMES_DIR.as_bytes()) {
            return false;
        }
        let in_home = below.skip(1).collect::<Vec<_>>().join(&b'/');
        self.logins.contains(&in_home)
    }

    /// The path in the archive, unless it is too long or the project has too many long ones.
    fn path(&mut self, found: &Found<'_>) -> Option<Vec<u8>> {
        self.count += 1;
        if self.count.is_multiple_of(100) {
            let count = self.count;
            self.progress.show(&format!("copying files: {count}"));
        }
        let path = in_archive(&found.path());
        if path.len() > MAX_PATH_BYTES {
            let reason = format!("its path is longer than {MAX_PATH_BYTES} bytes");
            self.skipped.add(&path, reason);
            return None;
        }
        if !self.project.count_path(&path) {
            self.skip_long_path(&path);
            return None;
        }
        Some(path)
    }

    fn skip_long_path(&mut self, path: &[u8]) {
        let reason = format!(
            "the paths of its project that are longer than {LONG_PATH_BYTES} bytes have more than {} MB \
             together",
            MAX_LONG_PATH_BYTES >> 20
        );
        self.skipped.add(path, reason);
    }

    /// What disappears meanwhile is not worth a line.
    fn skip(&mut self, path: &[u8], error: Errno) {
        if error != Errno::NOENT {
            self.skipped.add(path, io::Error::from(error));
        }
    }

    #[allow(
        clippy::unnecessary_cast,
        reason = "the types differ between platforms"
    )]
    fn copy_file(&mut self, path: Vec<u8>, file: &File, stat: &Stat) -> io::Result<()> {
        let identity = (stat.st_dev as u64, stat.st_ino as u64);
        if stat.st_nlink > 1 {
            if let Some(target) = self.project.linked.get(&identity).cloned() {
                if !self.project.count_path(&target) {
                    self.skip_long_path(&path);
                    return Ok(());
                }
                let entry = entry(path, Kind::HardLink { target }, stat);
                return append(self.out, &entry, io::empty());
            }
            if !self.project.remember(identity, &path) {
                let reason = "its project has too many files with several names";
                self.skipped.add(&path, reason);
                return Ok(());
            }
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let on_disk = u64::try_from(stat.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512);
        let segments = if on_disk < size {
            match find_segments(file, size) {
                Ok(segments) => segments,
                Err(error) => {
                    self.skipped.add(&path, error);
                    return Ok(());
                }
            }
        } else {
            None
        };
        let (kind, segments) = match segments {
            Some(segments) => {
                let copied = segments.clone();
                (Kind::Sparse { size, segments }, copied)
            }
            None => {
                let offset = 0;
                (Kind::File { size }, vec![Segment { offset, len: size }])
            }
        };
        let content = SegmentReader::new(file, &segments);
        append(self.out, &entry(path, kind, stat), content)
    }
}

/// Whether this is the link of a project to the directory of a person that it works in.
fn is_mount(path: &[u8]) -> bool {
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    matches!(names.as_slice(), [_, name] if *name == MOUNT_LINK.as_bytes())
}

fn in_archive(path: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        return b"projects".to_vec();
    }
    [b"projects/", path].concat()
}

/// The first two names of a path in the archive.
pub(super) fn project_of(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').take(2).collect()
}

#[allow(
    clippy::useless_conversion,
    reason = "the types differ between platforms"
)]
fn entry(path: Vec<u8>, kind: Kind, stat: &Stat) -> Entry {
    Entry {
        path,
        kind,
        mode: u32::from(stat.st_mode) & 0o777,
        modified: u64::try_from(stat.st_mtime).unwrap_or_default(),
    }
}

/// The parts of a file that are not holes; `None` if the file system does not know them.
fn find_segments(file: &File, size: u64) -> io::Result<Option<Vec<Segment>>> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < size {
        let offset = match seek(file, SeekFrom::Data(at)) {
            Ok(offset) if offset >= size => break,
            Ok(offset) => offset,
            // There is no data behind this.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) if at == 0 => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let end = match seek(file, SeekFrom::Hole(offset)) {
            Ok(end) => end.min(size),
            Err(Errno::NXIO) => size,
            Err(error) => return Err(error.into()),
        };
        // It shrank or changed meanwhile.
        if end <= offset {
            break;
        }
        if segments.len() == MAX_SEGMENTS {
            return Err(io::Error::other("it has too many holes"));
        }
        segments.push(Segment {
            offset,
            len: end - offset,
        });
        at = end;
    }
    Ok(Some(segments))
}

/// Reads the segments of a file, one after the other; zeros where the file has become shorter.
struct SegmentReader<'a> {
    file: &'a File,
    segments: std::slice::Iter<'a, Segment>,
    current: Segment,
}

impl<'a> SegmentReader<'a> {
    fn new(file: &'a File, segments: &'a [Segment]) -> Self {
        Self {
            file,
            segments: segments.iter(),
            current: Segment { offset: 0, len: 0 },
        }
    }
}

impl Read for SegmentReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.len == 0 {
            match self.segments.next() {
                Some(next) => self.current = *next,
                None => return Ok(0),
            }
        }
        let wanted = usize::try_from(self.current.len).unwrap_or(usize::MAX);
        let wanted = wanted.min(buffer.len());
        let buffer = &mut buffer[..wanted];
        let mut read = self.file.read_at(buffer, self.current.offset)?;
        if read == 0 {
            buffer.fill(0);
            read = buffer.len();
        }
        self.current.offset += read as u64;
        self.current.len -= read as u64;
        Ok(read)
    }
}
