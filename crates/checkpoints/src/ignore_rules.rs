//! The rules of `.gitignore` files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// Patterns become automata; more of them than people write would take time and memory. Each counts as one, and
/// each of its wildcards as another.
const MAX_FILE_WEIGHT: usize = 10_000;

/// The rules of one file, for the directory that has it.
#[derive(Debug)]
pub(crate) struct IgnoreRules {
    rules: Gitignore,
    /// What its patterns count.
    pub(crate) weight: usize,
}

impl IgnoreRules {
    /// Leaves out lines that are not patterns, as git does.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let mut builder = GitignoreBuilder::new("");
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut weight = 0;
        for line in text.split(|byte| *byte == b'\n') {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let wildcards = line.iter().filter(|byte| b"*?[{".contains(byte));
            weight += 1 + wildcards.count();
            if weight > MAX_FILE_WEIGHT {
                break;
            }
            if let Ok(line) = std::str::from_utf8(line) {
                let _ = builder.add_line(None, line.trim_end_matches('\r'));
            }
        }
        let rules = builder.build().unwrap_or_else(|_| Gitignore::empty());
        Self { rules, weight }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// The rules that hold in a directory: those of the directories above it, from the root of the scan.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleChain {
    /// Each with the number of bytes of the path that lead to its directory.
    rules: Vec<(usize, Arc<IgnoreRules>)>,
}

impl RuleChain {
    pub(crate) fn push(&mut self, directory_bytes: usize, rules: Arc<IgnoreRules>) {
        if !rules.is_empty() {
            self.rules.push((directory_bytes, rules));
        }
    }

    /// Whether git would ignore a path below the root, none of whose directories is ignored. The deepest
    /// file with a matching rule decides.
    pub(crate) fn ignores(&self, path: &[u8], is_directory: bool) -> bool {
        for (directory_bytes, rules) in self.rules.iter().rev() {
            let Some(below) = path.get(*directory_bytes..) else {
                continue;
            };
            let below = Path::new(OsStr::from_bytes(below));
            match rules.rules.matched(below, is_directory) {
                Match::None => {}
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
            }
        }
        false
    }
}
