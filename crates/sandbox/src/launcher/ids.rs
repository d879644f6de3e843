//! Which users of the host the users of a sandbox are.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::Pid;
use rustix::thread::CapabilitySet;

use super::{At, Attempt};
use crate::report::Ids;

/// How many ids a sandbox has.
pub(crate) const RANGE: u32 = 65536;
/// Where the ranges begin: above what systemd and the subordinate ids of users are given.
const FIRST: u32 = 0x7000_0000;
/// How many ranges there are below the ids that count as negative.
const SLOTS: u32 = 4094;

/// The maps to try, best first.
pub(super) fn candidates(id: &str) -> Vec<Ids> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let single = Ids::Single {
        uid: uid.as_raw(),
        gid: gid.as_raw(),
    };
    if !uid.is_root() || !may_mount() {
        return vec![single];
    }
    let base = FIRST + hash(id) as u32 % SLOTS * RANGE;
    let maps = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut found = Vec::new();
    if covers(&maps, base) {
        found.push(Ids::Shifted { base });
    }
    if covers(&maps, 0) {
        found.push(Ids::Identity);
    }
    found
}

/// Whether a whole range from `first` on exists in the user namespace with these maps.
fn covers(maps: &str, first: u32) -> bool {
    maps.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(inside)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        let first = u64::from(first);
        inside <= first && first + u64::from(RANGE) <= inside + count
    })
}

fn may_mount() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// An id inside its range, if it is one of ours.
pub(crate) fn shifted_part(id: u32) -> Option<u32> {
    let is_ours = (FIRST..FIRST + SLOTS * RANGE).contains(&id);
    is_ours.then(|| (id - FIRST) % RANGE)
}

/// FNV-1a: the same for ever, so that a sandbox keeps its range.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub(super) fn write_maps(child: Pid, ids: Ids) -> Attempt<()> {
    let proc = format!("/proc/{}", child.as_raw_nonzero());
    let (uid, gid) = ids.owner();
    let count = match ids {
        Ids::Single { .. } => 1,
        Ids::Shifted { .. } | Ids::Identity => RANGE,
    };
    if matches!(ids, Ids::Single { .. }) {
        // The kernel asks for this: a group may have been used to take rights away.
        fs::write(format!("{proc}/setgroups"), "deny").at("give up changing groups")?;
    }
    fs::write(format!("{proc}/uid_map"), format!("0 {uid} {count}")).at("map user ids")?;
    fs::write(format!("{proc}/gid_map"), format!("0 {gid} {count}")).at("map group ids")
}

pub(super) fn user_namespace(child: Pid) -> io::Result<OwnedFd> {
    let file = File::open(format!("/proc/{}/ns/user", child.as_raw_nonzero()))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_be_mapped_whole() {
        let all = "         0          0 4294967295\n";
        assert!(covers(all, FIRST) && covers(all, 0));
        assert!(!covers("0 100000 65536\n", FIRST));
        assert!(covers("0 100000 65536\n", 0));
        assert!(!covers("0 1000 1\n", 0));
        assert!(!covers("", 0));
    }

    #[test]
    fn ranges_stay_below_the_negative_ids() {
        assert!(FIRST.checked_add(SLOTS * RANGE).unwrap() < 0x8000_0000);
        assert_eq!(shifted_part(FIRST + RANGE + 7), Some(7));
        assert_eq!(shifted_part(1000), None);
    }
}
