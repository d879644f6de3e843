//! A conversation on disk: one JSON line for each prompt and update, written before it is sent.
//!
//! A process that is killed leaves at most an incomplete last line, which is skipped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use agent_client_protocol::v1::schema::SessionUpdate;
use serde::{Deserialize, Serialize};

const MAX_ID_BYTES: usize = 64;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry {
    Prompt(String),
    Update(Box<SessionUpdate>),
    Mode(String),
    Cost(f64),
}

#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
}

/// The state of a session at the end of its journal.
#[derive(Debug, Default)]
pub(crate) struct JournalSummary {
    pub(crate) turns: usize,
    pub(crate) mode: Option<String>,
    pub(crate) cost_usd: f64,
}

impl Journal {
    /// Creates the journal of a new session.
    pub(crate) fn create(id: &str) -> io::Result<Self> {
        let path = journal_path(id)?;
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(&path)?;
        Ok(Self { file, path })
    }

    /// Opens the journal of an existing session.
    pub(crate) fn open(id: &str) -> io::Result<Self> {
        let path = journal_path(id)?;
        let mut file = OpenOptions::new().read(true).append(true).open(&path)?;
        let mut last = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        if last != [b'\n'] {
            // Ends the incomplete line of a process that was killed.
            file.write_all(b"\n")?;
        }
        Ok(Self { file, path })
    }

    pub(crate) fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }

    /// The entries that can be read, in order.
    pub(crate) fn entries(&self) -> io::Result<impl Iterator<Item = Entry> + use<>> {
        let lines = BufReader::new(File::open(&self.path)?).split(b'\n');
        Ok(lines
            .map_while(Result::ok)
            .filter_map(|line| serde_json::from_slice(&line).ok()))
    }

    pub(crate) fn summary(&self) -> io::Result<JournalSummary> {
        let mut summary = JournalSummary::default();
        for entry in self.entries()? {
            match entry {
                Entry::Prompt(_) => summary.turns += 1,
                Entry::Mode(mode) => summary.mode = Some(mode),
                Entry::Cost(usd) => summary.cost_usd += usd,
                Entry::Update(_) => {}
            }
        }
        Ok(summary)
    }
}

/// The path of a session's journal. The id comes from the client and must not leave the directory.
fn journal_path(id: &str) -> io::Result<PathBuf> {
    let is_safe = !id.is_empty()
        && id.len() <= MAX_ID_BYTES
        && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !is_safe {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    let home = std::env::var_os("HOME")
        .filter(|home| !home.is_empty())
        .ok_or_else(|| io::Error::other("HOME is not set"))?;
    Ok(Path::new(&home)
        .join(".oubliette-demo/sessions")
        .join(format!("{id}.jsonl")))
}
