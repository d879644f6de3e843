//! What a server in the background reports to the command that started it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Above the standard descriptors.
const FIRST_FREE_DESCRIPTOR: i32 = 3;

/// A server that is ready.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) pid: u32,
    /// Whether another process had started it.
    pub(crate) was_running: bool,
    /// Why it listens only on its socket, if it does.
    #[serde(default)]
    pub(crate) no_url_reason: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Ready(Report),
    Failed(String),
}

impl Report {
    /// The report in a line; none if the line is not whole.
    pub(super) fn parse(line: &str) -> Option<Result<Self, Failure>> {
        match serde_json::from_str(line.strip_suffix('\n')?).ok()? {
            Message::Ready(report) => Some(Ok(report)),
            Message::Failed(sentence) => Some(Err(Failure::new(sentence))),
        }
    }
}

/// The command that waits for this server, which is not its child any more when the command ends.
#[derive(Debug)]
pub(crate) struct Starter {
    pipe: File,
}

impl Starter {
    /// Leaves the session of the terminal, and takes the standard output for reports: no process that this
    /// one starts must hold it.
    pub(crate) fn detach() -> io::Result<Self> {
        let pipe: OwnedFd =
            rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), FIRST_FREE_DESCRIPTOR)?;
        let null = File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        // It fails only for the first process of a group, which has no terminal then or keeps it.
        let _ = rustix::process::setsid();
        Ok(Self { pipe: pipe.into() })
    }

    pub(crate) fn report(self, outcome: &Result<Report, Failure>) {
        let message = match outcome {
            Ok(report) => Message::Ready(report.clone()),
            Err(Failure::Failed(sentence)) => Message::Failed(sentence.clone()),
            Err(_) => return,
        };
        let line = serde_json::to_string(&message).unwrap_or_default();
        // The command may have been killed.
        let _ = (&self.pipe).write_all(format!("{line}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_whole_line() {
        let ready = "{\"ready\":{\"pid\":7,\"was_running\":false}}";
        assert!(
            Report::parse(ready).is_none(),
            "the server died in the middle"
        );
        let report = Report::parse(&format!("{ready}\n")).unwrap().unwrap();
        assert_eq!(report.pid, 7);
        let failed = Report::parse("{\"failed\":\"no\"}\n").unwrap();
        assert!(matches!(failed, Err(Failure::Failed(sentence)) if sentence == "no"));
        assert!(Report::parse("").is_none());
    }
}
