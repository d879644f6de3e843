//! Drops the capabilities of the sandbox's root and sets resource limits below those of the host.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::Launch;
use crate::capabilities::container_capability_mask;
use crate::report::IdMapping;
use crate::sys;

/// Open files of a process, unless the host's limit is lower.
const MAX_OPEN_FILES: u64 = 1 << 20;

pub(super) fn drop_capabilities() -> io::Result<()> {
    let kept = CapabilitySet::from_bits_retain(container_capability_mask());
    for capability in 0..64 {
        let is_kept = kept.bits() & (1 << capability) != 0;
        if !is_kept && !sys::drop_from_bounding_set(capability)? {
            break;
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// Sets resource limits, never above the host's. Returns whether the number of processes is limited
/// this way.
pub(super) fn limit_resources(launch: &Launch<'_>) -> io::Result<bool> {
    limit_files()?;
    let Some(processes) = launch.spec.limits.processes else {
        return Ok(false);
    };
    // With identical ids, root is the host's root, which is exempt.
    if launch.ids == IdMapping::Identity || !processes_are_counted_apart() {
        return Ok(false);
    }
    let hard = getrlimit(Resource::Nproc).maximum;
    set(
        Resource::Nproc,
        hard.map_or(processes, |hard| hard.min(processes)),
    )?;
    Ok(true)
}

/// Allows many open files and no core dumps.
pub(super) fn limit_files() -> io::Result<()> {
    let files = getrlimit(Resource::Nofile);
    let limit = files
        .maximum
        .map_or(MAX_OPEN_FILES, |hard| hard.min(MAX_OPEN_FILES));
    set(Resource::Nofile, limit)?;
    set(Resource::Core, 0)
}

/// Before Linux 5.14 the processes of the same user outside the sandbox count as well.
pub(super) fn processes_are_counted_apart() -> bool {
    kernel_is_at_least(5, 14)
}

fn set(resource: Resource, limit: u64) -> io::Result<()> {
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    Ok(setrlimit(resource, limit)?)
}

pub(crate) fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    found >= (major, minor)
}
