//! What containers reached and what was refused: a file of bounded size per project, and the one before it.
//!
//! A thread of its own writes. Connections never wait for it: lines that it cannot take or cannot write are counted,
//! and the count is a line when writing works again. No container can push the lines of others, or its own earlier ones, out of the
//! files: each has a share ([`shares`]), and repeated lines are one with a count.

mod shares;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::protocol::Way;
use shares::Shares;

/// The directory of the journals in the data directory.
pub const JOURNAL_DIR: &str = "network";
/// Of each of the two files of a project.
const MAX_FILE_BYTES: u64 = 2 << 20;
/// Lines that wait for the thread.
const MAX_QUEUED_LINES: usize = 4096;
/// How often lines that were held back are looked at.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);
/// A line has a host and a reason, both bounded.
const MAX_LINE_BYTES: usize = 4096;

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEvent {
    Opened,
    Closed,
    Denied,
    /// The host could not be found or reached.
    Failed,
    /// Lines that could not be written, or were more than the share of their container; `count` says how many.
    Lost,
}

/// A line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    pub at: Timestamp,
    pub event: JournalEvent,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// The same in the lines of one connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<Way>,
    /// The rule that decided, or why the connection failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The address that was connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<std::net::IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
    /// How many lines were lost, or how many equal ones this line stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl JournalEntry {
    pub(crate) fn new(event: JournalEvent) -> Self {
        Self {
            at: Timestamp::now(),
            event,
            container: String::new(),
            connection: None,
            host: String::new(),
            port: None,
            way: None,
            rule: String::new(),
            address: None,
            sent_bytes: None,
            received_bytes: None,
            count: None,
        }
    }
}

/// Takes lines for the thread that writes them. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    lines: SyncSender<(String, JournalEntry)>,
    lost: Arc<AtomicU64>,
}

impl Journal {
    /// Starts the thread, which ends with the last clone.
    pub(crate) fn start(directory: &Path) -> io::Result<Self> {
        Self::start_with_limit(directory, MAX_FILE_BYTES)
    }

    fn start_with_limit(directory: &Path, max_file_bytes: u64) -> io::Result<Self> {
        let (lines, receiver) = sync_channel(MAX_QUEUED_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let mut writer = Writer {
            directory: directory.to_owned(),
            max_file_bytes,
            lost: HashMap::new(),
            queue_lost: lost.clone(),
            shares: Shares::default(),
        };
        std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run(&receiver))?;
        Ok(Self { lines, lost })
    }

    /// Adds a line to the journal of a project, unless too many wait.
    pub(crate) fn add(&self, project: &str, entry: JournalEntry) {
        if self.lines.try_send((project.to_owned(), entry)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Writer {
    directory: PathBuf,
    max_file_bytes: u64,
    /// Lines of projects that could not be written.
    lost: HashMap<String, u64>,
    /// Lines that did not get into the queue, of any project.
    queue_lost: Arc<AtomicU64>,
    shares: Shares,
}

impl Writer {
    fn run(&mut self, lines: &Receiver<(String, JournalEntry)>) {
        let mut flushed_at = Instant::now();
        loop {
            let received = lines.recv_timeout(FLUSH_INTERVAL);
            let now = Instant::now();
            match received {
                Ok((project, entry)) => {
                    if let Some(entry) = self.shares.admit(&project, entry, now) {
                        self.write_or_count(project, &entry);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if now.duration_since(flushed_at) >= FLUSH_INTERVAL {
                flushed_at = now;
                for (project, entry) in self.shares.take_due(now) {
                    self.write_or_count(project, &entry);
                }
            }
        }
        for (project, entry) in self.shares.take_all() {
            self.write_or_count(project, &entry);
        }
    }

    fn write_or_count(&mut self, project: String, entry: &JournalEntry) {
        let queue_lost = self.queue_lost.swap(0, Ordering::Relaxed);
        let lost = self.lost.remove(&project).unwrap_or(0) + queue_lost;
        if let Err(unwritten) = self.write(&project, lost, entry) {
            self.lost.insert(project, unwritten);
        }
    }

    /// The error is the number of lines that are not in the journal.
    fn write(&self, project: &str, lost: u64, entry: &JournalEntry) -> Result<(), u64> {
        if lost > 0 {
            let line = JournalEntry {
                count: Some(lost),
                ..JournalEntry::new(JournalEvent::Lost)
            };
            self.append(project, &line).map_err(|_| lost + 1)?;
        }
        self.append(project, entry).map_err(|_| 1)
    }

    fn append(&self, project: &str, entry: &JournalEntry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::from)?;
        line.push(b'\n');
        let [current, earlier] = journal_files(&self.directory, project);
        let mut file = match open(&current) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut builder = fs::DirBuilder::new();
                builder
                    .recursive(true)
                    .mode(0o700)
                    .create(&self.directory)?;
                open(&current)?
            }
            file => file?,
        };
        let mut length = file.metadata()?.len();
        if length + line.len() as u64 > self.max_file_bytes {
            fs::rename(&current, &earlier)?;
            file = open(&current)?;
            length = 0;
        }
        file.write_all(&line).inspect_err(|_| {
            // A part of a line would hide the next one.
            let _ = file.set_len(length);
        })
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).append(true).mode(0o600).open(path)
}

/// The current file of a project's journal in the directory of journals, and the one before it.
pub fn journal_files(directory: &Path, project: &str) -> [PathBuf; 2] {
    [
        directory.join(format!("{project}.jsonl")),
        directory.join(format!("{project}.1.jsonl")),
    ]
}

/// The newest lines of a project's journal that `is_wanted`, the newest last.
pub fn read_journal(
    directory: &Path,
    project: &str,
    limit: usize,
    is_wanted: impl Fn(&JournalEntry) -> bool,
) -> io::Result<Vec<JournalEntry>> {
    let [current, earlier] = journal_files(directory, project);
    let mut found = std::collections::VecDeque::new();
    for path in [earlier, current] {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if line.len() > MAX_LINE_BYTES {
                continue;
            }
            // A line that was cut by a crash, or of a later version.
            let Ok(entry) = serde_json::from_slice::<JournalEntry>(&line) else {
                continue;
            };
            if is_wanted(&entry) {
                if found.len() == limit {
                    found.pop_front();
                }
                found.push_back(entry);
            }
        }
    }
    Ok(found.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(connection: u64) -> JournalEntry {
        JournalEntry {
            connection: Some(connection),
            // Equal lines would become one.
            host: format!("{connection}.org"),
            ..JournalEntry::new(JournalEvent::Opened)
        }
    }

    fn wait_for(directory: &Path, is_done: impl Fn(&[JournalEntry]) -> bool) -> Vec<JournalEntry> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let found = read_journal(directory, "p", 10_000, |_| true).unwrap_or_default();
            if is_done(&found) {
                return found;
            }
            assert!(Instant::now() < deadline, "{found:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_journal_is_bounded_and_keeps_the_newest_lines() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::start_with_limit(directory.path(), 2000).unwrap();
        for number in 0..200 {
            journal.add("p", entry(number));
        }
        let found = wait_for(directory.path(), |found| {
            found
                .last()
                .is_some_and(|last| last.connection == Some(199))
        });
        assert!(found.len() > 10 && found.len() < 100);
        for path in journal_files(directory.path(), "p") {
            assert!(fs::metadata(path).unwrap().len() <= 2000);
        }
        let two = read_journal(directory.path(), "p", 2, |_| true).unwrap();
        assert_eq!(
            two.iter().map(|it| it.connection).collect::<Vec<_>>(),
            [Some(198), Some(199)]
        );
        assert!(
            read_journal(directory.path(), "other", 2, |_| true)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("journal");
        // A file where the directory should be: nothing can be written.
        fs::write(&directory, "").unwrap();
        let journal = Journal::start(&directory).unwrap();
        for number in 0..3 {
            journal.add("p", entry(number));
        }
        // Lines that come in the meantime are lost as well, so that the sum counts.
        fs::remove_file(&directory).unwrap();
        let mut sent = 3;
        let deadline = Instant::now() + Duration::from_secs(20);
        while journal_lines(&directory) == 0 {
            assert!(Instant::now() < deadline);
            journal.add("p", entry(sent));
            sent += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_complete = |found: &[JournalEntry]| {
            let lost: u64 = found.iter().filter_map(|entry| entry.count).sum();
            let written = found
                .iter()
                .filter(|entry| entry.event == JournalEvent::Opened);
            lost + written.count() as u64 == sent
        };
        wait_for(&directory, is_complete);
    }

    fn journal_lines(directory: &Path) -> usize {
        read_journal(directory, "p", 100, |_| true).map_or(0, |found| found.len())
    }
}
