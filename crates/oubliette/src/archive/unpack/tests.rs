//! Archives that are made to do harm.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::archive::digest::Digested;
use crate::archive::format::{append, finish, start};

fn entry(path: &str, kind: Kind, mode: u32) -> Entry {
    Entry {
        path: path.as_bytes().to_vec(),
        kind,
        mode,
        modified: 1_700_000_000,
    }
}

fn file(path: &str) -> Entry {
    entry(path, Kind::File { size: 4 }, 0o644)
}

fn link(path: &str, target: &Path) -> Entry {
    let target = target.as_os_str().as_encoded_bytes().to_vec();
    entry(path, Kind::Link { target }, 0o777)
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut out = Digested::new(Vec::new());
    start(&mut out).unwrap();
    for entry in entries {
        // Content that is shorter than its size ends with zeros.
        append(&mut out, entry, b"text".as_slice()).unwrap();
    }
    finish(&mut out).unwrap();
    out.into_inner()
}

#[test]
fn nothing_of_an_archive_leaves_the_directory() {
    let (target, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("file"), "kept").unwrap();
    let hard = |path: &str, target: &str| {
        let target = target.as_bytes().to_vec();
        entry(path, Kind::HardLink { target }, 0o644)
    };
    let bytes = archive(&[
        file("oubliette.db"),
        file("admin.token"),
        link("oubliette.toml", outside.path()),
        link("projects/a", outside.path()),
        entry("projects/a/workspace", Kind::Directory, 0o755),
        link("projects/a/workspace/out", outside.path()),
        file("projects/a/workspace/out/file"),
        entry("projects/a/workspace/out", Kind::Directory, 0o755),
        hard("projects/a/workspace/token", "admin.token"),
        hard("projects/a/workspace/other", "projects/b/workspace/file"),
        hard("projects/a/workspace/host", "projects/a/workspace/out/file"),
        file("projects/a/workspace/last"),
        hard("projects/a/workspace/again", "projects/a/workspace/last"),
    ]);
    unpack(bytes.as_slice(), target.path()).unwrap();
    let kept = fs::read_to_string(outside.path().join("file")).unwrap();
    assert_eq!(kept, "kept");
    let workspace = target.path().join("projects/a/workspace");
    let names = fs::read_dir(&workspace).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["again", "last", "out"]);
    assert_eq!(fs::metadata(workspace.join("again")).unwrap().nlink(), 2);
    assert!(!target.path().join("oubliette.toml").exists());
    let token = fs::metadata(target.path().join("admin.token")).unwrap();
    assert_eq!(token.permissions().mode() & 0o777, 0o600);
}

#[test]
fn entries_that_do_not_belong_into_a_data_directory_are_refused() {
    for path in [
        "other",
        "../oubliette.db",
        "/etc/passwd",
        "projects/../x",
        "run/lock",
        "projects//x",
    ] {
        let target = tempfile::tempdir().unwrap();
        let bytes = archive(&[file("oubliette.db"), file(path)]);
        assert!(unpack(bytes.as_slice(), target.path()).is_err(), "{path}");
        assert!(check(bytes.as_slice()).is_err(), "{path}");
    }
    assert!(check(archive(&[]).as_slice()).is_err());
    assert!(check(archive(&[file("oubliette.db")]).as_slice()).is_ok());
}

#[test]
fn modes_are_set_when_a_directory_is_complete_and_zeros_become_holes() {
    let target = tempfile::tempdir().unwrap();
    let size = 8 << 20;
    let bytes = archive(&[
        file("oubliette.db"),
        entry("projects/a/workspace/fixed", Kind::Directory, 0o555),
        file("projects/a/workspace/fixed/file"),
        entry("projects/a/workspace/fixed/inner", Kind::Directory, 0o500),
        entry("projects/a/workspace/zeros", Kind::File { size }, 0o600),
    ]);
    unpack(bytes.as_slice(), target.path()).unwrap();
    let workspace = target.path().join("projects/a/workspace");
    for (name, mode) in [("fixed", 0o555), ("fixed/inner", 0o500)] {
        let meta = fs::metadata(workspace.join(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, mode);
        assert_eq!(meta.mtime(), 1_700_000_000);
    }
    let zeros = fs::metadata(workspace.join("zeros")).unwrap();
    assert_eq!(zeros.len(), size);
    let first_chunk_bytes = CHUNK_BYTES as u64;
    assert!(zeros.blocks() * 512 <= first_chunk_bytes, "no holes");
}
