//! What a backup or a restore left out.

use std::fmt::Display;

use crate::terminal::printable;

/// How many are named; the rest is counted.
const MAX_NAMED: usize = 20;
const MAX_SHOWN_PATH_CHARS: usize = 300;

#[derive(Debug, Default)]
pub(super) struct Skipped {
    named: Vec<String>,
    count: u64,
    /// Sockets, pipes and devices.
    without_content: u64,
}

impl Skipped {
    pub(super) fn add(&mut self, path: &[u8], reason: impl Display) {
        self.count += 1;
        if self.named.len() < MAX_NAMED {
            let path = String::from_utf8_lossy(path);
            let path = match path.char_indices().nth(MAX_SHOWN_PATH_CHARS) {
                Some((end, _)) => format!("{}… ({} bytes)", &path[..end], path.len()),
                None => path.into_owned(),
            };
            let line = printable(&format!("{path}: {reason}"));
            self.named.push(line.replace('\n', " "));
        }
    }

    pub(super) fn add_without_content(&mut self) {
        self.without_content += 1;
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn print(&self) {
        if self.count > 0 {
            eprintln!("Left out {}:", self.count);
        }
        for line in &self.named {
            eprintln!("  {line}");
        }
        let unnamed = self.count - self.named.len() as u64;
        if unnamed > 0 {
            eprintln!("  and {unnamed} more");
        }
        if self.without_content > 0 {
            let count = self.without_content;
            eprintln!("Left out {count} sockets, pipes or devices, which have no content.");
        }
    }
}
