//! The mark that everything a process starts bears, by which its tree is found wherever it goes.
//!
//! It is a soft limit on a resource that nothing in a container can use (the time of a real-time
//! scheduled process), each process with a number of its own. Limits are inherited and shown to
//! everybody in `/proc`; an emptied environment, another session, another user or a lost parent do
//! not change them. Whoever sets this limit on purpose gets away, until the container ends.

use std::hash::{BuildHasher, RandomState};
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Far more than anybody sets, far less than no limit.
const FLOOR: u64 = 1 << 61;
/// How many processes can be told apart.
const NUMBERS: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Brand(u64);

/// The brands of one supervisor, none of which another one gives.
#[derive(Debug)]
pub(super) struct Brands {
    first: u64,
    given: std::cell::Cell<u64>,
}

impl Brands {
    pub(super) fn new() -> Self {
        let random = RandomState::new().hash_one(std::process::id());
        Self {
            first: FLOOR | ((random % (FLOOR / NUMBERS)) * NUMBERS),
            given: std::cell::Cell::new(0),
        }
    }

    pub(super) fn give(&self) -> Brand {
        let number = self.given.get();
        self.given.set((number + 1) % NUMBERS);
        Brand(self.first + number)
    }
}

impl Brand {
    /// What `start` starts bears the brand, and nothing else that is started by this process.
    pub(super) fn mark<T>(self, start: impl FnOnce() -> T) -> io::Result<T> {
        let before = getrlimit(Resource::Rttime);
        let branded = Rlimit {
            current: Some(self.0),
            maximum: before.maximum,
        };
        setrlimit(Resource::Rttime, branded)?;
        let started = start();
        setrlimit(Resource::Rttime, before)?;
        Ok(started)
    }

    pub(super) fn is_borne_by(self, pid: i32) -> bool {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        let limit = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max realtime timeout"));
        let soft = limit.and_then(|limit| limit.split_whitespace().next()?.parse().ok());
        soft == Some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_is_started_bears_its_own_brand_and_we_bear_none() {
        let brands = Brands::new();
        let (one, other) = (brands.give(), brands.give());
        let sleep = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut started = one.mark(sleep).unwrap();
        let pid = i32::try_from(started.id()).unwrap();
        assert!(one.is_borne_by(pid));
        assert!(!other.is_borne_by(pid));
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(!one.is_borne_by(own));
        drop(started.stdin.take());
        started.wait().unwrap();
    }
}
