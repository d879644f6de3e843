//! A file of objects: their bytes one after the other, then an index.
//!
//! A pack is written under a temporary name and gets its own when it is on the disk, so that it is
//! complete or absent whenever the server, or the machine, stops. It never changes afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::Hash;

pub(crate) const PACK_PREFIX: &str = "pack-";
/// The prefix of packs that are being written. A server that died left the others.
pub(crate) const DRAFT_PREFIX: &str = "new-";
const MAGIC: [u8; 8] = *b"oubpack1";
/// A hash, an offset and a length.
const INDEX_ENTRY_BYTES: usize = 32 + 8 + 8;
const MAX_INDEX_ENTRIES: u64 = 20_000_000;

/// Where an object is in its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) hash: Hash,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A pack that is being written.
#[derive(Debug)]
pub(crate) struct PackWriter {
    directory: PathBuf,
    draft: PathBuf,
    file: BufWriter<File>,
    index: Vec<Location>,
    offset: u64,
}

impl PackWriter {
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let draft = directory.join(format!("{DRAFT_PREFIX}{}", Uuid::new_v4()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)?;
        Ok(Self {
            directory: directory.to_owned(),
            draft,
            file: BufWriter::with_capacity(128 << 10, file),
            index: Vec::new(),
            offset: 0,
        })
    }

    pub(crate) fn put(&mut self, hash: Hash, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        let length = bytes.len() as u64;
        self.index.push(Location {
            hash,
            offset: self.offset,
            length,
        });
        self.offset += length;
        Ok(())
    }

    /// Makes the pack durable and gives it its name.
    pub(crate) fn publish(mut self) -> io::Result<Pack> {
        for Location {
            hash,
            offset,
            length,
        } in &self.index
        {
            self.file.write_all(hash.as_bytes())?;
            self.file.write_all(&offset.to_le_bytes())?;
            self.file.write_all(&length.to_le_bytes())?;
        }
        self.file
            .write_all(&(self.index.len() as u64).to_le_bytes())?;
        self.file.write_all(&MAGIC)?;
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        let name = format!("{PACK_PREFIX}{}", Uuid::new_v4());
        let path = self.directory.join(&name);
        fs::rename(&self.draft, &path)?;
        File::open(&self.directory)?.sync_all()?;
        Ok(Pack {
            bytes: self.offset + (self.index.len() * INDEX_ENTRY_BYTES + 16) as u64,
            index: std::mem::take(&mut self.index),
            path,
        })
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // Fails when the pack has its name.
        let _ = fs::remove_file(&self.draft);
    }
}

#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) index: Vec<Location>,
}

impl Pack {
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not a pack of objects");
        let mut file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        let mut end = [0; 16];
        file.seek(SeekFrom::End(-16))?;
        file.read_exact(&mut end)?;
        let (count, magic) = end.split_at(8);
        let count = count.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let index_bytes = count.saturating_mul(INDEX_ENTRY_BYTES as u64) + 16;
        if magic != MAGIC || count > MAX_INDEX_ENTRIES || index_bytes > bytes {
            return Err(invalid());
        }
        file.seek(SeekFrom::Start(bytes - index_bytes))?;
        let mut entries = Vec::new();
        file.take(index_bytes - 16).read_to_end(&mut entries)?;
        let number = |bytes: &[u8]| bytes.first_chunk().copied().map(u64::from_le_bytes);
        let location = |entry: &[u8]| {
            Some(Location {
                hash: Hash::try_from(entry.get(..32)?).ok()?,
                offset: number(entry.get(32..)?)?,
                length: number(entry.get(40..)?)?,
            })
        };
        let index: Option<Vec<_>> = entries.chunks(INDEX_ENTRY_BYTES).map(location).collect();
        Ok(Self {
            index: index.ok_or_else(invalid)?,
            path,
            bytes,
        })
    }
}

/// Reads an object and checks that it is the one that its hash names.
pub(crate) fn read_object(pack: &Path, location: Location) -> io::Result<Vec<u8>> {
    let mut file = File::open(pack)?;
    file.seek(SeekFrom::Start(location.offset))?;
    let mut bytes = Vec::new();
    file.take(location.length).read_to_end(&mut bytes)?;
    if Hash::of(&bytes) != location.hash {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "an object of a checkpoint is damaged",
        ));
    }
    Ok(bytes)
}
