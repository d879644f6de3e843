//! What is written and what may be read.

use tar::Builder;

use super::*;

fn entry(path: &[u8], kind: Kind) -> Entry {
    Entry {
        path: path.to_vec(),
        kind,
        mode: 0o640,
        modified: 1_700_000_000,
    }
}

fn read_all(archive: &[u8]) -> io::Result<Vec<(Entry, Vec<u8>)>> {
    let mut reader = Reader::new(archive);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        let mut content = Vec::new();
        reader.read_to_end(&mut content)?;
        entries.push((entry, content));
    }
    Ok(entries)
}

fn sample() -> Vec<(Entry, Vec<u8>)> {
    let long: Vec<u8> = [b"projects/".as_slice(), &[b'n'; 5000]].concat();
    let segments = vec![
        Segment { offset: 0, len: 3 },
        Segment {
            offset: 1 << 40,
            len: 4,
        },
    ];
    let sparse = Kind::Sparse {
        size: 1 << 50,
        segments,
    };
    let target = vec![b't'; 300];
    vec![
        (entry(b"projects", Kind::Directory), Vec::new()),
        (
            entry(b"projects/a", Kind::File { size: 5 }),
            b"bytes".to_vec(),
        ),
        (entry(&long, Kind::File { size: 512 }), vec![7; 512]),
        (entry(b"projects/s", sparse), b"abcdefg".to_vec()),
        (
            entry(
                b"projects/l",
                Kind::Link {
                    target: target.clone(),
                },
            ),
            Vec::new(),
        ),
        (entry(b"projects/h", Kind::HardLink { target }), Vec::new()),
        (entry(&[b'x'; 100], Kind::File { size: 0 }), Vec::new()),
    ]
}

fn written(entries: &[(Entry, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Digested::new(Vec::new());
    start(&mut archive).unwrap();
    for (entry, content) in entries {
        append(&mut archive, entry, content.as_slice()).unwrap();
    }
    finish(&mut archive).unwrap();
    archive.into_inner()
}

/// As older versions wrote it.
fn written_without_digest(entries: &[(Entry, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (entry, content) in entries {
        append(&mut archive, entry, content.as_slice()).unwrap();
    }
    append_end(&mut archive).unwrap();
    archive
}

#[test]
fn what_is_written_is_read_again() {
    assert_eq!(read_all(&written(&sample())).unwrap(), sample());
}

#[test]
fn an_archive_that_ends_too_early_is_refused_at_every_length() {
    for archive in [written(&sample()), written_without_digest(&sample())] {
        for len in (0..archive.len()).step_by(61).chain([archive.len() - 1]) {
            assert!(read_all(&archive[..len]).is_err(), "{len}");
        }
    }
}

#[test]
fn changed_bytes_before_the_digest_are_noticed() {
    let archive = written(&sample());
    let digest_at = archive.len() - 4 * BLOCK_BYTES as usize;
    for at in (0..digest_at).step_by(41) {
        for value in [0, b'9', 0x80, 0xff] {
            let mut changed = archive.clone();
            changed[at] = value;
            let is_changed = changed != archive;
            assert_eq!(read_all(&changed).is_err(), is_changed, "{at}");
        }
    }
}

#[test]
fn changed_bytes_of_older_archives_never_panic_or_read_without_bound() {
    let archive = written_without_digest(&sample());
    for at in (0..archive.len()).step_by(5) {
        for value in [0, b'9', 0x80, 0xff] {
            let mut changed = archive.clone();
            changed[at] = value;
            // A wrong number in the content is not noticed here.
            let _ = read_all(&changed);
        }
    }
}

#[test]
fn what_follows_the_end_is_refused() {
    let old = written_without_digest(&sample());
    let padded = [old.as_slice(), &[0; 8192]].concat();
    assert_eq!(read_all(&padded).unwrap(), sample());
    let new = written(&sample());
    for rest in [b"x".as_slice(), &[0; 8192], &new] {
        let longer = [new.as_slice(), rest].concat();
        assert!(read_all(&longer).is_err());
        let longer = [old.as_slice(), rest].concat();
        assert_eq!(read_all(&longer).is_err(), !is_zero(rest));
    }
}

#[test]
fn a_digest_that_was_removed_is_missed() {
    let archive = written(&sample());
    let digest_at = archive.len() - 4 * BLOCK_BYTES as usize;
    let end_at = archive.len() - 2 * BLOCK_BYTES as usize;
    let cut = [&archive[..digest_at], &archive[end_at..]].concat();
    let error = read_all(&cut).unwrap_err().to_string();
    assert_eq!(error, "its checksum is missing");
}

#[test]
fn archives_of_older_versions_are_read() {
    let mut builder = Builder::new(Vec::new());
    let long = format!("projects/{}", "n/".repeat(100));
    let add = |builder: &mut Builder<Vec<u8>>, kind, path: &str, content: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_mode(0o755);
        header.set_mtime(1);
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, path, content).unwrap();
    };
    add(&mut builder, EntryType::Directory, "projects", b"");
    add(
        &mut builder,
        EntryType::Regular,
        &format!("{long}file"),
        b"text",
    );
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Symlink);
    header.set_mode(0o777);
    header.set_mtime(1);
    header.set_size(0);
    let target = "t".repeat(200);
    builder
        .append_link(&mut header, "projects/link", &target)
        .unwrap();
    let entries = read_all(&builder.into_inner().unwrap()).unwrap();
    assert_eq!(entries[0].0.kind, Kind::Directory);
    assert_eq!(entries[1].0.path, format!("{long}file").as_bytes());
    assert_eq!(entries[1].1, b"text");
    let target = target.into_bytes();
    assert_eq!(entries[2].0.kind, Kind::Link { target });
}
