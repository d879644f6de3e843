//! The progress of work that takes long, on a line of the terminal: what is done, since when, and how many bytes there
//! are already.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::terminal::ProgressLine;

const INTERVAL: Duration = Duration::from_millis(500);
/// A directory with more entries is not counted to its end.
const MAX_COUNTED_ENTRIES: usize = 200_000;

/// Does the work, and shows meanwhile how it goes. `directory` is where its files arrive.
pub(super) fn show<T: Send>(
    what: &str,
    directory: Option<&Path>,
    work: impl FnOnce() -> T + Send,
) -> T {
    let started = Instant::now();
    let mut line = ProgressLine::default();
    let (done, ended) = sync_channel(1);
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let result = work();
            // Received, or this function has panicked.
            let _ = done.send(());
            result
        });
        // A disconnected channel is the end, too.
        while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let bytes = directory.map(size);
            line.show_with_end(what, &describe(started.elapsed(), bytes));
        }
        line.clear();
        match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn describe(elapsed: Duration, bytes: Option<u64>) -> String {
    let seconds = elapsed.as_secs();
    match bytes {
        Some(bytes) if bytes >= 100_000 => format!(" {:.1} MB {seconds}s", bytes as f64 / 1e6),
        _ => format!(" {seconds}s"),
    }
}

/// The sizes of the files below a directory, which may change meanwhile.
fn size(directory: &Path) -> u64 {
    let mut pending = vec![directory.to_owned()];
    let (mut bytes, mut counted) = (0, 0);
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            counted += 1;
            if counted > MAX_COUNTED_ENTRIES {
                return bytes;
            }
            let Ok(found) = entry.metadata() else {
                continue;
            };
            if found.is_dir() {
                pending.push(entry.path());
            } else {
                bytes += found.len();
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_long_and_how_much() {
        assert_eq!(describe(Duration::from_millis(1500), None), " 1s");
        assert_eq!(
            describe(Duration::from_secs(61), Some(12_345_678)),
            " 12.3 MB 61s"
        );
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("below/file"), [0; 300]).unwrap();
        std::fs::write(directory.path().join("other"), [0; 20]).unwrap();
        assert_eq!(size(directory.path()), 320);
    }

    #[test]
    fn the_result_of_the_work_is_returned() {
        assert_eq!(show("work", None, || 7), 7);
    }
}
