//! Changes of files that the server has a program in the container make: on the standard input of
//! `oubliette-client apply-files DIR`, one after the other.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};

/// The subcommand of `oubliette-client`.
pub const APPLY_FILES: &str = "apply-files";
/// The limit of the Linux kernel.
const MAX_PATH_BYTES: u32 = 4096;

/// One change. Paths are relative, of any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    pub path: Vec<u8>,
    pub action: FileAction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileAction {
    /// Writes a file, or replaces what has its name. Without permission bits, a new file gets the usual
    /// ones, and one that exists keeps its own.
    Write {
        content: Vec<u8>,
        mode: Option<u16>,
    },
    /// Makes a symbolic link, or replaces what has its name.
    Link {
        target: Vec<u8>,
    },
    CreateDirectory,
    /// Removes anything but a directory.
    Remove,
    /// Removes a directory if it is empty.
    RemoveDirectory,
}

/// What was done, on the standard output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedFiles {
    pub applied: u64,
    /// Changes that failed, at most a hundred: the position of each, and why.
    pub failures: Vec<(u64, String)>,
}

/// The beginning of a change. `content_bytes` bytes follow it: the content of a file, or the target of a
/// link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChangeHead {
    pub path: Vec<u8>,
    pub kind: FileChangeKind,
    pub content_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileChangeKind {
    Write { mode: Option<u16> },
    Link,
    CreateDirectory,
    Remove,
    RemoveDirectory,
}

impl FileChangeHead {
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let (kind, mode) = match self.kind {
            FileChangeKind::Write { mode } => (b'W', mode),
            FileChangeKind::Link => (b'L', None),
            FileChangeKind::CreateDirectory => (b'D', None),
            FileChangeKind::Remove => (b'R', None),
            FileChangeKind::RemoveDirectory => (b'E', None),
        };
        bytes.push(kind);
        bytes.extend_from_slice(&mode.unwrap_or(u16::MAX).to_le_bytes());
        let path_bytes = u32::try_from(self.path.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&path_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.path);
        bytes.extend_from_slice(&self.content_bytes.to_le_bytes());
    }

    /// The next change; `None` at the end.
    pub fn decode(input: &mut impl Read) -> io::Result<Option<Self>> {
        let mut kind = [0];
        if input.read(&mut kind)? == 0 {
            return Ok(None);
        }
        let mut mode = [0; 2];
        input.read_exact(&mut mode)?;
        let mode = Some(u16::from_le_bytes(mode)).filter(|mode| *mode != u16::MAX);
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length > MAX_PATH_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a path is too long",
            ));
        }
        let path = read_exactly(input, u64::from(length))?;
        let mut content_bytes = [0; 8];
        input.read_exact(&mut content_bytes)?;
        let kind = match kind {
            [b'W'] => FileChangeKind::Write { mode },
            [b'L'] => FileChangeKind::Link,
            [b'D'] => FileChangeKind::CreateDirectory,
            [b'R'] => FileChangeKind::Remove,
            [b'E'] => FileChangeKind::RemoveDirectory,
            _ => {
                let error = "a change of a newer version";
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        };
        Ok(Some(Self {
            path,
            kind,
            content_bytes: u64::from_le_bytes(content_bytes),
        }))
    }

    /// Reads the target of a link, which follows the beginning of its change.
    pub fn read_target(&self, input: &mut impl Read) -> io::Result<Vec<u8>> {
        if self.content_bytes > u64::from(MAX_PATH_BYTES) {
            let error = "the target of a link is too long";
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        read_exactly(input, self.content_bytes)
    }
}

impl FileChange {
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let (kind, content): (_, &[u8]) = match &self.action {
            FileAction::Write { content, mode } => (FileChangeKind::Write { mode: *mode }, content),
            FileAction::Link { target } => (FileChangeKind::Link, target),
            FileAction::CreateDirectory => (FileChangeKind::CreateDirectory, &[]),
            FileAction::Remove => (FileChangeKind::Remove, &[]),
            FileAction::RemoveDirectory => (FileChangeKind::RemoveDirectory, &[]),
        };
        let head = FileChangeHead {
            path: self.path.clone(),
            kind,
            content_bytes: content.len() as u64,
        };
        head.encode(bytes);
        bytes.extend_from_slice(content);
    }
}

fn read_exactly(input: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.by_ref().take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_were_written() {
        let change = |path: &[u8], action| FileChange {
            path: path.to_vec(),
            action,
        };
        let write = |content: &[u8], mode| FileAction::Write {
            content: content.to_vec(),
            mode,
        };
        let changes = [
            change(b"a/b\xff", write(b"text\0", Some(0o755))),
            change(b"empty", write(b"", None)),
            change(
                b"link",
                FileAction::Link {
                    target: b"../x".to_vec(),
                },
            ),
            change(b"dir", FileAction::CreateDirectory),
            change(b"gone", FileAction::Remove),
            change(b"old dir", FileAction::RemoveDirectory),
        ];
        let mut bytes = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut bytes));
        let mut input = &bytes[..];
        for change in &changes {
            let head = FileChangeHead::decode(&mut input).unwrap().unwrap();
            let content = read_exactly(&mut input, head.content_bytes).unwrap();
            let action = match head.kind {
                FileChangeKind::Write { mode } => FileAction::Write { content, mode },
                FileChangeKind::Link => FileAction::Link { target: content },
                FileChangeKind::CreateDirectory => FileAction::CreateDirectory,
                FileChangeKind::Remove => FileAction::Remove,
                FileChangeKind::RemoveDirectory => FileAction::RemoveDirectory,
            };
            let path = head.path;
            assert_eq!(FileChange { path, action }, *change);
        }
        assert_eq!(FileChangeHead::decode(&mut input).unwrap(), None);
        let mut cut = &bytes[..12];
        assert!(FileChangeHead::decode(&mut cut).is_err());
    }
}
