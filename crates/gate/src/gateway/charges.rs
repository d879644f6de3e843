//! What calls of models took: an append-only journal of the gate, which the server reads by byte offsets.
//!
//! A line is on the disk before the agent gets the end of its response, so that neither a killed server nor a killed
//! gate loses it. Offsets only grow, over files and over the life of the data directory: the server stores how far it
//! has read together with what it has read, and so counts each line once.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use super::meter::TokenCounts;
use super::open_calls::charge_left_calls;
use super::provider::Provider;
use super::reservations::ReservedCall;

/// The directory of the journal in the data directory.
pub const CHARGES_DIR: &str = "charges";
/// After this size, the next line begins a new file.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Each open connection has at most one.
const MAX_QUEUED_CHARGES: usize = 16_384;
const MAX_BATCH_CHARGES: usize = 512;
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Of what the server reads at once.
const MAX_READ_BYTES: u64 = 1 << 20;

/// What one call of a model took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    pub at: Timestamp,
    pub session: String,
    pub provider: Provider,
    /// As the agent named it; empty if it named none.
    pub model: String,
    /// The model that has answered, if it has another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
    #[serde(flatten)]
    pub tokens: TokenCounts,
    /// Whether tokens are estimated from sizes, because the response was cut or did not say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_estimate: bool,
    /// What a call with a reservation is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
}

/// A charge, and who waits until it is on the disk.
#[derive(Debug)]
struct Queued {
    line: Vec<u8>,
    written: oneshot::Sender<()>,
    /// Ends when the charge is on the disk.
    reserved: Option<ReservedCall>,
}

/// Takes charges for the thread that writes them. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ChargeJournal {
    queue: mpsc::Sender<Queued>,
    end: watch::Receiver<u64>,
}

impl ChargeJournal {
    /// Starts the thread, which ends with the last clone.
    pub(crate) fn start(directory: &Path) -> io::Result<Self> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
        let mut writer = ChargeWriter::open(directory)?;
        if let Err(error) = charge_left_calls(directory, &mut writer) {
            eprintln!("calls that were open in an earlier gate cannot be charged: {error}");
        }
        let (queue, queued) = mpsc::channel(MAX_QUEUED_CHARGES);
        let (ended, end) = watch::channel(writer.end());
        std::thread::Builder::new()
            .name("charges".to_owned())
            .spawn(move || writer.run(queued, &ended))?;
        Ok(Self { queue, end })
    }

    /// Adds a charge. The receiver gets its message when the charge is on the disk.
    pub(crate) fn add(
        &self,
        mut charge: Charge,
        reserved: Option<ReservedCall>,
    ) -> oneshot::Receiver<()> {
        charge.call = reserved.as_ref().map(ReservedCall::name);
        let (written, receiver) = oneshot::channel();
        match serde_json::to_vec(&charge) {
            Ok(mut line) => {
                line.push(b'\n');
                let queued = Queued {
                    line,
                    written,
                    reserved,
                };
                if let Err(error) = self.queue.try_send(queued) {
                    eprintln!("too many charges wait to be written; one is lost");
                    if let Some(reserved) = error.into_inner().reserved {
                        reserved.keep_open();
                    }
                }
            }
            Err(error) => eprintln!("a charge cannot be written: {error}"),
        }
        receiver
    }

    /// Changes whenever there is more to read.
    pub(crate) fn end(&self) -> watch::Receiver<u64> {
        self.end.clone()
    }
}

pub(crate) struct ChargeWriter {
    directory: PathBuf,
    file: File,
    /// The offset at which the file begins.
    base: u64,
    length: u64,
}

impl ChargeWriter {
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let last = charge_files(directory)?.pop();
        let (base, file) = match last {
            Some((base, path)) => (base, open_file(&path)?),
            // Later than every offset before, also if someone removed the files.
            None => {
                let base = u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0);
                (base, create_file(directory, base)?)
            }
        };
        let length = whole_lines(&file)?;
        // A gate that was killed may have left a part of a line.
        file.set_len(length)?;
        Ok(Self {
            directory: directory.to_owned(),
            file,
            base,
            length,
        })
    }

    fn end(&self) -> u64 {
        self.base + self.length
    }

    fn run(&mut self, mut queued: mpsc::Receiver<Queued>, end: &watch::Sender<u64>) {
        let mut batch = Vec::new();
        while queued.blocking_recv_many(&mut batch, MAX_BATCH_CHARGES) > 0 {
            let lines: Vec<u8> = batch
                .iter()
                .flat_map(|it| it.line.iter().copied())
                .collect();
            let mut has_failed = false;
            while let Err(error) = self.append(&lines) {
                // What was spent must not be lost; agents wait meanwhile.
                if !has_failed {
                    eprintln!("charges cannot be written, trying again: {error}");
                }
                has_failed = true;
                std::thread::sleep(WRITE_RETRY_INTERVAL);
            }
            end.send_replace(self.end());
            for one in batch.drain(..) {
                if let Some(reserved) = one.reserved {
                    reserved.set_charged(self.end());
                }
                // A connection that broke waits for nothing.
                let _ = one.written.send(());
            }
        }
    }

    /// The charges of the file that is written now.
    pub(crate) fn last_charges(&self) -> io::Result<Vec<Charge>> {
        let mut content = Vec::new();
        (&self.file).seek(SeekFrom::Start(0))?;
        (&self.file).read_to_end(&mut content)?;
        let lines = content.split(|byte| *byte == b'\n');
        let charges = lines.filter_map(|line| serde_json::from_slice(line).ok());
        Ok(charges.collect())
    }

    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.length >= MAX_FILE_BYTES {
            let base = self.end();
            self.file = create_file(&self.directory, base)?;
            (self.base, self.length) = (base, 0);
        }
        let written = self
            .file
            .write_all(lines)
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += lines.len() as u64;
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

fn create_file(directory: &Path, base: u64) -> io::Result<File> {
    let file = open_file(&directory.join(format!("{base:020}.jsonl")))?;
    File::open(directory)?.sync_all()?;
    Ok(file)
}

/// How many bytes of a file are whole lines.
fn whole_lines(mut file: &File) -> io::Result<u64> {
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut content)?;
    let end = content.iter().rposition(|byte| *byte == b'\n');
    Ok(end.map_or(0, |end| end as u64 + 1))
}

/// The files of the journal with the offsets at which they begin, in order.
fn charge_files(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if let Some(base) = stem.and_then(|stem| stem.parse().ok())
            && path.extension().is_some_and(|end| end == "jsonl")
        {
            files.push((base, path));
        }
    }
    files.sort();
    Ok(files)
}

/// Some charges of the journal after an offset, and the offset after them. There are none when the end is reached.
pub fn read_charges(directory: &Path, after: u64) -> io::Result<(Vec<Charge>, u64)> {
    let files = charge_files(directory)?;
    let mut charges = Vec::new();
    for (index, (base, path)) in files.iter().enumerate() {
        let next = files.get(index + 1).map(|(next, _)| *next);
        if next.is_some_and(|next| next <= after) {
            continue;
        }
        let from = after.max(*base);
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from - base))?;
        let mut content = Vec::new();
        (&file).take(MAX_READ_BYTES).read_to_end(&mut content)?;
        let Some(end) = content.iter().rposition(|byte| *byte == b'\n') else {
            continue;
        };
        // The gate may not have synced them yet, and what was counted must not be lost without power.
        file.sync_data()?;
        let lines = content[..end].split(|byte| *byte == b'\n');
        // A line of a later version is skipped.
        charges.extend(lines.filter_map(|line| serde_json::from_slice(line).ok()));
        return Ok((charges, from + end as u64 + 1));
    }
    Ok((charges, after))
}

/// Removes the files that have nothing after an offset, but not the last one.
pub fn remove_read_charges(directory: &Path, after: u64) -> io::Result<()> {
    let files = charge_files(directory)?;
    for pair in files.windows(2) {
        let (next, _) = pair[1];
        if next <= after {
            fs::remove_file(&pair[0].1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(number: u64) -> Charge {
        Charge {
            at: Timestamp::UNIX_EPOCH,
            session: "s".to_owned(),
            provider: Provider::OpenAi,
            model: "m".to_owned(),
            answered_by: None,
            tokens: TokenCounts {
                input: number,
                ..TokenCounts::default()
            },
            is_estimate: false,
            call: None,
        }
    }

    fn read_all(directory: &Path, mut after: u64) -> (Vec<u64>, u64) {
        let mut numbers = Vec::new();
        loop {
            let (charges, next) = read_charges(directory, after).unwrap();
            if next == after {
                return (numbers, next);
            }
            numbers.extend(charges.iter().map(|charge| charge.tokens.input));
            after = next;
        }
    }

    #[tokio::test]
    async fn charges_are_read_once_over_files_and_gates() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("charges");
        assert_eq!(read_charges(&path, 0).unwrap(), (Vec::new(), 0));
        let journal = ChargeJournal::start(&path).unwrap();
        for number in 0..3 {
            journal.add(charge(number), None).await.unwrap();
        }
        let (numbers, end) = read_all(&path, 0);
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(*journal.end().borrow(), end);
        // A gate that was killed in a line.
        let (_, last) = charge_files(&path).unwrap().pop().unwrap();
        open_file(&last).unwrap().write_all(b"{\"at\":").unwrap();
        assert_eq!(read_all(&path, end), (Vec::new(), end));
        let mut writer = ChargeWriter::open(&path).unwrap();
        let line = |number| {
            let mut line = serde_json::to_vec(&charge(number)).unwrap();
            line.push(b'\n');
            line
        };
        writer.append(&line(3)).unwrap();
        writer.length = MAX_FILE_BYTES;
        writer.file.set_len(MAX_FILE_BYTES).unwrap();
        writer.append(&line(4)).unwrap();
        assert_eq!(charge_files(&path).unwrap().len(), 2);
        let after_first = charge_files(&path).unwrap()[1].0;
        let (numbers, end) = read_all(&path, after_first);
        assert_eq!(numbers, [4]);
        remove_read_charges(&path, end).unwrap();
        assert_eq!(charge_files(&path).unwrap().len(), 1);
    }

    #[tokio::test]
    async fn offsets_go_on_growing_when_someone_has_removed_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let mut after = 0;
        for number in 0..3 {
            let journal = ChargeJournal::start(directory.path()).unwrap();
            journal.add(charge(number), None).await.unwrap();
            let (numbers, end) = read_all(directory.path(), after);
            assert_eq!(numbers, [number]);
            after = end;
            for (_, path) in charge_files(directory.path()).unwrap() {
                fs::remove_file(path).unwrap();
            }
        }
    }
}
