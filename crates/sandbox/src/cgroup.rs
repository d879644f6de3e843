//! Limits on memory, processor time and processes with control groups of version 1 and 2: each
//! controller is used where it is mounted. If a limit cannot be set, the reason is reported.

mod hierarchy;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::mounts;
use crate::report::{AppliedLimits, LimitMechanism};
use crate::spec::ResourceLimits;

const PERIOD_US: u64 = 100_000;
const MIN_QUOTA_US: u64 = 1_000;

/// The controllers, in the order of their setup.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// The groups that a sandbox will have. Making a plan writes nothing.
#[derive(Debug)]
pub(crate) struct CgroupPlan {
    groups: Vec<Group>,
    pub(crate) applied: AppliedLimits,
}

#[derive(Debug)]
struct Group {
    version: CgroupVersion,
    path: PathBuf,
    controllers: Vec<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CgroupVersion {
    V1,
    V2,
}

impl CgroupPlan {
    /// Finds the directories for the groups of these limits.
    pub(crate) fn new(name: &str, limits: &ResourceLimits) -> Self {
        let mut plan = Self {
            groups: Vec::new(),
            applied: AppliedLimits::default(),
        };
        let hierarchies = hierarchy::hierarchies();
        for controller in CONTROLLERS {
            if !is_requested(controller, limits) {
                continue;
            }
            match hierarchies.parent_of(controller) {
                Ok((version, parent)) => plan.add(version, parent.join(name), controller),
                Err(reason) => plan.set(controller, LimitMechanism::NotEnforced { reason }),
            }
        }
        plan
    }

    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.groups.iter().map(|group| group.path.clone()).collect()
    }

    /// Makes the groups and sets the limits. Failures are reported in `applied`.
    pub(crate) fn create(&mut self, limits: &ResourceLimits) {
        for index in 0..self.groups.len() {
            let group = &self.groups[index];
            let (version, path) = (group.version, group.path.clone());
            let controllers = group.controllers.clone();
            let made = prepare(version, &path, &controllers);
            for controller in controllers {
                let result = match &made {
                    Ok(()) => set_limit(version, &path, controller, limits),
                    Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
                };
                let applied = match (result, version) {
                    (Ok(()), CgroupVersion::V1) => LimitMechanism::CgroupV1,
                    (Ok(()), CgroupVersion::V2) => LimitMechanism::CgroupV2,
                    (Err(error), _) => LimitMechanism::NotEnforced {
                        reason: format!("cgroup {}: {error}", path.display()),
                    },
                };
                self.set(controller, applied);
            }
        }
    }

    /// Moves the calling process into the groups of version 1, which its children inherit.
    pub(crate) fn join(&mut self) {
        self.join_where(|version| version == CgroupVersion::V1);
    }

    /// Moves the calling process into all groups, for children that bubblewrap clones.
    pub(crate) fn join_all(&mut self) {
        self.join_where(|_| true);
    }

    fn join_where(&mut self, has_version: impl Fn(CgroupVersion) -> bool) {
        for index in 0..self.groups.len() {
            let group = &self.groups[index];
            if !has_version(group.version) || !group.path.is_dir() {
                continue;
            }
            if let Err(error) = fs::write(group.path.join("cgroup.procs"), "0") {
                let reason = format!("cannot enter cgroup {}: {error}", group.path.display());
                self.fail(index, &reason);
            }
        }
    }

    /// The group of version 2, into which a child can be cloned.
    pub(crate) fn unified(&self) -> Option<OwnedFd> {
        let group = self
            .groups
            .iter()
            .find(|group| group.version == CgroupVersion::V2)?;
        mounts::open_directory(&group.path).ok()
    }

    /// Records that the kernel refused to clone into the group of version 2.
    pub(crate) fn unified_refused(&mut self, error: &io::Error) {
        let reason = format!("cannot start in the cgroup: {error}");
        for index in 0..self.groups.len() {
            if self.groups[index].version == CgroupVersion::V2 {
                self.fail(index, &reason);
            }
        }
    }

    fn add(&mut self, version: CgroupVersion, path: PathBuf, controller: &'static str) {
        match self.groups.iter_mut().find(|group| group.path == path) {
            Some(group) => group.controllers.push(controller),
            None => self.groups.push(Group {
                version,
                path,
                controllers: vec![controller],
            }),
        }
    }

    fn fail(&mut self, index: usize, reason: &str) {
        for controller in self.groups[index].controllers.clone() {
            let reason = reason.to_owned();
            self.set(controller, LimitMechanism::NotEnforced { reason });
        }
    }

    fn set(&mut self, controller: &str, applied: LimitMechanism) {
        match controller {
            "memory" => self.applied.memory = applied,
            "pids" => self.applied.processes = applied,
            _ => self.applied.cpus = applied,
        }
    }
}

fn is_requested(controller: &str, limits: &ResourceLimits) -> bool {
    match controller {
        "memory" => limits.memory_bytes.is_some(),
        "pids" => limits.processes.is_some(),
        _ => limits.cpus.is_some(),
    }
}

fn prepare(version: CgroupVersion, path: &Path, controllers: &[&str]) -> io::Result<()> {
    if version == CgroupVersion::V2
        && let Some(parent) = path.parent()
    {
        hierarchy::enable_controllers(parent, controllers)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn set_limit(
    version: CgroupVersion,
    path: &Path,
    controller: &str,
    limits: &ResourceLimits,
) -> io::Result<()> {
    let write = |file: &str, value: String| fs::write(path.join(file), value);
    let quota = |cpus: f64| ((cpus * PERIOD_US as f64) as u64).max(MIN_QUOTA_US);
    match (controller, version) {
        ("memory", CgroupVersion::V1) => {
            let bytes = limits.memory_bytes.unwrap_or(u64::MAX).to_string();
            write("memory.limit_in_bytes", bytes.clone())?;
            // Missing if the kernel does not account for swap.
            ignore_missing(write("memory.memsw.limit_in_bytes", bytes))
        }
        ("memory", CgroupVersion::V2) => {
            let bytes = limits.memory_bytes.unwrap_or(u64::MAX).to_string();
            write("memory.max", bytes)?;
            ignore_missing(write("memory.swap.max", "0".to_owned()))?;
            // Only the process that uses too much memory is killed, not the whole sandbox.
            ignore_missing(write("memory.oom.group", "0".to_owned()))
        }
        ("pids", _) => write("pids.max", limits.processes.unwrap_or(u64::MAX).to_string()),
        (_, CgroupVersion::V1) => {
            write("cpu.cfs_period_us", PERIOD_US.to_string())?;
            let cpus = limits.cpus.unwrap_or(1.0);
            write("cpu.cfs_quota_us", quota(cpus).to_string())
        }
        (_, CgroupVersion::V2) => {
            let cpus = limits.cpus.unwrap_or(1.0);
            write("cpu.max", format!("{} {PERIOD_US}", quota(cpus)))
        }
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes groups whose processes have ended. The kernel needs some milliseconds to notice that, so
/// this retries until the timeout.
pub(crate) fn remove(paths: &[PathBuf], timeout: Duration) -> io::Result<()> {
    let until = Instant::now() + timeout;
    for path in paths {
        let mut interval = Duration::from_micros(200);
        loop {
            match fs::remove_dir(path) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => {
                    remove_children(path);
                    std::thread::sleep(interval);
                    interval = (interval * 2).min(Duration::from_millis(20));
                }
            }
        }
    }
    Ok(())
}

/// Removes groups that a process inside made below its own, which needs a delegated tree.
fn remove_children(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_children(&entry.path());
            // If a group is in use, removing its parent fails as well.
            let _ = fs::remove_dir(entry.path());
        }
    }
}
