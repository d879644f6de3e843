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
    let mut archive = Vec::new();
    for (entry, content) in entries {
        append(&mut archive, entry, content.as_slice()).unwrap();
    }
    finish(&mut archive).unwrap();
    archive
}

#[test]
fn what_is_written_is_read_again() {
    assert_eq!(read_all(&written(&sample())).unwrap(), sample());
}

#[test]
fn an_archive_that_ends_too_early_is_refused_at_every_length() {
    let archive = written(&sample());
    for len in (0..archive.len() - 1024).step_by(61) {
        assert!(read_all(&archive[..len]).is_err(), "{len}");
    }
}

#[test]
fn changed_bytes_never_panic_or_read_without_bound() {
    let archive = written(&sample());
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
