//! A directory of the host inside the sandbox: a copy-on-write overlay, or read-only if the kernel
//! refuses the overlay.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;

use super::mask::{self, Hidden};
use super::{Launch, StepContext, StepResult, settings_copy};
use crate::chown::chown_tree;
use crate::mounts::{self, NODEV, NOSUID, RDONLY, TargetKind};
use crate::report::{DirectoryAccess, IdMapping};

/// The step whose failure means that another id mapping has to be tried.
pub(super) const IDMAP_STEP: &str = "show the host's files with shifted ids";

/// What a directory of the host contains, which decides how its secrets are kept from the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Only files of packages.
    Public,
    /// Settings: small, with secrets among them. As root, the sandbox gets a copy.
    Settings,
    /// What the administrator installed: large, with secrets among it. As root, its files keep the
    /// host's owners, so that their modes hold against root inside.
    Local,
}

/// The directory with the layers of all overlays, relative to the scratch filesystem.
const LAYERS: &str = "layers";

/// Mounts the host's `dir` at the same path of the new root.
pub(super) fn mount_shared(
    launch: &Launch<'_>,
    root: BorrowedFd<'_>,
    dir: &Path,
    content: Content,
) -> StepResult<DirectoryAccess> {
    let name = dir
        .to_string_lossy()
        .trim_start_matches('/')
        .replace('/', "-");
    let what = |verb: &str| format!("{verb} {}", dir.display());
    let Ok(target) = mounts::open_target(root, dir, TargetKind::Directory, launch.owner()) else {
        return Ok(DirectoryAccess::Hidden {
            reason: "an earlier run replaced it by something that is not a directory".to_owned(),
        });
    };
    let is_single = matches!(launch.ids, IdMapping::Single { .. });
    let owner = |uid, gid| layer_owner(launch.ids, uid, gid);
    let (mut hidden, mut copied, mut is_mapped) = (Vec::new(), None, true);
    match content {
        Content::Public => {}
        Content::Settings if !is_single => {
            // In memory: on a disk the copy takes several times as long as the rest of a launch.
            let path = PathBuf::from(format!("copy/{name}"));
            mount_scratch(&path).step(what("copy"))?;
            is_mapped = settings_copy::make(&path, dir, owner).step(what("copy"))?;
            copied = is_mapped.then_some(path);
        }
        Content::Local if launch.userns.is_some() => is_mapped = false,
        Content::Settings | Content::Local => match mask::find(dir).step(what("search"))? {
            Some(found) => hidden = found,
            None => is_mapped = false,
        },
    }
    if !is_mapped && launch.ids == IdMapping::Identity {
        let reason = "too large to be searched for secrets".to_owned();
        return Ok(DirectoryAccess::Hidden { reason });
    }
    let source = mounts::open_host(copied.as_deref().unwrap_or(dir)).step(what("open"))?;
    // Without the mapping, the sandbox does not own files of the host's root, and their modes apply. A
    // copy has the sandbox's owners already.
    let mapped = if is_mapped && copied.is_none() {
        launch.userns.as_ref()
    } else {
        None
    };
    let lower = lower(&source, dir, mapped, false)?;
    let middle = if !hidden.is_empty() {
        Middle::Whiteouts(&hidden)
    } else if !is_mapped {
        Middle::Skeleton
    } else {
        Middle::Nothing
    };

    let refused = match stack(launch, &name, dir, lower, middle) {
        Ok(overlay) => {
            mounts::attach(&overlay, target.as_fd()).step(what("mount"))?;
            return Ok(DirectoryAccess::CopyOnWrite);
        }
        Err(error) => error,
    };
    let copy = self::lower(&source, dir, mapped, is_single)?;
    mounts::restrict(&copy, RDONLY | NOSUID | NODEV, is_single).step(what("make read-only"))?;
    mounts::attach(&copy, target.as_fd()).step(what("mount"))?;
    for Hidden { path, is_dir } in &hidden {
        cover(root, &dir.join(path), *is_dir).step(what("hide secrets of"))?;
    }
    Ok(DirectoryAccess::ReadOnly {
        reason: format!("overlay refused: {refused}"),
    })
}

/// Mounts a filesystem for a copy of settings.
fn mount_scratch(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    let size = settings_copy::FILESYSTEM_SIZE;
    let mount = mounts::tmpfs("0755", size, (0, 0), NOSUID | NODEV)?;
    mounts::attach(&mount, mounts::open_host(path)?.as_fd())
}

/// A detached copy of the host's directory, with shifted ids if there is a mapping.
fn lower(
    source: &OwnedFd,
    dir: &Path,
    mapped: Option<&OwnedFd>,
    recursive: bool,
) -> StepResult<OwnedFd> {
    let copy = mounts::copy(source.as_fd(), recursive)
        .step(format!("copy the mount of {}", dir.display()))?;
    if let Some(userns) = mapped {
        match mounts::map_ids(&copy, userns.as_fd()) {
            Err(error) if dir == Path::new("/usr") => return Err(error).step(IDMAP_STEP),
            // Elsewhere a filesystem without support only makes restricted files unreadable.
            Ok(()) | Err(_) => {}
        }
    }
    Ok(copy)
}

/// A layer between the host's directory and the changes of the sandbox.
enum Middle<'a> {
    Nothing,
    Whiteouts(&'a [Hidden]),
    /// Directories that root inside owns.
    Skeleton,
}

/// The overlay of one directory, detached.
fn stack(
    launch: &Launch<'_>,
    name: &str,
    dir: &Path,
    lower: OwnedFd,
    middle: Middle<'_>,
) -> io::Result<OwnedFd> {
    let lower_path = format!("lower/{name}");
    fs::create_dir(&lower_path)?;
    let target = mounts::open_host(Path::new(&lower_path))?;
    mounts::attach(&lower, target.as_fd())?;

    let owner = launch.owner();
    let layer = format!("{LAYERS}/{name}");
    for (part, mode) in [("upper", Some(dir)), ("work", None)] {
        let path = format!("{layer}/{part}");
        fs::create_dir_all(&path)?;
        let stat = rustix::fs::stat(&path)?;
        if stat.st_uid != owner.0 {
            chown_tree(Path::new(&path), owner).map_err(io::Error::other)?;
        }
        if let Some(host) = mode
            && fs::read_dir(&path)?.next().is_none()
        {
            let mode = Mode::from_raw_mode(rustix::fs::stat(host)?.st_mode & 0o7777);
            rustix::fs::chmodat(CWD, &*path, mode, rustix::fs::AtFlags::empty())?;
        }
    }
    let mut lowers = lower_path;
    let middle_path = format!("mask/{name}");
    let as_inside = |uid, gid| layer_owner(launch.ids, uid, gid);
    match middle {
        Middle::Nothing => {}
        Middle::Whiteouts(hidden) => {
            fs::create_dir(&middle_path)?;
            mask::whiteouts(Path::new(&middle_path), dir, hidden, as_inside)?;
            lowers = format!("{middle_path}:{lowers}");
        }
        Middle::Skeleton => {
            fs::create_dir(&middle_path)?;
            mask::skeleton(Path::new(&middle_path), dir, as_inside)?;
            lowers = format!("{middle_path}:{lowers}");
        }
    }
    let (upper, work) = (format!("{layer}/upper"), format!("{layer}/work"));
    let mut options = vec![
        ("lowerdir", &*lowers),
        ("upperdir", &*upper),
        ("workdir", &*work),
    ];
    if matches!(launch.ids, IdMapping::Single { .. }) {
        options.push(("userxattr", ""));
    }
    mounts::filesystem("overlay", &options, NOSUID | NODEV)
}

/// The owner of an entry in a layer of ours, so that it looks like the host's.
fn layer_owner(ids: IdMapping, uid: u32, gid: u32) -> (u32, u32) {
    match ids {
        IdMapping::Shifted { base } => (base + uid.min(65534), base + gid.min(65534)),
        IdMapping::Identity => (uid, gid),
        IdMapping::Single { .. } => (0, 0),
    }
}

/// Mounts an empty file or directory over one of the new root.
fn cover(root: BorrowedFd<'_>, path: &Path, is_dir: bool) -> io::Result<()> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let target = match mounts::open_beneath(root, relative) {
        // This process may not enter its directory, and the sandbox cannot either.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        other => other?,
    };
    let empty = Path::new(if is_dir { "empty/dir" } else { "empty/file" });
    let mount = mounts::copy(mounts::open_host(empty)?.as_fd(), false)?;
    mounts::restrict(&mount, RDONLY | NOSUID | NODEV, false)?;
    mounts::attach(&mount, target.as_fd())
}

/// Earlier versions kept changes below `/usr/local` in the layer of `/usr`.
pub(super) fn move_local_layer() -> io::Result<()> {
    let (old, new) = (
        format!("{LAYERS}/usr/upper/local"),
        format!("{LAYERS}/usr-local"),
    );
    let is_dir = fs::symlink_metadata(&old).is_ok_and(|meta| meta.is_dir());
    if !is_dir || Path::new(&new).exists() {
        return Ok(());
    }
    fs::create_dir(&new)?;
    fs::rename(old, format!("{new}/upper"))
}

/// Makes the directories that `mount_shared` needs in the current directory.
pub(super) fn prepare(launch: &Launch<'_>) -> io::Result<()> {
    for dir in ["lower", "mask", "copy", LAYERS, "empty", "empty/dir"] {
        fs::create_dir(dir)?;
    }
    fs::File::create("empty/file")?;
    let layers = mounts::open_host(&launch.spec.layers_dir)?;
    let copy = mounts::copy(layers.as_fd(), false)?;
    mounts::attach(&copy, mounts::open_host(Path::new(LAYERS))?.as_fd())
}

/// Creates the sandbox's own `/var` beside the layers.
pub(super) fn create_var(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    const DIRECTORIES: [(&str, u32); 5] = [
        ("cache", 0o755),
        ("lib", 0o755),
        ("log", 0o755),
        ("spool", 0o755),
        ("tmp", 0o1777),
    ];
    fs::create_dir_all(path)?;
    let var = mounts::open_directory(path)?;
    if let Some(owner) = owner
        && rustix::fs::fstat(&var)?.st_uid != owner.0
    {
        chown_tree(path, owner).map_err(io::Error::other)?;
    }
    let set_owner = |name: &str| match owner {
        Some(owner) => mounts::chown_entry(var.as_fd(), OsStr::new(name), owner),
        None => Ok(()),
    };
    for (name, mode) in DIRECTORIES {
        match rustix::fs::mkdirat(&var, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let mode = Mode::from_raw_mode(mode);
                rustix::fs::chmodat(&var, name, mode, rustix::fs::AtFlags::empty())?;
                set_owner(name)?;
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for (name, target) in [("run", "/run"), ("lock", "/run/lock")] {
        match rustix::fs::symlinkat(target, &var, name) {
            Ok(()) => set_owner(name)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) fn mount_var(launch: &Launch<'_>, root: BorrowedFd<'_>) -> io::Result<()> {
    let path = format!("{LAYERS}/var");
    create_var(Path::new(&path), Some(launch.owner()))?;
    let mount = mounts::copy(mounts::open_host(Path::new(&path))?.as_fd(), false)?;
    mounts::restrict(&mount, NOSUID | NODEV, false)?;
    let target = mounts::open_target(
        root,
        Path::new("/var"),
        TargetKind::Directory,
        launch.owner(),
    )?;
    mounts::attach(&mount, target.as_fd())
}
