//! Which user ids of the host the users of a sandbox have.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::Pid;
use rustix::thread::CapabilitySet;

use super::{StepContext, StepResult};
use crate::report::IdMapping;

pub(crate) const IDS_PER_SANDBOX: u32 = 65536;
/// Above the ids of systemd's containers and the subordinate ids of users.
const FIRST_SHIFTED_ID: u32 = 0x7000_0000;
/// The number of ranges below the ids that are negative as `i32`.
const ID_RANGE_COUNT: u32 = 4094;

/// The mappings to try, best first.
pub(super) fn candidates(id: &str) -> Vec<IdMapping> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let single = IdMapping::Single {
        uid: uid.as_raw(),
        gid: gid.as_raw(),
    };
    if !uid.is_root() || !may_mount() {
        return vec![single];
    }
    let base = FIRST_SHIFTED_ID + fnv1a(id) as u32 % ID_RANGE_COUNT * IDS_PER_SANDBOX;
    let maps = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut found = Vec::new();
    if covers(&maps, base) {
        found.push(IdMapping::Shifted { base });
    }
    if covers(&maps, 0) {
        found.push(IdMapping::Identity);
    }
    found
}

/// Whether the whole range that starts at `first` is mapped.
fn covers(maps: &str, first: u32) -> bool {
    maps.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(inside)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        let first = u64::from(first);
        inside <= first && first + u64::from(IDS_PER_SANDBOX) <= inside + count
    })
}

fn may_mount() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// The position of an id in its range, if it belongs to a sandbox.
pub(crate) fn unshifted(id: u32) -> Option<u32> {
    let is_ours =
        (FIRST_SHIFTED_ID..FIRST_SHIFTED_ID + ID_RANGE_COUNT * IDS_PER_SANDBOX).contains(&id);
    is_ours.then(|| (id - FIRST_SHIFTED_ID) % IDS_PER_SANDBOX)
}

/// FNV-1a. Must never change, so that a sandbox keeps its range.
pub(super) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub(super) fn write_maps(child: Pid, ids: IdMapping) -> StepResult<()> {
    let proc = format!("/proc/{}", child.as_raw_nonzero());
    let (uid, gid) = ids.owner();
    let count = match ids {
        IdMapping::Single { .. } => 1,
        IdMapping::Shifted { .. } | IdMapping::Identity => IDS_PER_SANDBOX,
    };
    if matches!(ids, IdMapping::Single { .. }) {
        // The kernel requires it, because a group may have been used to deny access.
        fs::write(format!("{proc}/setgroups"), "deny").step("disable setgroups")?;
    }
    fs::write(format!("{proc}/uid_map"), format!("0 {uid} {count}")).step("map user ids")?;
    fs::write(format!("{proc}/gid_map"), format!("0 {gid} {count}")).step("map group ids")
}

pub(super) fn user_namespace(child: Pid) -> io::Result<OwnedFd> {
    let file = File::open(format!("/proc/{}/ns/user", child.as_raw_nonzero()))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_be_mapped_completely() {
        let all = "         0          0 4294967295\n";
        assert!(covers(all, FIRST_SHIFTED_ID) && covers(all, 0));
        assert!(!covers("0 100000 65536\n", FIRST_SHIFTED_ID));
        assert!(covers("0 100000 65536\n", 0));
        assert!(!covers("0 1000 1\n", 0));
        assert!(!covers("", 0));
    }

    #[test]
    fn ranges_stay_below_the_negative_ids() {
        assert!(
            FIRST_SHIFTED_ID
                .checked_add(ID_RANGE_COUNT * IDS_PER_SANDBOX)
                .unwrap()
                < 0x8000_0000
        );
        assert_eq!(unshifted(FIRST_SHIFTED_ID + IDS_PER_SANDBOX + 7), Some(7));
        assert_eq!(unshifted(1000), None);
    }
}
