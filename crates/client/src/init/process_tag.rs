//! The tag that a process and everything it starts inherit, by which its process tree is found.
//!
//! It is a soft limit of a resource that has no effect in a container (the CPU time of a real-time
//! scheduled process), with another value for each process. Limits are inherited and visible in
//! `/proc`; clearing the environment, changing the session or the user, or losing the parent does not
//! change them. The processes themselves cannot change this limit (`spawner.rs`), where the kernel has
//! seccomp.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Far more than any real limit, and far less than no limit.
const MIN_TAG: u64 = 1 << 61;
/// How many tags one supervisor has before it uses them again.
const TAGS_PER_SUPERVISOR: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessTag(u64);

/// The tags of one supervisor, in a random range that another supervisor does not have.
#[derive(Debug)]
pub(super) struct ProcessTags {
    first: u64,
    next: Cell<u64>,
}

impl ProcessTags {
    pub(super) fn new() -> Self {
        let random = RandomState::new().hash_one(std::process::id());
        let range = random % (MIN_TAG / TAGS_PER_SUPERVISOR);
        Self {
            first: MIN_TAG | (range * TAGS_PER_SUPERVISOR),
            next: Cell::new(0),
        }
    }

    pub(super) fn allocate(&self) -> ProcessTag {
        let number = self.next.get();
        self.next.set((number + 1) % TAGS_PER_SUPERVISOR);
        ProcessTag(self.first + number)
    }
}

impl ProcessTag {
    /// Gives the tag to the process that `spawn` starts.
    pub(super) fn apply<T>(self, spawn: impl FnOnce() -> T) -> io::Result<T> {
        let own_limit = getrlimit(Resource::Rttime);
        let tagged = Rlimit {
            current: Some(self.0),
            maximum: own_limit.maximum,
        };
        setrlimit(Resource::Rttime, tagged)?;
        let spawned = spawn();
        setrlimit(Resource::Rttime, own_limit)?;
        Ok(spawned)
    }

    pub(super) fn is_on(self, pid: i32) -> bool {
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
    fn a_process_has_its_own_tag_and_the_supervisor_has_none() {
        let tags = ProcessTags::new();
        let (tag, other) = (tags.allocate(), tags.allocate());
        let cat = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut child = tag.apply(cat).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(tag.is_on(pid));
        assert!(!other.is_on(pid));
        let own_pid = i32::try_from(std::process::id()).unwrap();
        assert!(!tag.is_on(own_pid));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
