//! What a container is made of.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use oubliette_model::Network;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The name of a container: short, and safe in paths, labels and host names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContainerId(String);

impl ContainerId {
    /// None unless the text is 1 to 40 lowercase letters, digits or dashes and does not start with
    /// a dash.
    pub fn new(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        let safe = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let valid =
            (1..=40).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(safe);
        valid.then_some(Self(text))
    }

    /// The bits, for example those of a UUID, as hexadecimal digits.
    pub fn from_bits(bits: u128) -> Self {
        Self(format!("{bits:032x}"))
    }

    /// The id for a name below an owner with these bits: a hash of both.
    pub fn derive(bits: u128, name: &str) -> Self {
        let digest = Sha256::new()
            .chain_update(bits.to_be_bytes())
            .chain_update(name)
            .finalize();
        let mut half = [0; 16];
        half.copy_from_slice(&digest[..16]);
        Self::from_bits(u128::from_be_bytes(half))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Everything a driver needs to create a container.
#[derive(Debug, Clone)]
pub struct ContainerSpec {
    pub id: ContainerId,
    /// The project it belongs to, for labels and lists.
    pub project: String,
    pub image: ImageSource,
    pub mounts: Vec<Mount>,
    /// Paths in writable mounts that no process in the container may change, replace or create.
    pub protected: Vec<ProtectedPath>,
    pub hostname: String,
    pub network: Network,
    pub limits: ContainerLimits,
    /// Another container whose files are mounted here; both get the same user ids on the host.
    pub users_of: Option<ContainerId>,
    pub init: Init,
}

/// Where an image comes from. Runtimes without images ignore it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSource {
    /// The container type.
    pub name: String,
    /// The name of an existing image, or the name that a built one gets.
    pub image: Option<String>,
    /// Without it and without `image`, the types `base` and `dev` have a built-in one.
    pub dockerfile: Option<PathBuf>,
    /// Build arguments of the Dockerfile.
    pub build_args: BTreeMap<String, String>,
}

/// What an image is built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dockerfile<'a> {
    Path(&'a Path),
    BuiltIn(&'static str),
}

impl ImageSource {
    /// None if the image is only named.
    pub(crate) fn dockerfile(&self) -> Option<Dockerfile<'_>> {
        match (&self.dockerfile, &self.image) {
            (Some(path), _) => Some(Dockerfile::Path(path)),
            (None, Some(_)) => None,
            (None, None) => built_in_dockerfile(&self.name).map(Dockerfile::BuiltIn),
        }
    }
}

/// The Dockerfile of a container type that needs no configuration.
fn built_in_dockerfile(container_type: &str) -> Option<&'static str> {
    match container_type {
        "base" => Some(include_str!("../../../containers/base/Dockerfile")),
        "dev" => Some(include_str!("../../../containers/dev/Dockerfile")),
        _ => None,
    }
}

/// A directory or file of the host that is visible in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub host: PathBuf,
    pub inside: PathBuf,
    pub read_only: bool,
    /// The user and group of a person whose own directory it is. Nothing in it changes its owner, and files
    /// that are made in it belong to the person; a driver that cannot do that refuses the mount. Other
    /// directories are the server's: a driver may give them to the users of the container.
    pub owner: Option<(u32, u32)>,
}

/// A path that processes in a container can read but not change. If it does not exist, it becomes an
/// empty directory, which git does not report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedPath {
    /// A directory in the container, in a writable mount. Nothing is done while it does not exist.
    pub within: PathBuf,
    /// Relative to it, without `..`.
    pub path: PathBuf,
}

/// Absent means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ContainerLimits {
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    pub processes: Option<u32>,
    /// Disk space of the container without its mounts.
    pub disk_bytes: Option<u64>,
}

/// PID 1: the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Init {
    /// The static binary on the host.
    pub binary: PathBuf,
    /// Its path in the container.
    pub inside: PathBuf,
    pub args: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
}

/// A program to run in a container beside PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub argv: Vec<String>,
    /// Variables of PID 1 that it must not inherit, because other processes could read them from it.
    pub unset_env: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    Created,
    Running,
    Stopped,
}

/// A container as the runtime reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerStatus {
    pub id: ContainerId,
    pub project: String,
    pub state: RunState,
    /// The file of this machine in which the kernel counts the processes that the memory limit has killed, in
    /// its line `oom_kill`; none if it does not run, in a listing, or if there is no such file here.
    pub memory_events: Option<PathBuf>,
    /// Whether it runs, on the host's network, without the rule that keeps it from a port of the server: it was
    /// started when the server had another one.
    pub can_take_server_port: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_with_unsafe_characters_are_refused() {
        for bad in ["", "-a", "A", "a/b", "a.b", "a b", "ä", &"a".repeat(41)] {
            assert_eq!(ContainerId::new(bad), None, "{bad:?}");
        }
        assert!(ContainerId::new("p-1b4e28ba2fa1").is_some());
    }

    #[test]
    fn derived_ids_are_stable_and_unique() {
        let id = ContainerId::derive(7, "feature");
        assert_eq!(id, ContainerId::derive(7, "feature"));
        assert_eq!(ContainerId::new(id.as_str()), Some(id.clone()));
        for other in [
            ContainerId::derive(7, "featur"),
            ContainerId::derive(8, "feature"),
            ContainerId::from_bits(7),
        ] {
            assert_ne!(id, other);
        }
    }
}
