//! The output of git: progress for the caller, and the last lines for an error.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;

use crate::{Call, Progress};

/// Longer lines are cut, because they come from the remote.
const MAX_LINE_BYTES: usize = 400;
const KEPT_LINES: usize = 3;

#[derive(Debug)]
pub(super) struct GitOutput<'a> {
    stderr: Option<ChildStderr>,
    what: &'a str,
    call: &'a Call,
    line: Vec<u8>,
    last_lines: Vec<String>,
    percent: Option<(String, u32)>,
}

impl<'a> GitOutput<'a> {
    pub(super) fn new(stderr: Option<ChildStderr>, what: &'a str, call: &'a Call) -> Self {
        Self {
            stderr,
            what,
            call,
            line: Vec::new(),
            last_lines: Vec::new(),
            percent: None,
        }
    }

    /// Reads until the end of the output. Cancel-safe: no output is lost when it is called again.
    pub(super) async fn read_to_end(&mut self) -> io::Result<()> {
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
                    byte if self.line.len() < MAX_LINE_BYTES => self.line.push(byte),
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
        match parse_percent(&line) {
            Some((step, percent)) => self.report(step, percent),
            None => {
                let line: String = line.chars().filter(|c| !c.is_control()).collect();
                self.last_lines.push(line);
                let excess = self.last_lines.len().saturating_sub(KEPT_LINES);
                self.last_lines.drain(..excess);
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

    /// The last lines of the output, joined to one.
    pub(super) fn last_lines(&self) -> String {
        match self.last_lines.as_slice() {
            [] => "git gave no reason".to_owned(),
            lines => lines.join("; "),
        }
    }
}

/// `Receiving objects:  45% (9/20), 1 KiB` → (`Receiving objects`, 45).
fn parse_percent(line: &str) -> Option<(&str, u32)> {
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
    use super::parse_percent;

    #[test]
    fn progress_lines_are_distinguished_from_messages() {
        let line = "Receiving objects:  45% (9/20), 1.00 KiB | 1.00 KiB/s";
        assert_eq!(parse_percent(line), Some(("Receiving objects", 45)));
        assert_eq!(
            parse_percent("remote: Counting objects: 100% (3/3), done."),
            Some(("Counting objects", 100))
        );
        assert_eq!(parse_percent("fatal: repository 'x' not found"), None);
        assert_eq!(parse_percent("weird: 999999% of nothing"), None);
    }
}
