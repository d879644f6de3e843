//! Where connections wait that have not said who they are. There is room for some; when more come,
//! those leave that have been silent for longest, so that who has something to say gets in.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Agents that begin at once have three streams coming for each of them.
const ROOM: usize = 192;
/// Lines at once that are longer than a few pages; each may be of many megabytes.
const LONG_LINES: usize = 1;

#[derive(Debug)]
pub(super) struct Hall {
    waiting: Mutex<Waiting>,
    /// Who reads a long line holds one of these.
    pub(super) long_lines: Semaphore,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    strangers: BTreeMap<u64, CancellationToken>,
}

/// A connection in the hall; dropped when it leaves.
#[derive(Debug)]
pub(super) struct Stranger<'a> {
    hall: &'a Hall,
    number: u64,
    sent_away: CancellationToken,
}

impl Default for Hall {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            long_lines: Semaphore::new(LONG_LINES),
        }
    }
}

impl Hall {
    pub(super) fn enter(&self) -> Stranger<'_> {
        let mut waiting = self.waiting();
        if waiting.strangers.len() >= ROOM
            && let Some((_, oldest)) = waiting.strangers.pop_first()
        {
            oldest.cancel();
        }
        let number = waiting.next;
        waiting.next += 1;
        let sent_away = CancellationToken::new();
        waiting.strangers.insert(number, sent_away.clone());
        Stranger {
            hall: self,
            number,
            sent_away,
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stranger<'_> {
    /// Returns when others need the place more.
    pub(super) async fn must_go(&self) {
        self.sent_away.cancelled().await;
    }
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        self.hall.waiting().strangers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_when_there_is_no_room() {
        let hall = Hall::default();
        let mut all: Vec<_> = (0..ROOM).map(|_| hall.enter()).collect();
        assert!(
            all.iter()
                .all(|stranger| !stranger.sent_away.is_cancelled())
        );
        drop(all.remove(0));
        all.push(hall.enter());
        assert!(!all[0].sent_away.is_cancelled(), "there was room");
        let last = hall.enter();
        assert!(all[0].sent_away.is_cancelled());
        assert!(!all[1].sent_away.is_cancelled() && !last.sent_away.is_cancelled());
        drop(all);
        drop(last);
        assert!(hall.waiting().strangers.is_empty());
    }
}
