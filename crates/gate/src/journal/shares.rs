//! How much of a journal each container may write.
//!
//! The first lines about a host are written as they are; those that repeat them within a minute become one line with a count. A
//! container that connects to ever other hosts writes what its share permits, and then one line a minute that says how many
//! are missing: a journal shows that something was hidden, and what was there before stays.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{JournalEntry, JournalEvent};

/// How long equal lines are counted together.
const WINDOW: Duration = Duration::from_secs(60);
/// Equal lines that are written before they are counted, while the share is more than half full.
const MAX_EQUAL_LINES: u32 = 20;
/// Lines that a container may write at once. Together they are less than half of a file.
const MAX_SAVED_LINES: f64 = 2000.0;
const LINES_PER_SECOND: f64 = 0.1;
/// Containers whose share is remembered.
const MAX_SHARES: usize = 4096;

/// The shares of all containers, by project and container.
#[derive(Debug, Default)]
pub(super) struct Shares {
    shares: HashMap<(String, String), Share>,
}

#[derive(Debug)]
struct Share {
    /// Lines that may still be written.
    saved: f64,
    saved_at: Instant,
    window_start: Instant,
    repeats: HashMap<LineKind, Repeats>,
    /// Lines of this window that were not written.
    missing: u64,
}

/// What equal lines have in common.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LineKind {
    event: JournalEvent,
    host: String,
    port: Option<u16>,
    rule: String,
}

#[derive(Debug, Default)]
struct Repeats {
    written: u32,
    /// The last line that was held back, with the count and the bytes of all of them.
    held: Option<JournalEntry>,
}

impl Shares {
    /// The line if it is to be written now.
    pub(super) fn admit(
        &mut self,
        project: &str,
        entry: JournalEntry,
        now: Instant,
    ) -> Option<JournalEntry> {
        let key = (project.to_owned(), entry.container.clone());
        if self.shares.len() >= MAX_SHARES && !self.shares.contains_key(&key) {
            self.shares.retain(|_, share| !share.is_idle(now));
        }
        let share = self.shares.entry(key).or_insert_with(|| Share::new(now));
        share.admit(entry, now)
    }

    /// The lines that were held back for their time.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(String, JournalEntry)> {
        self.take(
            |share| now.duration_since(share.window_start) >= WINDOW,
            now,
        )
    }

    /// All lines that were held back.
    pub(super) fn take_all(&mut self) -> Vec<(String, JournalEntry)> {
        self.take(|_| true, Instant::now())
    }

    fn take(
        &mut self,
        is_due: impl Fn(&Share) -> bool,
        now: Instant,
    ) -> Vec<(String, JournalEntry)> {
        let mut taken = Vec::new();
        for ((project, container), share) in &mut self.shares {
            if is_due(share) {
                let lines = share.end_window(container, now);
                taken.extend(lines.map(|line| (project.clone(), line)));
            }
        }
        taken
    }
}

impl Share {
    fn new(now: Instant) -> Self {
        Self {
            saved: MAX_SAVED_LINES,
            saved_at: now,
            window_start: now,
            repeats: HashMap::new(),
            missing: 0,
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.missing == 0 && self.repeats.is_empty() && self.saved_by(now) >= MAX_SAVED_LINES
    }

    fn saved_by(&self, now: Instant) -> f64 {
        let seconds = now.duration_since(self.saved_at).as_secs_f64();
        (self.saved + seconds * LINES_PER_SECOND).min(MAX_SAVED_LINES)
    }

    fn admit(&mut self, entry: JournalEntry, now: Instant) -> Option<JournalEntry> {
        self.saved = self.saved_by(now);
        self.saved_at = now;
        let max_equal = if self.saved > MAX_SAVED_LINES / 2.0 {
            MAX_EQUAL_LINES
        } else {
            1
        };
        let kind = LineKind {
            event: entry.event,
            host: entry.host.clone(),
            port: entry.port,
            rule: entry.rule.clone(),
        };
        let has_room = self.saved >= 1.0;
        if !has_room && !self.repeats.contains_key(&kind) {
            self.missing += 1;
            return None;
        }
        let repeats = self.repeats.entry(kind).or_default();
        if has_room && repeats.written < max_equal {
            repeats.written += 1;
            self.saved -= 1.0;
            return Some(entry);
        }
        repeats.hold(entry);
        None
    }

    /// The lines of the window that were held back. Another window starts.
    fn end_window(
        &mut self,
        container: &str,
        now: Instant,
    ) -> impl Iterator<Item = JournalEntry> + use<> {
        self.window_start = now;
        let repeats = std::mem::take(&mut self.repeats);
        let missing = std::mem::take(&mut self.missing);
        let lost = (missing > 0).then(|| JournalEntry {
            container: container.to_owned(),
            count: Some(missing),
            rule: "more than a container may write".to_owned(),
            ..JournalEntry::new(JournalEvent::Lost)
        });
        let held = repeats.into_values().filter_map(|repeats| repeats.held);
        held.chain(lost)
    }
}

impl Repeats {
    fn hold(&mut self, entry: JournalEntry) {
        let add = |before: Option<u64>, more: Option<u64>| match (before, more) {
            (None, None) => None,
            (before, more) => Some(before.unwrap_or(0).saturating_add(more.unwrap_or(0))),
        };
        let (count, sent, received) = match &self.held {
            Some(held) => (
                held.count.unwrap_or(0),
                held.sent_bytes,
                held.received_bytes,
            ),
            None => (0, None, None),
        };
        self.held = Some(JournalEntry {
            count: Some(count + 1),
            sent_bytes: add(sent, entry.sent_bytes),
            received_bytes: add(received, entry.received_bytes),
            connection: None,
            ..entry
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(host: &str) -> JournalEntry {
        JournalEntry {
            container: "c".to_owned(),
            host: host.to_owned(),
            ..JournalEntry::new(JournalEvent::Denied)
        }
    }

    #[test]
    fn equal_lines_become_one_with_a_count() {
        let (mut shares, now) = (Shares::default(), Instant::now());
        let written = (0..100).filter_map(|_| shares.admit("p", denied("a.org"), now));
        assert_eq!(written.count(), 20);
        assert!(shares.admit("p", denied("b.org"), now).is_some());
        assert!(shares.take_due(now).is_empty());
        let lines = shares.take_due(now + WINDOW);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].1.count, Some(80));
        assert!(shares.take_due(now + WINDOW * 2).is_empty());
        let mut closed = denied("a.org");
        closed.sent_bytes = Some(5);
        for _ in 0..30 {
            shares.admit("q", closed.clone(), now);
        }
        let lines = shares.take_all();
        assert_eq!(lines[0].1.sent_bytes, Some(50));
    }

    #[test]
    fn a_flood_of_other_hosts_stays_within_the_share_and_is_counted() {
        let (mut shares, start) = (Shares::default(), Instant::now());
        let first = (0..100_000).filter_map(|number| {
            let host = format!("{number}.org");
            shares.admit("p", denied(&host), start)
        });
        assert_eq!(first.count(), 2000);
        // Another container of the project writes all the same.
        let mut other = denied("a.org");
        other.container = "other".to_owned();
        assert!(shares.admit("p", other, start).is_some());
        let lines = shares.take_due(start + WINDOW);
        let lost = lines.iter().find(|(_, it)| it.event == JournalEvent::Lost);
        assert_eq!(lost.map(|(_, it)| it.count), Some(Some(98_000)));
        // An hour later there is room for some again.
        let later = start + Duration::from_secs(3600);
        let again = (0..1000).filter_map(|number| {
            let host = format!("{number}.org");
            shares.admit("p", denied(&host), later)
        });
        assert_eq!(again.count(), 360);
    }
}
