//! All objects of a project, each kept once, in packs: one for the new objects of each scan.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::pack::{DRAFT_PREFIX, Location, PACK_PREFIX, Pack, PackWriter, read_object};
use crate::{EntryKind, Hash, Listing};

/// With more packs than this, small ones are put together when garbage is collected.
const MAX_SMALL_PACKS: usize = 16;
const SMALL_PACK_BYTES: u64 = 1 << 20;

/// Objects are added by [`NewObjects`] and removed by [`ObjectStore::collect`]. The caller makes sure that
/// nothing is collected between a scan and the moment when its tree is one of the roots.
#[derive(Debug)]
pub struct ObjectStore {
    directory: PathBuf,
    state: RwLock<State>,
    /// Another one after every removal of objects, and in every store.
    state_id: AtomicU64,
}

/// What is no longer the id of a state never is again.
fn new_state_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<Hash, (Arc<Path>, u64, u64)>,
    /// The packs with their size.
    packs: HashMap<Arc<Path>, u64>,
}

impl State {
    fn add(&mut self, pack: Pack) {
        let path: Arc<Path> = pack.path.into();
        for location in pack.index {
            let place = (path.clone(), location.offset, location.length);
            self.objects.insert(location.hash, place);
        }
        self.packs.insert(path, pack.bytes);
    }

    fn location(&self, hash: Hash) -> Option<(Arc<Path>, Location)> {
        let (path, offset, length) = self.objects.get(&hash)?;
        let location = Location {
            hash,
            offset: *offset,
            length: *length,
        };
        Some((path.clone(), location))
    }
}

impl ObjectStore {
    /// Opens the objects in a directory, which need not exist, and removes what a server that died left.
    /// A damaged pack is left out: its objects are missing.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let mut state = State::default();
        let entries = match fs::read_dir(directory) {
            Ok(entries) => Some(entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(DRAFT_PREFIX) {
                fs::remove_file(entry.path())?;
            } else if name.starts_with(PACK_PREFIX)
                && let Ok(pack) = Pack::open(entry.path())
            {
                state.add(pack);
            }
        }
        Ok(Self {
            directory: directory.to_owned(),
            state: RwLock::new(state),
            state_id: AtomicU64::new(new_state_id()),
        })
    }

    /// As long as this is the same, no object has been removed.
    pub(crate) fn state_id(&self) -> u64 {
        self.state_id.load(Ordering::Acquire)
    }

    /// What the objects take on the disk.
    pub fn bytes(&self) -> u64 {
        self.state.read().packs.values().sum()
    }

    pub fn contains(&self, hash: Hash) -> bool {
        self.state.read().objects.contains_key(&hash)
    }

    /// The bytes of a blob.
    pub fn read(&self, hash: Hash) -> io::Result<Vec<u8>> {
        // A pack that was put together with others meanwhile has another place now.
        let mut last_error = None;
        for _ in 0..3 {
            let Some((pack, location)) = self.state.read().location(hash) else {
                break;
            };
            match read_object(&pack, location) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => last_error = Some(error),
                read => return read,
            }
        }
        Err(last_error.unwrap_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "an object of the checkpoint is missing",
            )
        }))
    }

    /// The listing of a directory.
    pub fn read_listing(&self, hash: Hash) -> io::Result<Listing> {
        Listing::decode(&self.read(hash)?)
    }

    pub(crate) fn new_objects(&self, max_bytes: u64) -> NewObjects<'_> {
        NewObjects {
            store: self,
            writer: None,
            hashes: HashSet::new(),
            bytes: 0,
            max_bytes,
        }
    }

    /// Removes every object that is in none of the trees. Returns how many bytes that freed.
    pub fn collect(&self, roots: &[Hash]) -> io::Result<u64> {
        let live = self.reachable(roots);
        let before = self.bytes();
        let mut packs: HashMap<Arc<Path>, (u64, Vec<Hash>)> = {
            let state = self.state.read();
            let empty = |path: &Arc<Path>| (path.clone(), (0, Vec::new()));
            state.packs.keys().map(empty).collect()
        };
        for hash in &live {
            if let Some((path, location)) = self.state.read().location(*hash)
                && let Some((bytes, hashes)) = packs.get_mut(&path)
            {
                *bytes += location.length;
                hashes.push(*hash);
            }
        }
        let sizes = self.state.read().packs.clone();
        let small = sizes.values().filter(|bytes| **bytes < SMALL_PACK_BYTES);
        let joins_small = small.count() > MAX_SMALL_PACKS;
        let mut moved = Vec::new();
        let mut replaced = Vec::new();
        for (path, (live_bytes, hashes)) in packs {
            let bytes = sizes.get(&path).copied().unwrap_or(0);
            let is_small = bytes < SMALL_PACK_BYTES;
            if live_bytes < bytes / 2 || hashes.is_empty() || (joins_small && is_small) {
                moved.extend(hashes);
                replaced.push(path);
            }
        }
        let mut writer = None;
        for hash in moved {
            let writer = match &mut writer {
                Some(writer) => writer,
                none => none.insert(PackWriter::create(&self.directory)?),
            };
            writer.put(hash, &self.read(hash)?)?;
        }
        let joined = writer.map(PackWriter::publish).transpose()?;
        let mut state = self.state.write();
        self.state_id.store(new_state_id(), Ordering::Release);
        let gone: HashSet<&Arc<Path>> = replaced.iter().collect();
        state.objects.retain(|_, (path, ..)| !gone.contains(path));
        if let Some(pack) = joined {
            state.add(pack);
        }
        for path in &replaced {
            state.packs.remove(path);
        }
        drop(state);
        for path in replaced {
            fs::remove_file(path)?;
        }
        Ok(before.saturating_sub(self.bytes()))
    }

    /// Every object of some trees that the store has.
    fn reachable(&self, roots: &[Hash]) -> HashSet<Hash> {
        let mut live = HashSet::new();
        let mut pending = roots.to_vec();
        while let Some(hash) = pending.pop() {
            if !live.insert(hash) {
                continue;
            }
            let Ok(tree) = self.read_listing(hash) else {
                continue;
            };
            for entry in tree.entries {
                match entry.kind {
                    EntryKind::Directory => pending.push(entry.hash),
                    EntryKind::File | EntryKind::Link => drop(live.insert(entry.hash)),
                    EntryKind::LargeFile | EntryKind::Unknown => {}
                }
            }
        }
        live
    }
}

/// The objects of one scan that the store does not have yet.
#[derive(Debug)]
pub(crate) struct NewObjects<'a> {
    store: &'a ObjectStore,
    /// Created with the first object.
    writer: Option<PackWriter>,
    hashes: HashSet<Hash>,
    bytes: u64,
    max_bytes: u64,
}

impl NewObjects<'_> {
    pub(crate) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    pub(crate) fn contains(&self, hash: Hash) -> bool {
        self.hashes.contains(&hash) || self.store.contains(hash)
    }

    /// Adds an object, unless it is there. Returns its hash; `None` if there is no room for it.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> io::Result<Option<Hash>> {
        let hash = Hash::of(bytes);
        if self.contains(hash) {
            return Ok(Some(hash));
        }
        self.bytes += bytes.len() as u64;
        if self.bytes > self.max_bytes {
            return Ok(None);
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let directory = &self.store.directory;
                // Not what is above it: a project that is deleted meanwhile must not come back.
                match DirBuilder::new().mode(0o700).create(directory) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    _ => {}
                }
                none.insert(PackWriter::create(directory)?)
            }
        };
        writer.put(hash, bytes)?;
        self.hashes.insert(hash);
        Ok(Some(hash))
    }

    /// Returns when the objects are on the disk.
    pub(crate) fn publish(self) -> io::Result<()> {
        if let Some(writer) = self.writer {
            let pack = writer.publish()?;
            self.store.state.write().add(pack);
        }
        Ok(())
    }
}
