//! A conversation on disk: one JSON line for everything that was said, written before it is sent.
//!
//! A process that is killed leaves at most a torn last line, which is skipped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use agent_client_protocol::v1::schema::SessionUpdate;
use serde::{Deserialize, Serialize};

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

/// What a journal comes to.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) turns: usize,
    pub(crate) mode: Option<String>,
    pub(crate) cost: f64,
}

impl Journal {
    /// Begins the journal of a new session.
    pub(crate) fn create(id: &str) -> io::Result<Self> {
        let path = path(id)?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(&path)?;
        Ok(Self { file, path })
    }

    /// Opens the journal of a session that was before.
    pub(crate) fn open(id: &str) -> io::Result<Self> {
        let path = path(id)?;
        let mut file = OpenOptions::new().read(true).append(true).open(&path)?;
        let mut last = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        if last != [b'\n'] {
            // So that the next entry is not joined to a torn one.
            file.write_all(b"\n")?;
        }
        Ok(Self { file, path })
    }

    pub(crate) fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }

    /// Everything that can be read, in order.
    pub(crate) fn entries(&self) -> io::Result<impl Iterator<Item = Entry> + use<>> {
        let lines = BufReader::new(File::open(&self.path)?).split(b'\n');
        Ok(lines
            .map_while(Result::ok)
            .filter_map(|line| serde_json::from_slice(&line).ok()))
    }

    pub(crate) fn story(&self) -> io::Result<Story> {
        let mut story = Story::default();
        for entry in self.entries()? {
            match entry {
                Entry::Prompt(_) => story.turns += 1,
                Entry::Mode(mode) => story.mode = Some(mode),
                Entry::Cost(usd) => story.cost += usd,
                Entry::Update(_) => {}
            }
        }
        Ok(story)
    }
}

/// Where the journal of a session is. The id comes from the client and must not lead elsewhere.
fn path(id: &str) -> io::Result<PathBuf> {
    let safe = !id.is_empty()
        && id.len() <= 64
        && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !safe {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| io::Error::other("HOME is not set"))?;
    Ok(Path::new(&home)
        .join(".oubliette-demo/sessions")
        .join(format!("{id}.jsonl")))
}
