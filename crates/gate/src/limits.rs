//! How many connections there may be: what the process may have open is shared by all containers.

/// Open connections of one container, with those that are being opened.
const MAX_CONTAINER_CONNECTIONS: usize = 512;
/// A container may have so many however many others there are, if that is not too much of all.
const MIN_CONTAINER_CONNECTIONS: usize = 64;
/// Of all containers.
const MAX_CONNECTIONS: usize = 8192;
/// What each open connection has: one to the container and one to the host.
const FILES_PER_CONNECTION: usize = 2;
/// For listeners, lookups, journals, servers and connections that are being refused; fewer where there are few.
const MAX_OTHER_FILES: usize = 512;
/// Names that are being looked up, for all containers. Each has two sockets, or a thread.
const MAX_LOOKUPS: usize = 64;

/// The limits of a process with so many files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) lookups: usize,
}

impl Limits {
    pub(crate) fn for_open_files(max_open_files: u64) -> Self {
        let files = usize::try_from(max_open_files).unwrap_or(usize::MAX);
        let other = (files / 2).min(MAX_OTHER_FILES);
        let connections = (files - other) / FILES_PER_CONNECTION;
        Self {
            connections: connections.clamp(1, MAX_CONNECTIONS),
            lookups: (other / 8).clamp(1, MAX_LOOKUPS),
        }
    }

    /// The connections of one container among so many: no container can have those of the others.
    pub(crate) fn of_container(self, containers: usize) -> usize {
        let quarter = (self.connections / 4).max(1);
        let share = self.connections / (containers + 1);
        share
            .clamp(MIN_CONTAINER_CONNECTIONS, MAX_CONTAINER_CONNECTIONS)
            .min(quarter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_container_never_has_all_connections_and_all_of_them_fit_into_the_open_files() {
        for files in [64, 256, 1024, 4096, 65_536, u64::MAX] {
            let limits = Limits::for_open_files(files);
            let used = limits.connections * FILES_PER_CONNECTION + limits.lookups * 2;
            assert!((used as u64) < files, "{files}: {limits:?}");
            for containers in [1, 2, 3, 10, 100] {
                let own = limits.of_container(containers);
                assert!(own >= 1 && own <= limits.connections / 2, "{limits:?}");
            }
        }
        assert_eq!(Limits::for_open_files(65_536).of_container(1), 512);
        assert_eq!(Limits::for_open_files(1024).of_container(1), 64);
    }
}
