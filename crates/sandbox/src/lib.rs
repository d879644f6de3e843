//! The embedded sandbox: long-lived Linux containers without a daemon, an image or a package, as
//! root and without it.
//!
//! A sandbox is data ([`Spec`]). [`launch`] starts a launcher process, which makes the namespaces and
//! mounts, executes the caller's PID 1 in them and exits; none of our processes stays outside.
//! Everything lives in the namespaces of that PID 1, so a sandbox that dies leaves nothing mounted.
//! [`EnforcementReport`] says which parts of the specification could not be enforced.
//!
//! This is the only crate with `unsafe`. It must never change a setting of the host, and never start
//! a program without isolation.

mod capabilities;
mod descriptors;
mod error;
mod report;
mod spec;

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod chown;
#[cfg(target_os = "linux")]
mod handover;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod launcher;
#[cfg(target_os = "linux")]
mod mounts;
#[cfg(target_os = "linux")]
mod port_rules;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod process_isolation;
#[cfg(target_os = "linux")]
mod protect;
#[cfg(target_os = "linux")]
mod record;
#[cfg(target_os = "linux")]
mod remove;
#[cfg(target_os = "linux")]
mod running;
#[cfg(target_os = "linux")]
mod sys;

#[cfg(not(target_os = "linux"))]
mod unsupported;

pub use capabilities::{CONTAINER_CAPABILITIES, LinuxCapability, container_capability_mask};
pub use descriptors::close_descriptors_on_exec;
pub use error::{Error, Result};
pub use report::{
    AppliedLimits, DirectoryAccess, EnforcementReport, IdMapping, Landlock, LimitMechanism, Probe,
    ProbeItem,
};
pub use spec::{
    Bind, Init, Method, NetworkNamespace, ProtectedPath, ResourceLimits, SYNTHETIC_ADDRESSES, Spec,
};

#[cfg(target_os = "linux")]
pub use {
    launch::launch, launcher::launcher_main, port_rules::PortRules, probe::probe,
    probe::remove_probe, process_isolation::ThreadIsolation, process_isolation::isolate_thread,
    protect::protect, remove::clean_up, remove::remove, running::RunningSandbox,
    running::find_running,
};

#[cfg(not(target_os = "linux"))]
pub use unsupported::{
    RunningSandbox, clean_up, find_running, launch, launcher_main, probe, protect, remove,
    remove_probe,
};
