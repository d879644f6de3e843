//! Scans of real directories, hostile ones too, and patches that git takes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use oubliette_model::path_to_text;
use oubliette_trees::open_dir;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

const LIMITS: ScanLimits = ScanLimits {
    max_files: 1000,
    max_time: Duration::from_secs(60),
    max_new_bytes: 100 << 20,
};

/// A workspace with its store.
struct Workspace {
    directory: tempfile::TempDir,
    store_directory: tempfile::TempDir,
    store: ObjectStore,
    cache: StatCache,
}

impl Workspace {
    fn new() -> Self {
        let store_directory = tempfile::tempdir().unwrap();
        Self {
            directory: tempfile::tempdir().unwrap(),
            store: ObjectStore::open(&store_directory.path().join("objects")).unwrap(),
            store_directory,
            cache: StatCache::default(),
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn try_scan(&mut self, limits: &ScanLimits) -> Result<Scan, ScanError> {
        let root = open_dir(CWD, self.directory.path()).unwrap();
        scan(root, &self.store, &mut self.cache, limits)
    }

    fn scan(&mut self) -> Hash {
        self.try_scan(&LIMITS).unwrap().root
    }

    fn changes(&self, from: Hash, to: Hash) -> Vec<(String, ChangeKind)> {
        let changes = changes(&self.store, from, to).unwrap();
        let named = |change: &Change| (path_to_text(&change.path), change.kind());
        changes.iter().map(named).collect()
    }

    fn patch(&self, from: Hash, to: Hash) -> String {
        let changes = changes(&self.store, from, to).unwrap();
        let patches = changes
            .iter()
            .map(|it| patch(&self.store, it).unwrap().text);
        patches.collect()
    }
}

fn git(directory: &Path, arguments: &[&str], input: Option<&str>) -> String {
    use std::io::Write;
    let mut child = Command::new("git")
        .current_dir(directory)
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CEILING_DIRECTORIES", directory.parent().unwrap())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(input.unwrap_or_default().as_bytes())
        .unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "git {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn copy_tree(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(status.unwrap().success());
}

/// Makes a tree of a fixed random sequence.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *seed >> 33
}

#[test]
fn git_applies_the_patch_of_every_kind_of_change() {
    let mut workspace = Workspace::new();
    let numbers: String = (0..200).map(|n| format!("line {n}\n")).collect();
    workspace.write("plain.txt", &numbers);
    workspace.write("no newline", "one\ntwo");
    workspace.write("gone.txt", "bye\n");
    workspace.write("dir/moved.txt", "the same\n");
    workspace.write("became link", "text\n");
    workspace.write("script.sh", "#!/bin/sh\n");
    workspace.write("carriage", "a\r\nb\rc\r\n");
    workspace.write("binary", [0, 1, 2, 255]);
    workspace.write("latin", b"caf\xe9\n");
    workspace.write("deep/er/binary gone", [0; 300]);
    symlink("plain.txt", workspace.path("link")).unwrap();
    let before = workspace.scan();
    let base = tempfile::tempdir().unwrap();
    let applied = base.path().join("applied");
    copy_tree(workspace.directory.path(), &applied);

    let changed = numbers
        .replace("line 3\n", "")
        .replace("line 150\n", "line 150\nnew\n");
    workspace.write("plain.txt", changed);
    workspace.write("no newline", "one\ntwo\nthree");
    fs::remove_file(workspace.path("gone.txt")).unwrap();
    fs::create_dir(workspace.path("other dir")).unwrap();
    fs::rename(
        workspace.path("dir/moved.txt"),
        workspace.path("other dir/mo\tved.txt"),
    )
    .unwrap();
    fs::remove_dir(workspace.path("dir")).unwrap();
    fs::remove_file(workspace.path("became link")).unwrap();
    symlink("plain.txt", workspace.path("became link")).unwrap();
    fs::remove_file(workspace.path("link")).unwrap();
    symlink("nowhere at all", workspace.path("link")).unwrap();
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(workspace.path("script.sh"), executable).unwrap();
    workspace.write("carriage", "a\r\nb\rd\r\n");
    let mut seed = 7;
    let random: Vec<u8> = (0..5000).map(|_| next(&mut seed) as u8).collect();
    workspace.write("binary", &random);
    workspace.write("latin", b"caf\xe8\n");
    workspace.write("added empty", "");
    workspace.write("new/file with \"quotes\".txt", "fresh\n");
    workspace.write("new/binary", &random[..53]);
    fs::remove_dir_all(workspace.path("deep")).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"odd \xff name");
    fs::write(workspace.directory.path().join(name), "odd\n").unwrap();
    let after = workspace.scan();

    let patch = workspace.patch(before, after);
    git(&applied, &["apply", "--check", "-"], Some(&patch));
    git(&applied, &["apply", "-"], Some(&patch));
    let differences = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([&applied, workspace.directory.path()])
        .output()
        .unwrap();
    // Git leaves no empty directory, and there is none.
    assert!(
        differences.status.success(),
        "{}\n{patch}",
        String::from_utf8_lossy(&differences.stdout)
    );
    let mode = fs::metadata(applied.join("script.sh"))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o755);
    git(&applied, &["apply", "-R", "-"], Some(&patch));
    assert_eq!(
        fs::read_to_string(applied.join("plain.txt")).unwrap(),
        numbers
    );

    let kinds = workspace.changes(before, after);
    assert!(kinds.contains(&("other dir/mo\tved.txt".to_owned(), ChangeKind::Renamed)));
    assert!(kinds.contains(&(r#""odd \377 name""#.to_owned(), ChangeKind::Added)));
    assert!(workspace.changes(after, after).is_empty());
}

#[test]
fn a_scan_leaves_out_what_git_ignores() {
    let mut workspace = Workspace::new();
    git(workspace.directory.path(), &["init", "-q"], None);
    workspace.write(
        ".gitignore",
        "target/\n*.log\n!keep.log\n/only-here\n**/deep/x\n\\#hash\nspace \n# comment\n",
    );
    workspace.write("sub/.gitignore", "!a.log\nonly-here\nlocal/\n");
    workspace.write(".git/info/exclude", "excluded\n");
    for name in [
        "kept",
        "target/x",
        "sub/target/y",
        "a.log",
        "keep.log",
        "only-here",
        "sub/only-here",
        "sub/a.log",
        "sub/b.log",
        "sub/local/z",
        "local/z",
        "b/deep/x",
        "b/deep/y",
        "#hash",
        "space",
        "excluded",
        "sub/excluded",
        "target2/a",
    ] {
        workspace.write(name, name);
    }
    let root = workspace.scan();
    let empty = Workspace::new().scan_empty(&workspace);
    let mut kept: Vec<String> = workspace
        .changes(empty, root)
        .into_iter()
        .map(|it| it.0)
        .collect();
    kept.sort();
    let listed = git(
        workspace.directory.path(),
        &["ls-files", "-z", "--others", "--exclude-standard"],
        None,
    );
    let mut expected: Vec<String> = listed.split_terminator('\0').map(str::to_owned).collect();
    expected.sort();
    assert_eq!(kept, expected);
}

impl Workspace {
    /// The tree of an empty directory, in the store of another workspace.
    fn scan_empty(&mut self, other: &Workspace) -> Hash {
        let root = open_dir(CWD, self.directory.path()).unwrap();
        scan(root, &other.store, &mut self.cache, &LIMITS)
            .unwrap()
            .root
    }
}

#[test]
fn hostile_entries_are_neither_followed_nor_waited_for() {
    let mut workspace = Workspace::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "hidden").unwrap();
    let before = workspace.scan();
    symlink(outside.path(), workspace.path("out")).unwrap();
    symlink(outside.path().join("secret"), workspace.path("file")).unwrap();
    mknodat(CWD, workspace.path("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    workspace.write("new\nline", "x");
    let listener = std::os::unix::net::UnixListener::bind(workspace.path("socket"));
    let large = fs::File::create(workspace.path("large")).unwrap();
    large.set_len(1 << 40).unwrap();
    // Deeper than a path can be.
    let mut deep = open_dir(CWD, workspace.directory.path()).unwrap();
    let name = "d".repeat(200);
    for _ in 0..60 {
        rustix::fs::mkdirat(&deep, &name, Mode::RWXU).unwrap();
        deep = open_dir(&deep, &name).unwrap();
    }
    let after = workspace.scan();
    let names: Vec<String> = workspace
        .changes(before, after)
        .into_iter()
        .map(|it| it.0)
        .collect();
    assert_eq!(names, ["file", "large", "new\nline", "out"]);
    assert!(!workspace.patch(before, after).contains("hidden"));
    drop(listener);
    oubliette_trees::remove_tree(workspace.directory.path()).unwrap();
}

#[test]
fn what_cannot_be_read_is_neither_deleted_nor_added() {
    let mut workspace = Workspace::new();
    workspace.write("closed/file", "x");
    workspace.write("open", "x");
    let before = workspace.scan();
    // Root reads everything; a listing of a directory that vanishes stands for both.
    let changed = Listing {
        entries: vec![ListingEntry {
            name: b"closed".to_vec(),
            kind: EntryKind::Unknown,
            mode: 0,
            size: 0,
            hash: Hash::of(b""),
        }],
    };
    let mut objects = workspace.store.new_objects(1000);
    let unknown = objects.put(&changed.encode()).unwrap().unwrap();
    objects.publish().unwrap();
    assert_eq!(
        workspace.changes(before, unknown),
        [("open".to_owned(), ChangeKind::Deleted)]
    );
    assert_eq!(
        workspace.changes(unknown, before),
        [("open".to_owned(), ChangeKind::Added)]
    );
}

#[test]
fn a_file_that_changes_within_a_clock_step_is_read_again() {
    let mut workspace = Workspace::new();
    workspace.write("file", "a");
    let mut last = workspace.scan();
    for round in 0..50 {
        // The same size, and often the same times.
        workspace.write("file", if round % 2 == 0 { "b" } else { "a" });
        let now = workspace.scan();
        assert_ne!(now, last, "round {round}");
        last = now;
    }
}

/// Makes a random change that a scan could miss.
fn change_something(root: &Path, seed: &mut u64) {
    const NAMES: [&str; 6] = ["a", "b", "c.log", "dir", "sub", ".gitignore"];
    let mut path = root.to_owned();
    let mut pick = |count: u64| next(seed) % count;
    for _ in 0..pick(3) {
        path.push(NAMES[pick(6) as usize]);
    }
    if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
        path.pop();
    }
    let directory = path.clone();
    path.push(NAMES[pick(6) as usize]);
    let other = directory.join(NAMES[pick(6) as usize]);
    let _ = match pick(10) {
        // The same length, so that only times tell.
        0..=3 => fs::write(&path, ["*.log\n", "sub/*\n", "!c.lo\n"][pick(3) as usize]),
        4 => fs::remove_file(&path),
        5 => fs::remove_dir_all(&other),
        6 => fs::create_dir_all(&path),
        7 => fs::rename(&path, &other),
        8 => {
            let _ = fs::remove_file(&path);
            symlink(["a", "b"][pick(2) as usize], &path)
        }
        _ => fs::set_permissions(
            &path,
            fs::Permissions::from_mode(0o644 + 0o111 * pick(2) as u32),
        ),
    };
}

#[test]
fn a_scan_with_a_cache_finds_what_one_without_finds() {
    let mut workspace = Workspace::new();
    let mut seed = 11;
    for round in 0..600 {
        for _ in 0..next(&mut seed) % 4 {
            change_something(workspace.directory.path(), &mut seed);
        }
        if next(&mut seed).is_multiple_of(97) {
            // Its objects are gone, except those of packs that have others.
            workspace.store.collect(&[]).unwrap();
        }
        if next(&mut seed).is_multiple_of(50) {
            // Longer than the clock step, so that the cache is used.
            std::thread::sleep(Duration::from_millis(70));
        }
        let cached = workspace.scan();
        let root = open_dir(CWD, workspace.directory.path()).unwrap();
        let fresh = scan(root, &workspace.store, &mut StatCache::default(), &LIMITS).unwrap();
        assert_eq!(cached, fresh.root, "round {round}");
        assert_eq!(workspace.cache.len() as u64, fresh.files);
        // Everything can be read.
        let empty = Workspace::new().scan_empty(&workspace);
        workspace.patch(empty, cached);
    }
}

#[test]
fn a_scan_while_files_change_leaves_nothing_wrong_for_the_next_one() {
    let mut workspace = Workspace::new();
    let root = workspace.directory.path().to_owned();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let is_over = &is_over;
    std::thread::scope(|threads| {
        for number in 0..2 {
            let root = root.clone();
            threads.spawn(move || {
                let mut seed = 100 + number;
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    change_something(&root, &mut seed);
                }
            });
        }
        for _ in 0..300 {
            let tree = workspace.scan();
            let empty = Workspace::new().scan_empty(&workspace);
            workspace.patch(empty, tree);
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let cached = workspace.scan();
    let root = open_dir(CWD, &root).unwrap();
    let fresh = scan(root, &workspace.store, &mut StatCache::default(), &LIMITS);
    assert_eq!(cached, fresh.unwrap().root);
}

/// The second part runs in a process that can write only small files, which is how a full disk looks.
#[test]
fn a_disk_that_is_full_fails_the_scan_and_loses_nothing() {
    const IS_LIMITED: &str = "OUBLIETTE_TEST_FILES_ARE_LIMITED";
    const NAME: &str = "tests::a_disk_that_is_full_fails_the_scan_and_loses_nothing";
    if std::env::var_os(IS_LIMITED).is_none() {
        // 200 blocks of 512 bytes.
        let limited = Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 200; exec \"$@\"", "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(IS_LIMITED, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&limited.stdout);
        assert!(limited.status.success(), "{text}");
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    let mut workspace = Workspace::new();
    workspace.write("old", "old\n");
    let old = workspace.scan();
    for number in 0..10_u8 {
        workspace.write(&format!("{number}"), [number; 20_000]);
    }
    for _ in 0..2 {
        assert!(matches!(workspace.try_scan(&LIMITS), Err(ScanError::Io(_))));
    }
    let objects = workspace.store_directory.path().join("objects");
    assert_eq!(fs::read_dir(&objects).unwrap().count(), 1);
    for number in 3..10 {
        fs::remove_file(workspace.path(&format!("{number}"))).unwrap();
    }
    workspace.write("old", "new\n");
    let new = workspace.scan();
    workspace.store = ObjectStore::open(&objects).unwrap();
    assert_eq!(workspace.changes(old, new).len(), 4);
    assert!(workspace.patch(old, new).contains("-old\n+new\n"));
}

#[test]
fn names_of_a_directory_are_read_again_when_its_times_are_new_enough_to_hide_a_change() {
    let mut workspace = Workspace::new();
    workspace.write("dir/file", "a");
    for round in 0..50 {
        let before = workspace.scan();
        workspace.write(&format!("dir/new {round}"), "b");
        assert_ne!(workspace.scan(), before, "round {round}");
    }
    // A change of the rules is one of the files, although no directory changes.
    workspace.write(".gitignore", "new*\n");
    std::thread::sleep(Duration::from_millis(70));
    let all = workspace.scan();
    assert_eq!(workspace.cache.len(), 2);
    std::thread::sleep(Duration::from_millis(70));
    assert_eq!(workspace.scan(), all);
    workspace.write(".gitignore", "none\n");
    workspace.scan();
    assert_eq!(workspace.cache.len(), 52);
}

#[test]
fn many_files_are_scanned_within_limits() {
    let mut workspace = Workspace::new();
    // As many names as 200,000 files have.
    for number in 0..400 {
        let first = format!("{number}/0");
        workspace.write(&first, "x");
        let first = workspace.path(&first);
        for file in 1..500 {
            fs::hard_link(&first, first.with_file_name(file.to_string())).unwrap();
        }
    }
    let many = ScanLimits {
        max_files: 500_000,
        ..LIMITS
    };
    let scanned = workspace.try_scan(&many).unwrap();
    assert_eq!(scanned.files, 200_000);
    assert_eq!(workspace.try_scan(&many).unwrap(), scanned);
    let few = ScanLimits {
        max_files: 199_999,
        ..LIMITS
    };
    assert!(matches!(
        workspace.try_scan(&few),
        Err(ScanError::TooManyFiles(199_999))
    ));
}

#[test]
fn limits_fail_the_scan_and_leave_no_file() {
    let mut workspace = Workspace::new();
    for number in 0..20 {
        workspace.write(&format!("{number}"), format!("{number}").repeat(100));
    }
    let few = ScanLimits {
        max_files: 10,
        ..LIMITS
    };
    assert!(matches!(
        workspace.try_scan(&few),
        Err(ScanError::TooManyFiles(10))
    ));
    let small = ScanLimits {
        max_new_bytes: 500,
        ..LIMITS
    };
    assert!(matches!(
        workspace.try_scan(&small),
        Err(ScanError::TooLarge(500))
    ));
    let objects = workspace.store_directory.path().join("objects");
    assert_eq!(fs::read_dir(objects).unwrap().count(), 0);
    workspace.scan();
}

#[test]
fn garbage_is_collected_and_the_rest_is_found_again() {
    let mut workspace = Workspace::new();
    let mut roots = Vec::new();
    for round in 0..30 {
        workspace.write("file", format!("round {round}").repeat(500));
        workspace.write(&format!("dir/{round}"), "small");
        roots.push(workspace.scan());
    }
    let directory = workspace.store_directory.path().join("objects");
    let packs = || fs::read_dir(&directory).unwrap().count();
    assert_eq!(packs(), 30);
    let before = workspace.store.bytes();
    let kept = [roots[3], roots[29]];
    assert!(workspace.store.collect(&kept).unwrap() > before / 2);
    assert_eq!(packs(), 1);
    // A draft of a server that died.
    fs::write(directory.join("new-x"), "half").unwrap();
    workspace.store = ObjectStore::open(&directory).unwrap();
    assert_eq!(packs(), 1);
    let changes = workspace.changes(kept[0], kept[1]);
    assert_eq!(changes.len(), 27);
    assert!(
        workspace
            .patch(kept[0], kept[1])
            .contains("+round 29round 29")
    );
    assert!(workspace.store.read_listing(roots[4]).is_err());
    assert_eq!(workspace.scan(), kept[1]);
    workspace.store.collect(&[]).unwrap();
    assert_eq!((packs(), workspace.store.bytes()), (0, 0));
}

#[test]
fn texts_that_would_take_long_to_compare_are_replaced_as_a_whole() {
    let old: String = (0..100_000).map(|n| format!("old {n}\n")).collect();
    let new: String = (0..100_000).map(|n| format!("new {n}\n")).collect();
    assert_eq!(lines::count(&old, &new), (100_000, 100_000));
    let far_apart = format!("first\n{old}last\n");
    assert_eq!(lines::count(&old, &far_apart), (2, 0));
}

/// Each pattern is compiled to an automaton, and kept.
#[test]
fn patterns_of_ignore_files_are_limited_in_all() {
    let mut workspace = Workspace::new();
    let pattern = |number: usize| format!("a{number}*[a-z]?x*y?[0-9]*z\n");
    let many: String = (0..1000).map(pattern).collect();
    for number in 0..4 {
        workspace.write(&format!("d{number}/.gitignore"), &many);
    }
    workspace.scan();
    assert!(
        workspace.cache.weight() > 4 * 8000 * 10,
        "{}",
        workspace.cache.weight()
    );
    for number in 4..20 {
        workspace.write(&format!("d{number}/.gitignore"), &many);
    }
    let root = open_dir(CWD, workspace.directory.path()).unwrap();
    let refused = scan(root, &workspace.store, &mut workspace.cache, &LIMITS);
    assert!(
        matches!(refused, Err(ScanError::TooManyRules)),
        "{refused:?}"
    );
}
