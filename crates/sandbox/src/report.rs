//! Which restrictions are in force on a sandbox, and what a machine supports.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What the kernel enforces on a running sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcementReport {
    /// `native` or `bwrap`.
    pub method: String,
    pub ids: IdMapping,
    /// How each directory of the host is visible inside.
    pub directories: Vec<(PathBuf, DirectoryAccess)>,
    pub limits: AppliedLimits,
    pub seccomp: bool,
    pub landlock: Landlock,
    /// Whether `refused_ports` of a specification can be enforced.
    #[serde(default)]
    pub can_refuse_ports: bool,
    pub network: String,
    /// Whether new user namespaces are refused inside.
    pub user_namespaces_refused: bool,
}

/// Which users of the host the users of the sandbox are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdMapping {
    /// Ids 0 to 65535 are `base` and up on the host, where they own nothing else.
    Shifted { base: u32 },
    /// Ids are the host's: a file that the sandbox's root makes belongs to root on the host.
    Identity,
    /// Only root exists inside, and it is this user of the host.
    Single { uid: u32, gid: u32 },
}

impl IdMapping {
    /// The uid and gid of the sandbox's root on the host.
    pub fn owner(self) -> (u32, u32) {
        match self {
            Self::Shifted { base } => (base, base),
            Self::Identity => (0, 0),
            Self::Single { uid, gid } => (uid, gid),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectoryAccess {
    CopyOnWrite,
    ReadOnly { reason: String },
    Hidden { reason: String },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedLimits {
    pub memory: LimitMechanism,
    pub cpus: LimitMechanism,
    pub processes: LimitMechanism,
}

/// What enforces a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitMechanism {
    #[default]
    #[serde(rename = "not_asked")]
    NotRequested,
    CgroupV1,
    CgroupV2,
    Rlimit,
    NotEnforced {
        reason: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Landlock {
    Full,
    Partial,
    Off,
}

/// What this machine supports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// How sandboxes can be made here; none if they cannot.
    pub method: Option<crate::Method>,
    pub items: Vec<ProbeItem>,
}

/// One feature, and what would make it work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeItem {
    pub name: String,
    pub works: bool,
    /// What the probe found.
    pub detail: String,
    /// The setting, package or version that would make it work.
    pub remedy: Option<String>,
}
