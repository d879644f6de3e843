//! The calls that are open at a provider, in a file: if the gate is killed, the next one charges them.
//!
//! What such a call has cost is not known. It is charged with what was reserved for it, so that a budget holds.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::charges::{Charge, ChargeWriter};
use super::meter::TokenCounts;
use super::provider::Provider;

const FILE_NAME: &str = "open-calls";
/// After this size, the file is written again with what is open.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A call at a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenCall {
    pub(crate) name: String,
    pub(crate) session: String,
    pub(crate) provider: Provider,
    pub(crate) model: String,
    /// What was reserved for it.
    pub(crate) tokens: TokenCounts,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Begun(OpenCall),
    Ended(String),
}

/// The file of the gate that runs; there is none before the first call. It is not synced: it is for a killed gate, not
/// for a machine without power.
#[derive(Debug)]
pub(crate) struct OpenCallFile {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
    open: BTreeMap<String, OpenCall>,
}

impl OpenCallFile {
    /// The file of a new gate, with the calls that could not be charged yet.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE_NAME);
        let mut created = Self {
            file: None,
            bytes: 0,
            open: read(&path)?,
            path,
        };
        if created.open.is_empty() {
            created.remove()?;
        } else {
            created.write_again()?;
        }
        Ok(created)
    }

    /// A call that is not in the file must not be sent: it would cost nothing if the gate was killed.
    pub(crate) fn begin(&mut self, call: &OpenCall) -> io::Result<()> {
        self.add(&Line::Begun(call.clone()))?;
        self.open.insert(call.name.clone(), call.clone());
        Ok(())
    }

    pub(crate) fn end(&mut self, name: &str) {
        self.open.remove(name);
        if let Err(error) = self.add(&Line::Ended(name.to_owned())) {
            // The next gate finds the call in the journal of charges, too.
            eprintln!("the file of open calls cannot be written: {error}");
        }
    }

    /// Removes the file if no call is open.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        if !self.open.is_empty() {
            return Ok(());
        }
        self.file = None;
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn add(&mut self, line: &Line) -> io::Result<()> {
        if self.file.is_none() || self.bytes > MAX_FILE_BYTES {
            self.write_again()?;
        }
        let line = to_line(line)?;
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        if let Err(error) = file.write_all(&line) {
            // A part of a line would make the next one unreadable.
            if file.set_len(self.bytes).is_err() {
                self.file = None;
            }
            return Err(error);
        }
        self.bytes += line.len() as u64;
        Ok(())
    }

    fn write_again(&mut self) -> io::Result<()> {
        let mut lines = Vec::new();
        for call in self.open.values() {
            lines.extend(to_line(&Line::Begun(call.clone()))?);
        }
        let draft = draft_of(&self.path);
        let mut file = new_file(&draft)?;
        file.write_all(&lines)?;
        fs::rename(&draft, &self.path)?;
        self.file = Some(file);
        self.bytes = lines.len() as u64;
        Ok(())
    }
}

fn to_line(line: &Line) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn draft_of(path: &Path) -> PathBuf {
    path.with_extension("draft")
}

fn new_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    // Appends, so that a file which was shortened has no hole.
    options.append(true).create(true).mode(0o600);
    let file = options.open(path)?;
    file.set_len(0)?;
    Ok(file)
}

/// The calls that a file says are open, by name.
fn read(path: &Path) -> io::Result<BTreeMap<String, OpenCall>> {
    let content = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        content => content?,
    };
    let mut open = BTreeMap::new();
    for line in content.split(|byte| *byte == b'\n') {
        // The last one may be a part.
        match serde_json::from_slice(line) {
            Ok(Line::Begun(call)) => drop(open.insert(call.name.clone(), call)),
            Ok(Line::Ended(name)) => drop(open.remove(&name)),
            Err(_) => {}
        }
    }
    Ok(open)
}

/// Charges the calls that a killed gate has left open, each once, and empties their file.
pub(crate) fn charge_left_calls(directory: &Path, journal: &mut ChargeWriter) -> io::Result<()> {
    let path = directory.join(FILE_NAME);
    let mut open = read(&path)?;
    if open.is_empty() {
        return Ok(());
    }
    // The gate may have been killed between the charge and the end in the file.
    for charge in journal.last_charges()? {
        charge.call.and_then(|name| open.remove(&name));
    }
    let mut lines = Vec::new();
    for call in open.into_values() {
        let charge = Charge {
            at: Timestamp::now(),
            session: call.session,
            provider: call.provider,
            model: call.model,
            answered_by: None,
            tokens: call.tokens,
            is_estimate: true,
            call: Some(call.name),
        };
        serde_json::to_writer(&mut lines, &charge)?;
        lines.push(b'\n');
    }
    if !lines.is_empty() {
        journal.append(&lines)?;
    }
    fs::remove_file(&path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::charges::read_charges;

    fn call(name: &str) -> OpenCall {
        OpenCall {
            name: name.to_owned(),
            session: "s".to_owned(),
            provider: Provider::Gemini,
            model: "m".to_owned(),
            tokens: TokenCounts {
                input: 3,
                output: 4,
                ..TokenCounts::default()
            },
        }
    }

    fn start_gate(directory: &Path) -> (ChargeWriter, OpenCallFile) {
        let mut journal = ChargeWriter::open(directory).unwrap();
        charge_left_calls(directory, &mut journal).unwrap();
        (journal, OpenCallFile::create(directory).unwrap())
    }

    fn charged(directory: &Path) -> Vec<Option<String>> {
        let (charges, _) = read_charges(directory, 0).unwrap();
        charges.into_iter().map(|charge| charge.call).collect()
    }

    #[test]
    fn calls_of_a_killed_gate_are_charged_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (mut journal, mut file) = start_gate(path);
        for name in ["ended", "left", "charged"] {
            file.begin(&call(name)).unwrap();
        }
        file.end("ended");
        // Killed after the charge, and in a line of the file.
        let own = Charge {
            at: Timestamp::now(),
            session: "s".to_owned(),
            provider: Provider::Gemini,
            model: "m".to_owned(),
            answered_by: None,
            tokens: TokenCounts::default(),
            is_estimate: false,
            call: Some("charged".to_owned()),
        };
        let mut line = serde_json::to_vec(&own).unwrap();
        line.push(b'\n');
        journal.append(&line).unwrap();
        let part = File::options().append(true).open(path.join(FILE_NAME));
        part.unwrap().write_all(b"{\"begun\":{").unwrap();
        drop((journal, file));
        let expected = [Some("charged".to_owned()), Some("left".to_owned())];
        for _ in 0..3 {
            drop(start_gate(path));
            assert_eq!(charged(path), expected);
        }
        let (charges, _) = read_charges(path, 0).unwrap();
        assert_eq!(charges[1].tokens, call("left").tokens);
        assert!(charges[1].is_estimate);
    }

    #[test]
    fn the_file_does_not_grow_for_ever_and_keeps_what_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let (_, mut file) = start_gate(directory.path());
        file.begin(&call("first")).unwrap();
        for number in 0..20_000 {
            let name = number.to_string();
            file.begin(&call(&name)).unwrap();
            file.end(&name);
        }
        let path = directory.path().join(FILE_NAME);
        let length = fs::metadata(&path).unwrap().len();
        assert!(length < 2 * MAX_FILE_BYTES, "{length}");
        assert_eq!(
            read(&path).unwrap().into_keys().collect::<Vec<_>>(),
            ["first"]
        );
    }

    #[test]
    fn without_open_calls_there_is_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        let (_, mut file) = start_gate(directory.path());
        assert!(!path.exists());
        file.begin(&call("one")).unwrap();
        file.remove().unwrap();
        assert!(path.exists(), "a call is open");
        file.end("one");
        file.remove().unwrap();
        assert!(!path.exists());
        file.begin(&call("two")).unwrap();
        assert!(read(&path).unwrap().contains_key("two"));
    }

    #[test]
    fn a_file_that_cannot_be_written_again_keeps_what_it_has() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        let (_, mut file) = start_gate(directory.path());
        file.begin(&call("one")).unwrap();
        // Nothing can be written there.
        fs::create_dir(draft_of(&path)).unwrap();
        file.bytes = MAX_FILE_BYTES + 1;
        assert!(file.begin(&call("two")).is_err());
        assert_eq!(
            read(&path).unwrap().into_keys().collect::<Vec<_>>(),
            ["one"]
        );
        fs::remove_dir(draft_of(&path)).unwrap();
        file.begin(&call("three")).unwrap();
        assert_eq!(
            read(&path).unwrap().into_keys().collect::<Vec<_>>(),
            ["one", "three"]
        );
    }
}
