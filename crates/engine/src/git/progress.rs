//! What git says while it works: progress for the caller, last words for an error.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;

use crate::{Call, Progress};

/// Longer lines are cut: they come from the remote side.
const LINE: usize = 400;
const REMEMBERED: usize = 3;

#[derive(Debug)]
pub(super) struct Transcript<'a> {
    stderr: Option<ChildStderr>,
    what: &'a str,
    call: &'a Call,
    line: Vec<u8>,
    last: Vec<String>,
    percent: Option<(String, u32)>,
}

impl<'a> Transcript<'a> {
    pub(super) fn of(stderr: Option<ChildStderr>, what: &'a str, call: &'a Call) -> Self {
        Self {
            stderr,
            what,
            call,
            line: Vec::new(),
            last: Vec::new(),
            percent: None,
        }
    }

    /// Reads until the end. Can be dropped and called again without losing anything.
    pub(super) async fn follow(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        while let Some(stderr) = &mut self.stderr {
            let read = stderr.read(&mut chunk).await?;
            if read == 0 {
                self.stderr = None;
                self.end_line();
            }
            for &byte in &chunk[..read] {
                // Git rewrites a progress line with carriage returns.
                match byte {
                    b'\n' | b'\r' => self.end_line(),
                    byte if self.line.len() < LINE => self.line.push(byte),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line))
            .trim()
            .to_owned();
        if line.is_empty() {
            return;
        }
        match percent(&line) {
            Some((step, percent)) => self.report(step, percent),
            None => {
                let line: String = line.chars().filter(|c| !c.is_control()).collect();
                self.last.push(line);
                let surplus = self.last.len().saturating_sub(REMEMBERED);
                self.last.drain(..surplus);
            }
        }
    }

    fn report(&mut self, step: &str, percent: u32) {
        let now = Some((step.to_owned(), percent));
        if self.percent != now {
            self.percent = now;
            self.call.progress(Progress {
                done: f64::from(percent),
                total: Some(100.0),
                message: format!("{}: {step}", self.what),
            });
        }
    }

    /// The end of what git said, in one line.
    pub(super) fn last_words(&self) -> String {
        match self.last.as_slice() {
            [] => "git gave no reason".to_owned(),
            lines => lines.join("; "),
        }
    }
}

/// `Receiving objects:  45% (9/20), 1 KiB` → (`Receiving objects`, 45).
fn percent(line: &str) -> Option<(&str, u32)> {
    let (step, rest) = line
        .strip_prefix("remote: ")
        .unwrap_or(line)
        .split_once(':')?;
    let (number, _) = rest.split_once('%')?;
    number
        .trim()
        .parse()
        .ok()
        .filter(|percent| *percent <= 100)
        .map(|percent| (step, percent))
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn progress_lines_are_told_from_messages() {
        let line = "Receiving objects:  45% (9/20), 1.00 KiB | 1.00 KiB/s";
        assert_eq!(percent(line), Some(("Receiving objects", 45)));
        assert_eq!(
            percent("remote: Counting objects: 100% (3/3), done."),
            Some(("Counting objects", 100))
        );
        assert_eq!(percent("fatal: repository 'x' not found"), None);
        assert_eq!(percent("weird: 999999% of nothing"), None);
    }
}
