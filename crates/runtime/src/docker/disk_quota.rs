//! Whether the engine can limit the size of a container's writable layer. Directories mounted from
//! the host are never limited by that.

use std::path::Path;

use bollard::models::SystemInfo;

/// Storage drivers that support it on every filesystem.
const QUOTA_DRIVERS: [&str; 3] = ["btrfs", "zfs", "devicemapper"];

pub(super) fn is_supported(info: &SystemInfo) -> bool {
    let driver = info.driver.as_deref().unwrap_or_default();
    if QUOTA_DRIVERS.contains(&driver) {
        return true;
    }
    let root = info.docker_root_dir.as_deref().unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    driver.starts_with("overlay") && has_project_quotas(&mounts, Path::new(root))
}

/// The sentence about it in the runtime's notes.
pub(super) fn describe(info: &SystemInfo) -> String {
    let driver = info.driver.as_deref().unwrap_or("unknown");
    let project_files = "The project's own files are measured, and containers that exceed the limit \
                         are stopped.";
    if is_supported(info) {
        return format!("`disk_mb` limits what is installed in a container. {project_files}");
    }
    format!(
        "`disk_mb` does not limit what is installed in a container: the engine's storage driver \
         `{driver}` can only do that on btrfs, zfs, or XFS that is mounted with `pquota`. \
         {project_files}"
    )
}

/// Whether a directory is on XFS with project quotas.
fn has_project_quotas(mountinfo: &str, directory: &Path) -> bool {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mount_point = Path::new(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        let kind = after.next()?;
        let options = after.nth(1)?;
        directory
            .starts_with(mount_point)
            .then(|| (mount_point.components().count(), kind, options))
    });
    // The last mount at the deepest point hides the others.
    let Some((_, kind, options)) = mounts.max_by_key(|(depth, ..)| *depth) else {
        return false;
    };
    let is_project_quota = |option: &str| matches!(option, "prjquota" | "pquota");
    kind == "xfs" && options.split(',').any(is_project_quota)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 22 8:1 / /var/lib rw,relatime shared:2 - xfs /dev/sda1 rw,attr2,inode64,prjquota
31 30 8:2 / /var/lib/other rw - xfs /dev/sda2 rw,noquota
";

    #[test]
    fn only_xfs_with_project_quotas_limits_an_overlay() {
        for (directory, expected) in [
            ("/var/lib/docker", true),
            ("/var/lib/other/docker", false),
            ("/srv/docker", false),
            ("/var/library", false),
        ] {
            let found = has_project_quotas(MOUNTS, Path::new(directory));
            assert_eq!(found, expected, "{directory}");
        }
    }

    #[test]
    fn the_driver_decides_where_the_filesystem_does_not() {
        let engine = |driver: &str| SystemInfo {
            driver: Some(driver.to_owned()),
            docker_root_dir: Some("/no/such/place".to_owned()),
            ..SystemInfo::default()
        };
        assert!(is_supported(&engine("btrfs")));
        assert!(!is_supported(&engine("overlay2")));
        assert!(describe(&engine("overlay2")).contains("does not limit"));
    }
}
