//! Where a process may make control groups. In version 1: below its own group. In version 2, where a
//! group with processes cannot pass controllers on: below a delegated parent, or, as root, in a group
//! of Oubliette at the top.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::CgroupVersion;

/// The leaf that a service's own processes move to, so that its group may have child groups.
const SERVER_LEAF_GROUP: &str = "oubliette-server";
/// The group at the top of the unified hierarchy that root uses if none is delegated.
const ROOT_GROUP: &str = "oubliette";

/// The mounted control groups of this process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hierarchies {
    /// Controllers of version 1, and this process's own group for each.
    v1: Vec<(String, PathBuf)>,
    v2: Option<Unified>,
}

#[derive(Debug, PartialEq, Eq)]
struct Unified {
    mount: PathBuf,
    own: PathBuf,
}

pub(super) fn hierarchies() -> Hierarchies {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    parse(&mounts, &own)
}

impl Hierarchies {
    /// The parent for a sandbox's group for this controller.
    pub(super) fn parent_of(&self, controller: &str) -> Result<(CgroupVersion, PathBuf), String> {
        if let Some((_, path)) = self.v1.iter().find(|(name, _)| name == controller) {
            return Ok((CgroupVersion::V1, path.clone()));
        }
        let Some(unified) = &self.v2 else {
            return Err(format!("no cgroup hierarchy with {controller} is mounted"));
        };
        for parent in unified.candidates() {
            if has_controller(&parent, controller) {
                return Ok((CgroupVersion::V2, parent));
            }
        }
        Err(format!(
            "the cgroup v2 controller {controller} is not delegated to this process"
        ))
    }
}

impl Unified {
    fn candidates(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        if self
            .own
            .file_name()
            .is_some_and(|name| name == SERVER_LEAF_GROUP)
        {
            found.extend(self.own.parent().map(Path::to_owned));
        } else if is_delegated(&self.own) {
            found.push(self.own.clone());
        }
        if rustix::process::geteuid().is_root() {
            found.push(self.mount.join(ROOT_GROUP));
        }
        found
    }
}

/// Whether systemd has marked the group as delegated.
fn is_delegated(group: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(group, *name, &mut value).is_ok_and(|len| &value[..len] == b"1")
    })
}

/// Whether a group has the controller; a group that does not exist yet gets its parent's.
fn has_controller(group: &Path, controller: &str) -> bool {
    let read = |path: &Path| fs::read_to_string(path.join("cgroup.controllers")).ok();
    let listed = read(group).or_else(|| read(group.parent()?));
    listed.is_some_and(|list| list.split_ascii_whitespace().any(|name| name == controller))
}

/// Passes controllers of `parent` to its children. If the kernel requires it, first moves this
/// service's processes to a leaf.
pub(super) fn enable_controllers(parent: &Path, controllers: &[&str]) -> io::Result<()> {
    if parent.file_name().is_some_and(|name| name == ROOT_GROUP) && !parent.exists() {
        if let Some(top) = parent.parent() {
            write_subtree(top, controllers)?;
        }
        fs::create_dir_all(parent)?;
    }
    match write_subtree(parent, controllers) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) && is_delegated(parent) => {
            move_to_leaf(parent)?;
            write_subtree(parent, controllers)
        }
        other => other,
    }
}

fn write_subtree(group: &Path, controllers: &[&str]) -> io::Result<()> {
    let path = group.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&path)?;
    let missing: Vec<String> = controllers
        .iter()
        .filter(|name| !enabled.split_ascii_whitespace().any(|have| have == **name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    fs::write(path, missing.join(" "))
}

fn move_to_leaf(group: &Path) -> io::Result<()> {
    let leaf = group.join(SERVER_LEAF_GROUP);
    fs::create_dir_all(&leaf)?;
    for pid in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
        match fs::write(leaf.join("cgroup.procs"), pid) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
    }
    Ok(())
}

fn parse(mounts: &str, own: &str) -> Hierarchies {
    let mut found = Hierarchies::default();
    for line in mounts.lines() {
        let Some((front, back)) = line.split_once(" - ") else {
            continue;
        };
        let front: Vec<&str> = front.split(' ').collect();
        let back: Vec<&str> = back.split(' ').collect();
        let (Some(root), Some(mount), Some(kind)) = (front.get(3), front.get(4), back.first())
        else {
            continue;
        };
        let options = back.get(2).copied().unwrap_or_default();
        match *kind {
            "cgroup" => {
                for controller in options.split(',') {
                    let mine = own_path(own, |names| names.split(',').any(|n| n == controller));
                    if let Some(path) = mine.and_then(|mine| below(mount, root, mine)) {
                        found.v1.push((controller.to_owned(), path));
                    }
                }
            }
            "cgroup2" => {
                let mine = own_path(own, str::is_empty);
                if let Some(own) = mine.and_then(|mine| below(mount, root, mine)) {
                    let mount = PathBuf::from(mount);
                    found.v2 = Some(Unified { mount, own });
                }
            }
            _ => {}
        }
    }
    found
}

/// The path of the line of `/proc/self/cgroup` whose controllers match.
fn own_path(own: &str, matches: impl Fn(&str) -> bool) -> Option<&str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let names = parts.next()?;
        let path = parts.next()?;
        matches(names).then_some(path)
    })
}

/// A group's directory, given what part of the hierarchy is mounted where.
fn below(mount: &str, root: &str, group: &str) -> Option<PathBuf> {
    let relative = Path::new(group).strip_prefix(root).ok()?;
    Some(Path::new(mount).join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_version_1_are_found_per_controller() {
        let mounts = "31 23 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
            32 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        let own = "4:memory:/a/b\n2:cpu,cpuacct:/\n0::/\n";
        let found = parse(mounts, own);
        let (version, path) = found.parent_of("memory").unwrap();
        assert_eq!(
            (version, path.to_str()),
            (CgroupVersion::V1, Some("/sys/fs/cgroup/memory/a/b"))
        );
        let (_, path) = found.parent_of("cpu").unwrap();
        assert_eq!(path, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert!(found.parent_of("pids").is_err());
    }

    #[test]
    fn the_mounted_part_of_the_hierarchy_is_removed_from_the_path() {
        let mounts = "40 30 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = parse(mounts, "0::/docker/abc/x\n");
        let unified = found.v2.unwrap();
        assert_eq!(unified.own, Path::new("/sys/fs/cgroup/x"));
        assert_eq!(unified.mount, Path::new("/sys/fs/cgroup"));
    }
}
