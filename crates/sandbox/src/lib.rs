//! The embedded sandbox: long-lived Linux containers without a daemon, an image or a package, as
//! root and without it, and the spawning of processes for the supervisor that runs inside.
//!
//! A sandbox is data ([`Spec`]). [`launch`] starts a copy of a launcher binary, which builds the
//! namespaces and mounts, executes the caller's PID 1 in them and exits; no process of ours stays
//! outside. Everything lives in the namespaces of that PID 1, so a sandbox that dies leaves nothing
//! mounted. What was asked for but could not be done is said in [`Enforced`], never passed over.
//!
//! This is the only crate with `unsafe`. It must never write to a setting of the host, and never
//! starts anything without isolation when isolation is refused.

mod error;
mod report;
mod spec;

#[cfg(target_os = "linux")]
mod adopt;
#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod launcher;
#[cfg(target_os = "linux")]
mod mounts;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
pub mod process;
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

pub use error::{Error, Result};
pub use report::{Applied, Enforced, Ids, Landlock, LimitsApplied, Probe, ProbeItem, Sharing};
pub use spec::{Bind, Init, Limits, Method, Network, Spec};

#[cfg(target_os = "linux")]
pub use {
    adopt::adopt, launch::launch, launcher::launcher_main, probe::probe, remove::remove,
    remove::settle, running::Running, running::running,
};

#[cfg(not(target_os = "linux"))]
pub use unsupported::{Running, adopt, launch, launcher_main, probe, remove, running, settle};
