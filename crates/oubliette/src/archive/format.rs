//! The file format of backups: tar with PAX records for long paths and for files with holes, which
//! other programs can read too.
//!
//! The last record before the end is the SHA-256 digest of everything before it, in a comment, which
//! other programs ignore; a comment at the beginning announces it. Archives of older versions have no
//! digest, and GNU records for long paths. Everything read from an archive is untrusted and bounded.

use std::io::{self, Read, Write};

use sha2::Sha256;
use tar::{EntryType, Header};

use super::digest::{Digested, to_hex};

const BLOCK_BYTES: u64 = 512;
/// Four times what a program can pass to the kernel. Longer ones would make an archive that is much
/// larger than its files, because each entry has its whole path.
pub(super) const MAX_PATH_BYTES: usize = 16 << 10;
/// The records before an entry: a path and the target of a link.
const MAX_RECORD_BYTES: u64 = 64 << 10;
/// The parts of a file between its holes.
pub(super) const MAX_SEGMENTS: usize = 500_000;

/// The comment at the beginning of an archive with a digest, and that with the digest.
const ANNOUNCED_DIGEST: &str = "a backup of Oubliette; its last record is its sha256";
const DIGEST_PREFIX: &str = "oubliette sha256 ";

/// A part of a file that is not a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) len: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    /// The contents follow.
    File {
        size: u64,
    },
    /// The contents of the segments follow, one after the other.
    Sparse {
        size: u64,
        segments: Vec<Segment>,
    },
    Link {
        target: Vec<u8>,
    },
    /// Another name of a file that the archive has already, with its path in the archive.
    HardLink {
        target: Vec<u8>,
    },
    /// Something that no backup has.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// From the data directory, without slashes at the ends.
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    /// Seconds since 1970.
    pub(super) modified: u64,
}

/// Appends an entry. Exactly as many bytes of `content` are written as its kind says; zeros if there
/// are fewer.
pub(super) fn append(out: &mut impl Write, entry: &Entry, content: impl Read) -> io::Result<()> {
    let mut records = Vec::new();
    let mut map = Vec::new();
    let mut header = Header::new_ustar();
    header.set_mode(entry.mode & 0o777);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(entry.modified);
    let mut name = entry.path.clone();
    let size = match &entry.kind {
        Kind::Directory => {
            header.set_entry_type(EntryType::Directory);
            0
        }
        Kind::File { size } => {
            header.set_entry_type(EntryType::Regular);
            *size
        }
        Kind::Sparse { size, segments } => {
            header.set_entry_type(EntryType::Regular);
            add_record(&mut records, "GNU.sparse.major", b"1");
            add_record(&mut records, "GNU.sparse.minor", b"0");
            add_record(&mut records, "GNU.sparse.name", &entry.path);
            let real_size = size.to_string();
            add_record(&mut records, "GNU.sparse.realsize", real_size.as_bytes());
            name = b"GNUSparseFile.0/file".to_vec();
            map = sparse_map(*size, segments);
            let data: u64 = segments.iter().map(|segment| segment.len).sum();
            map.len() as u64 + data
        }
        Kind::Link { target } | Kind::HardLink { target } => {
            let is_hard = matches!(entry.kind, Kind::HardLink { .. });
            header.set_entry_type(if is_hard {
                EntryType::Link
            } else {
                EntryType::Symlink
            });
            if !set_field(&mut header.as_old_mut().linkname, target) {
                add_record(&mut records, "linkpath", target);
            }
            0
        }
        Kind::Unknown => return Err(io::ErrorKind::Unsupported.into()),
    };
    if !set_field(&mut header.as_old_mut().name, &name) {
        add_record(&mut records, "path", &name);
        set_field(&mut header.as_old_mut().name, b"a-long-path");
    }
    if !records.is_empty() {
        let mut extension = Header::new_ustar();
        extension.set_entry_type(EntryType::XHeader);
        set_field(&mut extension.as_old_mut().name, b"PaxHeader/records");
        write_part(out, extension, records.len() as u64, &*records)?;
    }
    write_part(out, header, size, map.as_slice().chain(content))
}

fn write_part(
    out: &mut impl Write,
    mut header: Header,
    size: u64,
    content: impl Read,
) -> io::Result<()> {
    header.set_size(size);
    header.set_cksum();
    out.write_all(header.as_bytes())?;
    // A file may shrink while it is read; the size in the header is fixed.
    let copied = io::copy(&mut content.chain(io::repeat(0)).take(size), out)?;
    if copied != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    write_zeros(out, size.next_multiple_of(BLOCK_BYTES) - size)
}

/// Starts an archive.
pub(super) fn start(out: &mut impl Write) -> io::Result<()> {
    append_comment(out, ANNOUNCED_DIGEST)
}

/// Ends an archive with the digest of what was written.
pub(super) fn finish(out: &mut Digested<impl Write>) -> io::Result<()> {
    let digest = to_hex(out.digest());
    append_comment(out, &format!("{DIGEST_PREFIX}{digest}"))?;
    append_end(out)
}

fn append_end(out: &mut impl Write) -> io::Result<()> {
    write_zeros(out, 2 * BLOCK_BYTES)
}

fn append_comment(out: &mut impl Write, comment: &str) -> io::Result<()> {
    let mut records = Vec::new();
    add_record(&mut records, "comment", comment.as_bytes());
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::XGlobalHeader);
    set_field(&mut header.as_old_mut().name, b"pax_global_header");
    write_part(out, header, records.len() as u64, &*records)
}

fn write_zeros(out: &mut impl Write, count: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(count), out).map(drop)
}

/// Copies a value into a field if it fits.
fn set_field(field: &mut [u8], value: &[u8]) -> bool {
    let Some(start) = field.get_mut(..value.len()) else {
        return false;
    };
    start.copy_from_slice(value);
    field[value.len()..].fill(0);
    true
}

/// A record says its own length, which counts the digits of the length.
fn add_record(records: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    records.extend_from_slice(format!("{len} {key}=").as_bytes());
    records.extend_from_slice(value);
    records.push(b'\n');
}

fn sparse_map(size: u64, segments: &[Segment]) -> Vec<u8> {
    // An empty segment at the end says where the last hole ends.
    let end = Segment {
        offset: size,
        len: 0,
    };
    let mut map = format!("{}\n", segments.len() + 1).into_bytes();
    for Segment { offset, len } in segments.iter().chain([&end]) {
        map.extend_from_slice(format!("{offset}\n{len}\n").as_bytes());
    }
    let padded = map.len().next_multiple_of(BLOCK_BYTES as usize);
    map.resize(padded, 0);
    map
}

/// Reads the entries of an archive, one after the other.
#[derive(Debug)]
pub(super) struct Reader<R> {
    source: Digested<R>,
    /// What is left of the contents of the current entry, and of the padding behind them.
    content_left: u64,
    padding_left: u64,
    /// Whether the archive says that it has a digest.
    announces_digest: bool,
    /// Whether its digest was read, and was right.
    is_verified: bool,
}

/// The contents of the current entry.
impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = (&mut self.source).take(self.content_left).read(buffer)?;
        if read == 0 && self.content_left > 0 && !buffer.is_empty() {
            return Err(ends_early());
        }
        self.content_left -= read as u64;
        Ok(read)
    }
}

impl<R: Read> Reader<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source: Digested::new(source),
            content_left: 0,
            padding_left: 0,
            announces_digest: false,
            is_verified: false,
        }
    }

    /// Whether the archive had a digest, and it was right. Archives of older versions have none.
    pub(super) fn is_verified(&self) -> bool {
        self.is_verified
    }

    /// The next entry; `None` at the end of an archive that is complete and whose digest is right, if it
    /// has one. Until then, what was read may be damaged.
    pub(super) fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut records = Records::default();
        loop {
            self.skip_rest()?;
            let digest_before = self.source.digest();
            let block = self.read_block()?;
            if is_zero(&block) {
                self.read_end()?;
                return Ok(None);
            }
            if self.is_verified {
                return Err(invalid("something follows its checksum"));
            }
            let header = Header::from_byte_slice(&block);
            if header.cksum()? != checksum(&block) {
                return Err(invalid("the checksum of a header is wrong"));
            }
            self.content_left = header.entry_size()?;
            self.padding_left = (BLOCK_BYTES - self.content_left % BLOCK_BYTES) % BLOCK_BYTES;
            match header.entry_type() {
                EntryType::XHeader => records.add(&self.read_record()?)?,
                EntryType::GNULongName => records.path = Some(self.read_gnu_record()?),
                EntryType::GNULongLink => records.target = Some(self.read_gnu_record()?),
                EntryType::XGlobalHeader => self.read_comment(digest_before)?,
                kind => return self.entry(header, kind, records).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &Header, kind: EntryType, records: Records) -> io::Result<Entry> {
        let target = || {
            let short = || header.link_name_bytes().map(|name| name.into_owned());
            let target = records.target.clone().or_else(short);
            target.ok_or_else(|| invalid("a link has no target"))
        };
        let kind = match kind {
            EntryType::Directory => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => match records.sparse_size {
                Some(size) => {
                    let segments = self.read_sparse_map(size)?;
                    Kind::Sparse { size, segments }
                }
                None => Kind::File {
                    size: self.content_left,
                },
            },
            EntryType::Symlink => Kind::Link { target: target()? },
            EntryType::Link => Kind::HardLink { target: target()? },
            _ => Kind::Unknown,
        };
        let path = records.sparse_path.or(records.path);
        let mut path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        while path.last() == Some(&b'/') {
            path.pop();
        }
        Ok(Entry {
            path,
            kind,
            mode: header.mode()? & 0o777,
            modified: header.mtime()?,
        })
    }

    fn read_block(&mut self) -> io::Result<[u8; BLOCK_BYTES as usize]> {
        let mut block = [0; BLOCK_BYTES as usize];
        let read = self.source.read_exact(&mut block);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ends_early(),
            _ => error,
        })?;
        Ok(block)
    }

    /// Reads what follows the first block of the end: another one, and nothing else. Other programs fill
    /// their archives up with zeros.
    fn read_end(&mut self) -> io::Result<()> {
        if self.announces_digest && !self.is_verified {
            return Err(invalid("its checksum is missing"));
        }
        let is_end = is_zero(&self.read_block()?);
        let mut rest = [0; BLOCK_BYTES as usize];
        let mut has_rest = !is_end;
        loop {
            match self.source.read(&mut rest)? {
                0 => break,
                read => has_rest |= self.is_verified || !is_zero(&rest[..read]),
            }
            if has_rest {
                break;
            }
        }
        if has_rest {
            return Err(invalid("something follows its end"));
        }
        Ok(())
    }

    /// Reads a comment, which may have the digest of everything before it.
    fn read_comment(&mut self, digest_before: Sha256) -> io::Result<()> {
        let mut records = Records::default();
        records.add(&self.read_record()?)?;
        let comment = records.comment.unwrap_or_default();
        if comment == ANNOUNCED_DIGEST.as_bytes() {
            self.announces_digest = true;
        } else if let Some(expected) = comment.strip_prefix(DIGEST_PREFIX.as_bytes()) {
            if expected != to_hex(digest_before).as_bytes() {
                return Err(invalid("its checksum does not match its bytes"));
            }
            self.is_verified = true;
        }
        Ok(())
    }

    fn read_record(&mut self) -> io::Result<Vec<u8>> {
        if self.content_left > MAX_RECORD_BYTES {
            return Err(invalid("a path is too long"));
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_gnu_record(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = self.read_record()?;
        if bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(bytes)
    }

    /// The map is a list of numbers, each on its line, padded to a whole block.
    fn read_sparse_map(&mut self, size: u64) -> io::Result<Vec<Segment>> {
        let wrong = || invalid("the map of a file with holes is wrong");
        let mut read_bytes = 0u64;
        let mut number = |reader: &mut Self| -> io::Result<u64> {
            let mut value = 0u64;
            loop {
                let mut byte = [0];
                reader.read_exact(&mut byte)?;
                read_bytes += 1;
                match byte[0] {
                    b'\n' => return Ok(value),
                    digit @ b'0'..=b'9' => {
                        let shifted = value.checked_mul(10);
                        let added = shifted.and_then(|v| v.checked_add(u64::from(digit - b'0')));
                        value = added.ok_or_else(wrong)?;
                    }
                    _ => return Err(wrong()),
                }
            }
        };
        let count = number(self)?;
        if count > MAX_SEGMENTS as u64 + 1 {
            return Err(wrong());
        }
        let mut segments = Vec::new();
        let mut end = 0u64;
        for _ in 0..count {
            let (offset, len) = (number(self)?, number(self)?);
            let next = offset.checked_add(len).filter(|next| *next <= size);
            if offset < end {
                return Err(wrong());
            }
            end = next.ok_or_else(wrong)?;
            if len > 0 {
                segments.push(Segment { offset, len });
            }
        }
        let padding = read_bytes.next_multiple_of(BLOCK_BYTES) - read_bytes;
        io::copy(&mut self.by_ref().take(padding), &mut io::sink())?;
        let total = segments
            .iter()
            .try_fold(0u64, |sum, segment| sum.checked_add(segment.len));
        if total == Some(self.content_left) {
            Ok(segments)
        } else {
            Err(wrong())
        }
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        let left = self.content_left.saturating_add(self.padding_left);
        let skipped = io::copy(&mut (&mut self.source).take(left), &mut io::sink())?;
        if skipped != left {
            return Err(ends_early());
        }
        (self.content_left, self.padding_left) = (0, 0);
        Ok(())
    }
}

/// What the records before an entry say about it.
#[derive(Debug, Default)]
struct Records {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    sparse_path: Option<Vec<u8>>,
    sparse_size: Option<u64>,
    comment: Option<Vec<u8>>,
}

impl Records {
    fn add(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let wrong = || invalid("a record is wrong");
        while !bytes.is_empty() {
            let space = bytes
                .iter()
                .position(|byte| *byte == b' ')
                .ok_or_else(wrong)?;
            let len = std::str::from_utf8(&bytes[..space]).ok();
            let len: usize = len.and_then(|len| len.parse().ok()).ok_or_else(wrong)?;
            let record = bytes.get(space + 1..len).ok_or_else(wrong)?;
            let record = record.strip_suffix(b"\n").ok_or_else(wrong)?;
            let equals = record
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(wrong)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"comment" => self.comment = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"GNU.sparse.name" => self.sparse_path = Some(value.to_vec()),
                b"GNU.sparse.realsize" => {
                    let size = std::str::from_utf8(value).ok();
                    let size = size.and_then(|size| size.parse().ok());
                    self.sparse_size = Some(size.ok_or_else(wrong)?);
                }
                // It would change how many bytes follow.
                b"size" => return Err(wrong()),
                _ => {}
            }
            bytes = &bytes[len..];
        }
        Ok(())
    }
}

fn checksum(block: &[u8; BLOCK_BYTES as usize]) -> u32 {
    let is_checksum = |at: usize| (148..156).contains(&at);
    let byte = |(at, byte): (usize, &u8)| u32::from(if is_checksum(at) { b' ' } else { *byte });
    block.iter().enumerate().map(byte).sum()
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

pub(super) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn ends_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it ends too early")
}

#[cfg(test)]
mod tests;
