//! The listing of a directory, as an object.

use std::io;

use crate::Hash;

const FORMAT: u8 = 1;
/// Kind, permissions, size, hash and the length of the name.
const FIXED_BYTES: usize = 1 + 2 + 8 + 32 + 2;
const USUAL_NAME_BYTES: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file whose content is an object.
    File,
    /// A symbolic link; its target is an object.
    Link,
    /// A directory; its listing is an object.
    Directory,
    /// A regular file that is too large to be kept. The hash is that of its size and times, so that a
    /// change is noticed.
    LargeFile,
    /// Something that could not be read. Nothing is known about it, and about everything below it.
    Unknown,
}

impl EntryKind {
    fn to_byte(self) -> u8 {
        match self {
            Self::File => 1,
            Self::Link => 2,
            Self::Directory => 3,
            Self::LargeFile => 4,
            Self::Unknown => 5,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [
            Self::File,
            Self::Link,
            Self::Directory,
            Self::LargeFile,
            Self::Unknown,
        ]
        .into_iter()
        .find(|kind| kind.to_byte() == byte)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListingEntry {
    pub name: Vec<u8>,
    pub kind: EntryKind,
    /// The permission bits.
    pub mode: u16,
    pub size: u64,
    pub hash: Hash,
}

impl ListingEntry {
    pub fn is_executable(&self) -> bool {
        self.mode & 0o100 != 0
    }

    /// Whether git would see no difference.
    pub(crate) fn is_same_for_git(&self, other: &Self) -> bool {
        let same = self.kind == other.kind && self.hash == other.hash;
        same && (self.kind != EntryKind::File || self.is_executable() == other.is_executable())
    }
}

/// Makes the object of a listing.
#[derive(Debug)]
pub(crate) struct ListingEncoder {
    bytes: Vec<u8>,
}

impl ListingEncoder {
    pub(crate) fn new(entries: usize) -> Self {
        let mut bytes = Vec::with_capacity(1 + entries * (FIXED_BYTES + USUAL_NAME_BYTES));
        bytes.push(FORMAT);
        Self { bytes }
    }

    /// Adds an entry, whose name follows that of the last one.
    pub(crate) fn add(&mut self, name: &[u8], kind: EntryKind, mode: u16, size: u64, hash: Hash) {
        let bytes = &mut self.bytes;
        bytes.push(kind.to_byte());
        bytes.extend_from_slice(&mode.to_le_bytes());
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend_from_slice(hash.as_bytes());
        // The name of a file has at most 255 bytes.
        let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(name);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The entries of a directory, sorted by the bytes of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<ListingEntry>,
}

impl Listing {
    #[cfg(test)]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = ListingEncoder::new(self.entries.len());
        for entry in &self.entries {
            encoder.add(&entry.name, entry.kind, entry.mode, entry.size, entry.hash);
        }
        encoder.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not a listing");
        let mut rest = match bytes.split_first() {
            Some((&FORMAT, rest)) => rest,
            _ => return Err(invalid()),
        };
        let mut entries = Vec::new();
        while let Some((fixed, after)) = rest.split_at_checked(FIXED_BYTES) {
            let array = |from: usize| fixed.get(from..).and_then(|bytes| bytes.first_chunk());
            let length = fixed.last_chunk().copied().map(u16::from_le_bytes);
            let length = usize::from(length.ok_or_else(invalid)?);
            let (name, after) = after.split_at_checked(length).ok_or_else(invalid)?;
            entries.push(ListingEntry {
                name: name.to_vec(),
                kind: EntryKind::from_byte(fixed[0]).ok_or_else(invalid)?,
                mode: array(1)
                    .copied()
                    .map(u16::from_le_bytes)
                    .ok_or_else(invalid)?,
                size: fixed
                    .get(3..)
                    .and_then(|bytes| bytes.first_chunk())
                    .copied()
                    .map(u64::from_le_bytes)
                    .ok_or_else(invalid)?,
                hash: fixed
                    .get(11..)
                    .and_then(|bytes| bytes.first_chunk())
                    .copied()
                    .map(Hash::from_bytes)
                    .ok_or_else(invalid)?,
            });
            rest = after;
        }
        if rest.is_empty() {
            Ok(Self { entries })
        } else {
            Err(invalid())
        }
    }
}
