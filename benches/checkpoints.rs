//! The checkpoint of a turn in a large repository, compared with a bare walk through the same files and with
//! `git status`.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use oubliette_benches::statistics::median;
use oubliette_benches::table::{format_ratio, format_time};
use oubliette_benches::{Table, Targets, is_quick};
use oubliette_checkpoints::{ObjectStore, ScanLimits, StatCache, scan};
use oubliette_trees::open_dir;
use rustix::fs::{AtFlags, CWD, Dir, FileType, statat};
use rustix::time::{ClockId, clock_gettime};

const FILES: usize = 50_000;
const FILES_PER_DIRECTORY: usize = 12;
const CHANGED_FILES: usize = 3;
/// Of a turn that changed a few files.
const MAX_SCAN_MS: f64 = 50.0;
/// A file that was written just before a scan is read again by the next one.
const SETTLE_TIME: Duration = Duration::from_millis(60);

const LIMITS: ScanLimits = ScanLimits {
    max_files: 1_000_000,
    max_time: Duration::from_secs(600),
    max_new_bytes: 1 << 30,
};

fn main() {
    let rounds = if is_quick() { 5 } else { 21 };
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("repository");
    write_repository(&root);
    let store = ObjectStore::open(&place.path().join("objects")).unwrap();
    let mut cache = StatCache::default();
    let mut take = || scan(open(&root), &store, &mut cache, &LIMITS).unwrap();
    let (first, _) = timed(&mut take);
    std::thread::sleep(SETTLE_TIME);
    take();
    let mut measured: [Vec<(f64, f64)>; 4] = Default::default();
    for round in 0..rounds {
        let before = take().root;
        let (walk, walk_cpu) = timed(|| assert!(walk(&open(&root)) > FILES));
        let (status, _) = timed(|| git(&root, &["status", "--porcelain"]));
        let (same, same_cpu) = timed(|| assert_eq!(take().root, before));
        for number in 0..CHANGED_FILES {
            let file = path_of(round * 7919 + number * 17_389);
            fs::write(root.join(file), format!("changed in round {round}\n")).unwrap();
        }
        let (changed, changed_cpu) = timed(|| assert_ne!(take().root, before));
        let times = [
            (walk, walk_cpu),
            (status, 0.0),
            (same, same_cpu),
            (changed, changed_cpu),
        ];
        measured
            .iter_mut()
            .zip(times)
            .for_each(|(all, one)| all.push(one));
        std::thread::sleep(SETTLE_TIME);
    }
    let what = format!("{FILES} files");
    let mut table = Table::new([what.as_str(), "time", "CPU", "to the walk"]);
    let ms = |seconds: f64| format_time(Duration::from_secs_f64(seconds));
    table.row([
        "the first scan".to_owned(),
        ms(first),
        String::new(),
        String::new(),
    ]);
    let names = [
        "names and metadata, nothing else".to_owned(),
        "`git status`".to_owned(),
        "a scan after no change".to_owned(),
        format!("a scan after {CHANGED_FILES} changed files"),
    ];
    for (name, all) in names.into_iter().zip(&measured) {
        let ratio = median(
            all.iter()
                .zip(&measured[0])
                .map(|(one, walk)| one.0 / walk.0),
        );
        let cpu = median(all.iter().map(|one| one.1));
        table.row([
            name,
            ms(median(all.iter().map(|one| one.0))),
            if cpu > 0.0 { ms(cpu) } else { String::new() },
            format_ratio(ratio),
        ]);
    }
    table.print();
    let mut targets = Targets::default();
    let cpu = median(measured[3].iter().map(|one| one.1)) * 1000.0;
    let what = format!("CPU of a scan after {CHANGED_FILES} changed files");
    targets.at_most(&what, cpu, MAX_SCAN_MS, " ms");
    targets.print();
}

/// The seconds that something takes, and those of this thread's processor.
fn timed<T>(what: impl FnOnce() -> T) -> (f64, f64) {
    let cpu = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (started, cpu_started) = (Instant::now(), cpu());
    what();
    (started.elapsed().as_secs_f64(), cpu() - cpu_started)
}

fn open(root: &Path) -> OwnedFd {
    open_dir(CWD, root).unwrap()
}

/// Visits every entry outside of `.git` and takes its metadata; how many there are.
fn walk(directory: &OwnedFd) -> usize {
    let mut count = 0;
    for entry in Dir::read_from(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b".." | b".git") {
            continue;
        }
        count += 1;
        if entry.file_type() == FileType::Directory {
            count += walk(&open_dir(directory, name).unwrap());
        } else {
            statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
    }
    count
}

fn path_of(number: usize) -> String {
    let number = number % FILES;
    let directory = number / FILES_PER_DIRECTORY;
    format!(
        "module-{}/part-{}/file_{number}.rs",
        directory / 40,
        directory % 40
    )
}

fn write_repository(root: &Path) {
    for number in 0..FILES {
        let path = root.join(path_of(number));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
        }
        fs::write(
            path,
            format!("pub fn number() -> usize {{\n    {number}\n}}\n"),
        )
        .unwrap();
    }
    fs::write(
        root.join(".gitignore"),
        "target/\n*.log\n/build\nnode_modules\n*.o\n",
    )
    .unwrap();
    git(root, &["init", "-q"]);
    git(root, &["add", "-A"]);
    let identity = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "gc.auto=0",
    ];
    git(
        root,
        &[&identity[..], &["commit", "-q", "-m", "first"]].concat(),
    );
}

fn git(root: &Path, arguments: &[&str]) {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}");
}
