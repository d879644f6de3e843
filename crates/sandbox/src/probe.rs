//! What this machine can do, found out by starting a sandbox and removing it. The probe changes no
//! setting of the host; it says which one would have to be changed.

mod remedy;

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::launcher::{IDLE_ARGUMENT, kernel_is_at_least};
use crate::{
    DirectoryAccess, EnforcementReport, Error, IdMapping, Init, Landlock, LimitMechanism, Method,
    NetworkNamespace, Probe, ProbeItem, ResourceLimits, Result, Spec, find_running, launch, remove,
};

/// The oldest kernel with every feature that is not optional.
const MIN_KERNEL_VERSION: (u32, u32) = (5, 12);
const DEFAULT_BWRAP_DIRS: &str = "/usr/local/bin:/usr/bin:/bin";

/// Starts and removes a sandbox in `scratch`, where no other probe may run at the same time.
/// `launcher` is the binary that would be passed to [`launch`].
pub fn probe(launcher: &Path, scratch: &Path) -> Probe {
    let mut items = vec![kernel()];
    let native = launch_and_remove(launcher, scratch, Method::Native);
    items.push(method_item("native", &native, scratch));
    // Only if needed: a probe that is killed while bubblewrap starts leaves it running unrecorded.
    let bwrap = match (&native, find_bwrap()) {
        (Err(_), Some(program)) => {
            let method = Method::Bwrap { program };
            let tried = launch_and_remove(launcher, scratch, method.clone());
            items.push(method_item("bwrap", &tried, scratch));
            Some((method, tried))
        }
        (Err(_), None) => {
            items.push(ProbeItem {
                name: "bwrap".to_owned(),
                works: false,
                detail: "bubblewrap is not installed".to_owned(),
                remedy: Some("Install the package bubblewrap.".to_owned()),
            });
            None
        }
        (Ok(_), _) => None,
    };
    let (method, enforced) = match (native, bwrap) {
        (Ok(enforced), _) => (Some(Method::Native), Some(enforced)),
        (Err(_), Some((method, Ok(enforced)))) => (Some(method), Some(enforced)),
        (Err(_), _) => (None, None),
    };
    if let Some(enforced) = enforced {
        items.extend(feature_items(&enforced));
    }
    Probe { method, items }
}

fn kernel() -> ProbeItem {
    let (major, minor) = MIN_KERNEL_VERSION;
    let works = kernel_is_at_least(major, minor);
    ProbeItem {
        name: "kernel".to_owned(),
        works,
        detail: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        remedy: (!works).then(|| format!("Sandboxes need Linux {major}.{minor} or newer.")),
    }
}

/// Where a probe in `scratch` makes its sandbox.
fn probe_dirs(scratch: &Path) -> (PathBuf, PathBuf) {
    let dir = scratch.join("probe");
    (dir.join("state"), dir.join("layers"))
}

/// Removes what a probe in `scratch` has left that was killed.
pub fn remove_probe(scratch: &Path) -> Result<()> {
    let (state_dir, layers_dir) = probe_dirs(scratch);
    if let Some(left) = find_running(&state_dir) {
        left.stop(Duration::ZERO)?;
    }
    remove(&state_dir, &layers_dir)?;
    // Fails only if another program put a file there.
    let _ = fs::remove_dir(scratch.join("probe"));
    Ok(())
}

/// Starts an idle sandbox and removes it.
fn launch_and_remove(launcher: &Path, scratch: &Path, method: Method) -> Result<EnforcementReport> {
    let (state_dir, layers_dir) = probe_dirs(scratch);
    let spec = Spec {
        id: "probe".to_owned(),
        state_dir,
        layers_dir,
        binds: Vec::new(),
        protected: Vec::new(),
        hostname: "probe".to_owned(),
        network: NetworkNamespace::Private,
        refused_ports: Vec::new(),
        limits: ResourceLimits {
            memory_bytes: Some(256 << 20),
            cpus: Some(1.0),
            processes: Some(64),
        },
        users_of: None,
        nested: false,
        init: Init {
            binary: launcher.to_owned(),
            inside: PathBuf::from("/probe/init"),
            args: vec![IDLE_ARGUMENT.to_owned()],
            env: Vec::new(),
        },
        method,
    };
    remove_probe(scratch)?;
    let result = launch(&spec, launcher).and_then(|running| {
        running.stop(Duration::ZERO)?;
        Ok(running.enforced().clone())
    });
    remove_probe(scratch)?;
    result
}

fn method_item(name: &str, tried: &Result<EnforcementReport>, scratch: &Path) -> ProbeItem {
    let (detail, remedy) = match tried {
        Ok(_) => ("a sandbox started and stopped".to_owned(), None),
        Err(error) => {
            let source = error.source().map(|source| format!(": {source}"));
            let detail = format!("{error}{}", source.unwrap_or_default());
            let errno = match error {
                Error::Step { source, .. } | Error::Io { source, .. } => source.raw_os_error(),
                _ => None,
            };
            (detail, remedy::for_refusal(errno, scratch))
        }
    };
    ProbeItem {
        name: name.to_owned(),
        works: tried.is_ok(),
        detail,
        remedy,
    }
}

fn feature_items(enforced: &EnforcementReport) -> Vec<ProbeItem> {
    let mut items = vec![user_ids(enforced.ids), copy_on_write(enforced)];
    let limits = &enforced.limits;
    for (name, applied) in [
        ("memory_limit", &limits.memory),
        ("cpu_limit", &limits.cpus),
        ("process_limit", &limits.processes),
    ] {
        items.push(limit(name, applied));
    }
    let landlock = enforced.landlock;
    items.push(ProbeItem {
        name: "landlock".to_owned(),
        works: landlock != Landlock::Off,
        detail: format!("{landlock:?}").to_lowercase(),
        remedy: (landlock != Landlock::Full).then(|| {
            "Use a newer kernel with `landlock` in its list of security modules (boot option `lsm=`)."
                .to_owned()
        }),
    });
    let works = enforced.can_refuse_ports;
    let (detail, remedy) = if works {
        ("no container can bind the server's port", None)
    } else {
        (
            "with network `host`, a container can bind the server's port while no server runs",
            Some("Use Linux 6.7 or newer with Landlock, or the network `none`.".to_owned()),
        )
    };
    items.push(ProbeItem {
        name: "server_port".to_owned(),
        works,
        detail: detail.to_owned(),
        remedy,
    });
    items
}

fn user_ids(ids: IdMapping) -> ProbeItem {
    let (works, detail, remedy) = match ids {
        IdMapping::Shifted { .. } => (true, "every sandbox has its own range of user ids", None),
        IdMapping::Identity => (
            false,
            "root inside is root on the host, confined only by the other restrictions",
            Some(
                "Use Linux 5.19 or newer, not in a container, with the data directory on ext4, xfs or btrfs.",
            ),
        ),
        IdMapping::Single { .. } => (
            true,
            "root inside is the user who runs the server; there are no other users inside",
            None,
        ),
    };
    ProbeItem {
        name: "user_ids".to_owned(),
        works,
        detail: detail.to_owned(),
        remedy: remedy.map(str::to_owned),
    }
}

fn copy_on_write(enforced: &EnforcementReport) -> ProbeItem {
    let refused = enforced
        .directories
        .iter()
        .find_map(|(dir, access)| match access {
            DirectoryAccess::CopyOnWrite => None,
            DirectoryAccess::ReadOnly { reason } | DirectoryAccess::Hidden { reason } => {
                Some((dir, reason))
            }
        });
    let (detail, remedy) = match refused {
        None => (
            "changes to the host's directories stay in the sandbox".to_owned(),
            None,
        ),
        Some((dir, reason)) => (
            format!("{} is not writable inside: {reason}", dir.display()),
            Some("Use Linux 5.11 or newer and a data directory on ext4, xfs or btrfs.".to_owned()),
        ),
    };
    ProbeItem {
        name: "copy_on_write".to_owned(),
        works: refused.is_none(),
        detail,
        remedy,
    }
}

fn limit(name: &str, applied: &LimitMechanism) -> ProbeItem {
    let (works, detail) = match applied {
        LimitMechanism::CgroupV1 => (true, "cgroup v1".to_owned()),
        LimitMechanism::CgroupV2 => (true, "cgroup v2".to_owned()),
        LimitMechanism::Rlimit => (true, "resource limit".to_owned()),
        LimitMechanism::NotEnforced { reason } => (false, reason.clone()),
        LimitMechanism::NotRequested => (false, "not requested".to_owned()),
    };
    ProbeItem {
        name: name.to_owned(),
        works,
        detail,
        remedy: (!works).then(|| remedy::FOR_LIMITS.to_owned()),
    }
}

fn find_bwrap() -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(DEFAULT_BWRAP_DIRS.split(':'));
    dirs.filter(|dir| dir.starts_with('/'))
        .map(|dir| Path::new(dir).join("bwrap"))
        .find(|program| program.is_file())
}
