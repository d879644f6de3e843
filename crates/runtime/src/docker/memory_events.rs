//! The file in which the kernel of this machine counts what the memory limit of a container has killed.

use std::path::{Path, PathBuf};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The file of the container whose first process is `pid`, if the engine runs on this machine: the control
/// group of that process has the id of the container in its name.
pub(super) fn find(pid: Option<i64>, container: Option<&str>) -> Option<PathBuf> {
    let (pid, container) = (pid.filter(|pid| *pid > 0)?, container?);
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    files(&groups, container).find(|file| file.is_file())
}

/// Where the file may be, by the contents of `/proc/PID/cgroup`.
fn files<'a>(groups: &'a str, container: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    groups.lines().filter_map(move |line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        if container.is_empty() || !group.contains(container) {
            return None;
        }
        let group = group.trim_start_matches('/');
        let root = Path::new(CGROUP_ROOT);
        if controllers.is_empty() {
            Some(root.join(group).join("memory.events"))
        } else if controllers.split(',').any(|name| name == "memory") {
            Some(root.join("memory").join(group).join("memory.oom_control"))
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_known_and_other_processes_are_not_taken() {
        let found = |groups: &str| -> Vec<String> {
            let files = files(groups, "0123abcd");
            files.map(|file| file.display().to_string()).collect()
        };
        assert_eq!(
            found("0::/system.slice/docker-0123abcd.scope\n"),
            ["/sys/fs/cgroup/system.slice/docker-0123abcd.scope/memory.events"]
        );
        assert_eq!(
            found("4:memory:/docker/0123abcd\n3:pids:/docker/0123abcd\n0::/other\n"),
            ["/sys/fs/cgroup/memory/docker/0123abcd/memory.oom_control"]
        );
        assert!(found("0::/user.slice\n").is_empty());
    }
}
