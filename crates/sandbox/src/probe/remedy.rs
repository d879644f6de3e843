//! Which setting of the host prevents sandboxes. Settings are only read.

use std::fs;
use std::path::Path;

pub(super) const FOR_LIMITS: &str = "Run the server as a systemd service with `Delegate=yes` \
    (for a user: `systemd-run --user --scope -p Delegate=yes`), or as root.";

/// Settings that forbid user namespaces: the file, the forbidding value, and the remedy.
const SETTINGS: &[(&str, &str, &str)] = &[
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor refuses user namespaces to programs without a profile: install the package \
         bubblewrap (its profile allows them), or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`.",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "User namespaces are disabled for unprivileged users: `sysctl kernel.unprivileged_userns_clone=1`.",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "User namespaces are disabled: `sysctl user.max_user_namespaces=10000`.",
    ),
];

/// With less space than this a launch fails.
const MIN_FREE_BYTES: u64 = 64 << 10;

/// The remedy for a launch in a directory that failed with this error.
pub(super) fn for_refusal(errno: Option<i32>, scratch: &Path) -> Option<String> {
    // The kernel says the same of too many namespaces.
    let is_full = rustix::fs::statvfs(scratch)
        .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_FREE_BYTES);
    if errno == Some(libc::ENOSPC) && is_full {
        let path = scratch.display();
        return Some(format!("The disk of {path} is full: free some space."));
    }
    for (path, value, remedy) in SETTINGS {
        if fs::read_to_string(path).is_ok_and(|found| found.trim() == *value) {
            return Some((*remedy).to_owned());
        }
    }
    let in_container = ["/.dockerenv", "/run/.containerenv"]
        .iter()
        .any(|mark| Path::new(mark).exists());
    match errno {
        Some(libc::EPERM | libc::EACCES | libc::ENOSPC) if in_container => Some(
            "This is a container: start it with `--security-opt seccomp=unconfined \
             --security-opt apparmor=unconfined --security-opt systempaths=unconfined`."
                .to_owned(),
        ),
        Some(libc::EPERM | libc::EACCES) => Some(
            "A security module or a system call filter refuses namespaces to this process."
                .to_owned(),
        ),
        Some(libc::ENOSYS) => Some("Sandboxes need Linux 5.12 or newer.".to_owned()),
        _ => None,
    }
}
