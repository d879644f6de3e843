//! Trees as a hostile agent makes them.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mkdirat, mknodat, renameat_with};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

/// In memory where possible: a disk takes minutes for the deepest tree.
fn scratch() -> tempfile::TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory.unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Makes directories inside each other, and a file in the deepest.
fn make_deep(top: &Path, levels: usize, name: &CStr) {
    fs::create_dir(top).unwrap();
    let mut dir: OwnedFd = open_dir(CWD, top).unwrap();
    for _ in 0..levels {
        mkdirat(&dir, name, Mode::RWXU).unwrap();
        dir = open_dir(&dir, name).unwrap();
    }
    mknodat(&dir, c"file", FileType::RegularFile, Mode::RUSR, 0).unwrap();
}

/// Runs in a thread with a small stack, which recursion would use up.
fn with_small_stack(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(128 << 10);
        thread.spawn_scoped(scope, work).unwrap().join().unwrap();
    });
}

/// Takes away what lets root ignore the modes of files, for this thread.
fn become_ordinary() {
    let mut sets = capabilities(None).unwrap();
    let ignoring = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    sets.effective.remove(ignoring);
    set_capabilities(None, sets).unwrap();
}

#[derive(Debug, Default)]
struct Recorder {
    paths: BTreeSet<String>,
    skipped: BTreeSet<String>,
    max_depth: usize,
    contents: Vec<String>,
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Recorder {
    fn walk(top: &Path) -> Self {
        let mut recorder = Self::default();
        walk(open_dir(CWD, top).unwrap(), &mut recorder).unwrap();
        recorder
    }

    fn record(&mut self, entry: &Entry<'_>) {
        let separators = entry.parent.iter().filter(|byte| **byte == b'/');
        self.max_depth = self.max_depth.max(separators.count() + 2);
        if entry.path_len() < 1000 {
            self.paths.insert(text(&entry.path()));
        }
    }
}

impl Visitor for Recorder {
    fn directory(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        // Counting the depth of each would take quadratic time.
        if entry.path_len() < 1000 {
            self.record(entry);
        }
        Ok(Next::Continue)
    }

    fn file(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        self.record(entry);
        if let Ok(Some((mut file, _))) = open_file(entry.dir, entry.name) {
            let mut content = String::new();
            file.read_to_string(&mut content)?;
            self.contents.push(content);
        }
        Ok(Next::Continue)
    }

    fn skipped(&mut self, path: &[u8], _: &io::Error) {
        self.skipped.insert(text(path));
    }
}

#[test]
fn a_hundred_thousand_levels_are_walked_measured_and_removed() {
    let scratch = scratch();
    let top = scratch.path().join("top");
    make_deep(&top, 100_000, c"d");
    with_small_stack(|| {
        assert_eq!(Recorder::walk(&top).max_depth, 100_001);
        assert!(!disk_usage(&top).unwrap().is_incomplete);
        remove_tree(&top).unwrap();
    });
    assert!(!top.exists());
}

#[test]
fn names_of_255_bytes_are_walked_measured_and_removed_at_any_depth() {
    let scratch = scratch();
    let top = scratch.path().join("top");
    make_deep(&top, 22_000, &CString::new([b'n'; 255]).unwrap());
    with_small_stack(|| {
        assert_eq!(Recorder::walk(&top).max_depth, 22_001);
        assert!(!disk_usage(&top).unwrap().is_incomplete);
        remove_tree(&top).unwrap();
    });
    assert!(!top.exists());
}

#[test]
fn a_position_has_a_constant_number_of_open_directories() {
    let scratch = scratch();
    let top = scratch.path().join("top");
    make_deep(&top, 300, c"d");
    let mut position = Position::new(open_dir(CWD, &top).unwrap());
    for _ in 0..300 {
        position.enter(c"d").unwrap();
        assert!(position.open_dirs() <= 32);
    }
    for depth in (0..300).rev() {
        position.leave().unwrap();
        assert_eq!(position.depth(), depth);
        position.dir().unwrap();
    }
}

#[test]
fn pipes_sockets_devices_and_links_are_neither_opened_nor_followed() {
    let scratch = scratch();
    let outside = scratch.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "secret").unwrap();
    let top = scratch.path().join("top");
    fs::create_dir(&top).unwrap();
    mknodat(CWD, top.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _listener = UnixListener::bind(top.join("socket")).unwrap();
    let null = rustix::fs::makedev(1, 3);
    mknodat(
        CWD,
        top.join("device"),
        FileType::CharacterDevice,
        Mode::RWXU,
        null,
    )
    .unwrap();
    symlink(&outside, top.join("link-dir")).unwrap();
    symlink(outside.join("precious"), top.join("link")).unwrap();
    symlink(".", top.join("loop")).unwrap();
    fs::write(top.join("file"), "text").unwrap();
    let seen = Recorder::walk(&top);
    assert_eq!(seen.paths.len(), 7, "{seen:?}");
    assert_eq!(seen.contents, ["text"]);
    assert!(disk_usage(&top).unwrap().bytes < 1 << 20);
    remove_tree(&top).unwrap();
    assert_eq!(
        fs::read_to_string(outside.join("precious")).unwrap(),
        "secret"
    );

    symlink(&outside, &top).unwrap();
    assert!(disk_usage(&top).is_err());
    remove_tree(&top).unwrap();
    assert!(outside.join("precious").exists() && !top.exists());
    remove_tree(&top).unwrap();
}

#[test]
fn unreadable_directories_are_reported_and_removed_by_an_ordinary_user() {
    let scratch = scratch();
    let top = scratch.path().join("top");
    for (name, mode) in [
        ("none", 0o000),
        ("list", 0o444),
        ("enter", 0o111),
        ("fixed", 0o555),
    ] {
        let dir = top.join(name);
        fs::create_dir_all(dir.join("inner")).unwrap();
        fs::write(dir.join("inner/file"), "text").unwrap();
        fs::set_permissions(dir, Permissions::from_mode(mode)).unwrap();
    }
    fs::write(top.join("open"), "text").unwrap();
    fs::set_permissions(&top, Permissions::from_mode(0o555)).unwrap();
    with_small_stack(|| {
        become_ordinary();
        let seen = Recorder::walk(&top);
        let skipped: Vec<_> = seen.skipped.iter().map(String::as_str).collect();
        assert_eq!(skipped, ["enter", "list", "none"]);
        assert!(seen.paths.contains("open") && seen.paths.contains("fixed/inner/file"));
        assert!(disk_usage(&top).unwrap().is_incomplete);
        let moved = scratch.path().join("moved");
        move_tree(&top, &moved).unwrap();
        remove_tree(&moved).unwrap();
        assert!(!moved.exists());
    });
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_mode_of_what_a_link_names_does_not_change() {
    let scratch = scratch();
    let (outside, link) = (scratch.path().join("outside"), scratch.path().join("link"));
    fs::create_dir(&outside).unwrap();
    fs::set_permissions(&outside, Permissions::from_mode(0o555)).unwrap();
    symlink(&outside, &link).unwrap();
    assert!(open::allow_owner(CWD, &link).is_err());
    let mode = || fs::metadata(&outside).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o555);
    open::allow_owner(CWD, &outside).unwrap();
    assert_eq!(mode(), 0o755);
}

#[test]
fn names_that_are_swapped_with_links_never_lead_out_of_the_tree() {
    let scratch = scratch();
    let outside = scratch.path().join("outside");
    fs::create_dir_all(outside.join("inner")).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    fs::write(outside.join("inner/secret"), "secret").unwrap();
    let top = scratch.path().join("top");
    for number in 0..20 {
        let dir = top.join(format!("dir{number}"));
        fs::create_dir_all(dir.join("inner")).unwrap();
        fs::write(dir.join("inner/secret"), "text").unwrap();
        fs::write(top.join(format!("file{number}")), "text").unwrap();
        symlink(&outside, top.join(format!("dir-link{number}"))).unwrap();
        symlink(
            outside.join("secret"),
            top.join(format!("file-link{number}")),
        )
        .unwrap();
    }
    let fixed = Permissions::from_mode(0o555);
    fs::set_permissions(&outside, fixed.clone()).unwrap();
    fs::set_permissions(outside.join("inner"), fixed).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A check that fails ends the other thread, too.
        let _end = SetWhenDropped(&done);
        scope.spawn(|| {
            let swap = |one: String, other: String| {
                let (one, other) = (top.join(one), top.join(other));
                let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
            };
            while !done.load(Ordering::Relaxed) {
                for number in 0..20 {
                    swap(format!("dir{number}"), format!("dir-link{number}"));
                    swap(format!("file{number}"), format!("file-link{number}"));
                }
            }
        });
        for _ in 0..100 {
            let seen = Recorder::walk(&top);
            assert!(
                seen.contents.iter().all(|content| content == "text"),
                "{seen:?}"
            );
            disk_usage(&top).unwrap();
        }
        remove_tree(&top).unwrap();
    });
    for dir in [&outside, &outside.join("inner")] {
        let mode = fs::metadata(dir).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o555, "{}", dir.display());
    }
    assert_eq!(
        fs::read_to_string(outside.join("inner/secret")).unwrap(),
        "secret"
    );
}

/// Moves a directory away when the walk is deep below it.
struct Mover<'a> {
    top: &'a Path,
    recorder: Recorder,
}

impl Visitor for Mover<'_> {
    fn directory(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        if entry.name == c"bottom" {
            fs::rename(self.top.join("a/d/d"), self.top.join("moved"))?;
        }
        self.recorder.directory(entry)
    }

    fn file(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        self.recorder.file(entry)
    }

    fn skipped(&mut self, path: &[u8], error: &io::Error) {
        self.recorder.skipped(path, error);
    }
}

#[test]
fn a_directory_that_is_moved_during_the_walk_does_not_stop_it() {
    let scratch = scratch();
    let top = scratch.path().join("top");
    fs::create_dir(&top).unwrap();
    make_deep(&top.join("a"), 60, c"d");
    let deepest = top.join("a").join("d/".repeat(60));
    fs::create_dir_all(deepest.join("bottom")).unwrap();
    // Siblings of every directory on the way, so that the walk has something left at each.
    for levels in 0..60 {
        let dir = top.join("a").join("d/".repeat(levels));
        fs::create_dir(dir.join("sibling")).unwrap();
    }
    let mut mover = Mover {
        top: &top,
        recorder: Recorder::default(),
    };
    walk(open_dir(CWD, &top).unwrap(), &mut mover).unwrap();
    let seen = mover.recorder;
    assert!(seen.paths.contains("a/sibling"), "{seen:?}");
    assert!(seen.paths.contains("a/d/sibling"), "{seen:?}");
}

#[test]
fn an_entry_that_cannot_be_removed_does_not_keep_the_others() {
    let scratch = scratch();
    let top = scratch.path().join("top");
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::create_dir_all(top.join("foreign")).unwrap();
    fs::write(top.join("foreign/file"), "text").unwrap();
    fs::write(top.join("a/b/file"), "text").unwrap();
    let foreign = top.join("foreign");
    std::os::unix::fs::chown(&foreign, Some(12345), Some(12345)).unwrap();
    fs::set_permissions(&foreign, Permissions::from_mode(0o500)).unwrap();
    with_small_stack(|| {
        become_ordinary();
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::FOWNER);
        set_capabilities(None, sets).unwrap();
        assert!(remove_tree(&top).is_err());
    });
    let left: Vec<_> = fs::read_dir(&top).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    remove_tree(&top).unwrap();
}

#[test]
fn holes_and_several_names_of_a_file_do_not_count() {
    let scratch = scratch();
    let top = scratch.path().join("top");
    fs::create_dir_all(top.join("a")).unwrap();
    fs::write(top.join("a/file"), vec![1; 256 << 10]).unwrap();
    fs::hard_link(top.join("a/file"), top.join("again")).unwrap();
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let usage = disk_usage(&top).unwrap();
    assert!((256 << 10..512 << 10).contains(&usage.bytes), "{usage:?}");
    let missing = disk_usage(&top.join("missing")).unwrap();
    assert_eq!(missing, Usage::default());
}
