//! The user that agents and commands run as. The engine has no user ids of its own for containers: an
//! id in a container is the same id on the host, where it owns the project's files.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{Result, RuntimeError};

/// The ids that the embedded sandbox also uses: above those of systemd's containers and the
/// subordinate ids of users.
const FIRST_ID: u32 = 0x7000_0000;
const IDS_PER_PROJECT: u32 = 65_536;
const MAX_PROJECT_RANGES: u32 = 4094;
/// The first ordinary user in a project's range, and the user where the range is not mapped.
const ORDINARY_USER: u32 = 1000;

/// How the engine and the server see user ids.
#[derive(Debug, Clone, Copy)]
pub(super) struct UserIds {
    /// The server's user and group.
    pub(super) server: (u32, u32),
    /// Whether root in a container is the user who runs the engine. Every other id is then one that
    /// this user cannot become on the host.
    pub(super) is_rootless: bool,
    /// Whether this machine has the ids of projects; a nested user namespace may not.
    pub(super) has_project_ids: bool,
}

impl UserIds {
    pub(super) fn of_process(is_rootless: bool) -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let maps = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self {
            server: (uid.as_raw(), gid.as_raw()),
            is_rootless,
            has_project_ids: covers_project_ids(&maps),
        }
    }

    /// The user and group of a project's processes; none for root in the container.
    pub(super) fn of_project(self, project: &str) -> Option<(u32, u32)> {
        if self.is_rootless {
            return None;
        }
        if self.server.0 != 0 {
            return Some(self.server);
        }
        if !self.has_project_ids {
            return Some((ORDINARY_USER, ORDINARY_USER));
        }
        let digest = Sha256::digest(project);
        let hash = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        let id = FIRST_ID + hash % MAX_PROJECT_RANGES * IDS_PER_PROJECT + ORDINARY_USER;
        Some((id, id))
    }

    /// The user and group of the processes of a project that works in a person's own directory; none for root
    /// in the container.
    pub(super) fn of_owner(
        self,
        owner: (u32, u32),
        directory: &Path,
    ) -> Result<Option<(u32, u32)>> {
        let directory = directory.display();
        if self.server.0 == 0 && owner.0 == 0 {
            return Err(RuntimeError::Unsupported(format!(
                "{directory} belongs to root, and nothing in Docker's containers runs as root of this \
                 machine; give the directory to an ordinary user, use the runtime `sandbox`, or let the agent \
                 work on a copy"
            )));
        }
        match self.server {
            (0, _) if !self.is_rootless => Ok(Some(owner)),
            (uid, _) if uid == owner.0 && self.is_rootless => Ok(None),
            (uid, gid) if uid == owner.0 => Ok(Some((uid, gid))),
            (uid, _) => Err(RuntimeError::Unsupported(format!(
                "{directory} belongs to user {}, but files that are made in the container would belong to user \
                 {uid}, who runs the server; run the server as the owner, or let the agent work on a copy",
                owner.0
            ))),
        }
    }
}

fn covers_project_ids(maps: &str) -> bool {
    let end = u64::from(FIRST_ID) + u64::from(MAX_PROJECT_RANGES) * u64::from(IDS_PER_PROJECT);
    maps.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        first <= u64::from(FIRST_ID) && end <= first + count
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: UserIds = UserIds {
        server: (0, 0),
        is_rootless: false,
        has_project_ids: true,
    };

    #[test]
    fn processes_are_never_root_on_the_host() {
        let ordinary = UserIds {
            server: (1001, 1002),
            ..ROOT
        };
        assert_eq!(ordinary.of_project("a"), Some((1001, 1002)));
        let (one, other) = (ROOT.of_project("a").unwrap(), ROOT.of_project("b").unwrap());
        assert!(one.0 >= FIRST_ID && one.0 == one.1);
        assert_ne!(one, other);
        assert_eq!(ROOT.of_project("a"), Some(one));
        let nested = UserIds {
            has_project_ids: false,
            ..ROOT
        };
        assert_eq!(nested.of_project("a"), Some((1000, 1000)));
        let rootless = UserIds {
            is_rootless: true,
            ..ordinary
        };
        assert_eq!(rootless.of_project("a"), None);
    }

    #[test]
    fn project_ids_must_be_mapped_completely() {
        assert!(covers_project_ids("         0          0 4294967295\n"));
        assert!(!covers_project_ids("0 100000 65536\n"));
        assert!(!covers_project_ids(""));
    }
}
