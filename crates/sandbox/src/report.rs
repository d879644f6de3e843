//! What was really applied to a sandbox, and what a machine can do: the difference between asked
//! and done is always said.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What the kernel enforces on a sandbox that is up.
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
    pub network: String,
    /// Whether new user namespaces are refused inside.
    pub user_namespaces_refused: bool,
}

/// Whom the sandbox's root is on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdMapping {
    /// IdMapping 0 to 65535 are `base` and up on the host, where they own nothing else.
    Shifted { base: u32 },
    /// IdMapping are the host's: a file that the sandbox's root makes belongs to root on the host.
    Identity,
    /// Only root exists inside, and it is this user of the host.
    Single { uid: u32, gid: u32 },
}

impl IdMapping {
    /// The uid and gid that own on the host what the sandbox's root owns inside.
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

/// What holds a limit.
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

/// What this machine can and cannot do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Whether sandboxes run here at all, and by what method.
    pub method: Option<crate::Method>,
    pub items: Vec<ProbeItem>,
}

/// One ability, and what would change the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeItem {
    pub name: String,
    pub works: bool,
    /// What was found.
    pub detail: String,
    /// The setting, package or version that would make it work.
    pub remedy: Option<String>,
}
