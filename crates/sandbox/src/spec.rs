//! The specification of a sandbox.

use std::net::Ipv4Addr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Everything that defines a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// `[a-z0-9-]{1,40}`. The range of shifted user ids is derived from it.
    pub id: String,
    /// Private directory of this sandbox on the host: records and the log of PID 1.
    pub state_dir: PathBuf,
    /// Copy-on-write layers and `/var`; they survive a stop, and `remove` deletes them.
    pub layers_dir: PathBuf,
    pub binds: Vec<Bind>,
    /// Paths in writable binds that no process inside can change, replace or create.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<ProtectedPath>,
    pub hostname: String,
    pub network: NetworkNamespace,
    /// TCP ports that no process inside can bind, if the network is the host's: those of the server,
    /// which a sandbox outlives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_ports: Vec<u16>,
    pub limits: ResourceLimits,
    /// Another sandbox whose range of user ids this one shares, so that it can read its files.
    #[serde(default)]
    pub users_of: Option<String>,
    /// Allows sandboxes inside (browsers, bwrap): without Landlock, and without the seccomp rules
    /// against mounts and namespaces.
    pub nested: bool,
    pub init: Init,
    pub method: Method,
}

/// A file or directory of the host that is visible inside. Where user ids are shifted, the first
/// launch makes the sandbox's root the owner of a writable one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    pub host: PathBuf,
    /// Absolute, without symbolic links in it.
    pub inside: PathBuf,
    pub read_only: bool,
    /// The uid and gid of a person whose own directory it is. Its files keep their owners: inside they
    /// are those of the sandbox's root, and files that it makes belong to this person. No part of `host`
    /// may be a symbolic link. The launch fails where the kernel cannot do that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<(u32, u32)>,
}

/// A path that processes inside can read but not change. If it does not exist, it becomes an empty
/// directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProtectedPath {
    /// A directory inside, absolute, in a writable bind. Nothing is done while it does not exist.
    pub within: PathBuf,
    /// Relative to it.
    pub path: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkNamespace {
    /// One of the sandbox's own, with nothing but loopback.
    #[serde(rename = "none")]
    Private,
    /// The same for programs that reach other hosts through a process inside: with local addresses to give to
    /// names ([`SYNTHETIC_ADDRESSES`]), and a resolver on loopback in `resolv.conf`.
    Policy,
    /// The host's, including the services on its loopback address.
    Host,
}

impl NetworkNamespace {
    /// Whether it is not the host's.
    pub(crate) fn is_own(self) -> bool {
        self != Self::Host
    }
}

/// The base and the bits of the prefix of the addresses that are local with [`NetworkNamespace::Policy`]. No host
/// of the internet has one of them: they are reserved for benchmarks.
pub const SYNTHETIC_ADDRESSES: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceLimits {
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    pub processes: Option<u64>,
}

/// The program that is executed as PID 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Init {
    /// A static executable on the host.
    pub binary: PathBuf,
    /// Where it appears inside, read-only.
    pub inside: PathBuf,
    pub args: Vec<String>,
    /// The whole environment of PID 1.
    pub env: Vec<(String, String)>,
}

/// How the namespaces are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    #[default]
    Native,
    /// By bubblewrap, for hosts that allow user namespaces only to known programs. The host's
    /// directories are then read-only, and there is no Landlock.
    Bwrap { program: PathBuf },
}

const MAX_ID_CHARS: usize = 40;
const MAX_HOSTNAME_CHARS: usize = 63;

impl Spec {
    /// Refuses a specification that cannot work, before anything is changed.
    pub fn validate(&self) -> Result<()> {
        let id_chars = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.id.is_empty() || self.id.len() > MAX_ID_CHARS || !self.id.chars().all(id_chars) {
            return invalid(format!("id {:?} is not [a-z0-9-]{{1,40}}", self.id));
        }
        let host_chars = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        let hostname = &self.hostname;
        if hostname.is_empty()
            || hostname.len() > MAX_HOSTNAME_CHARS
            || !hostname.chars().all(host_chars)
        {
            return invalid(format!("hostname {hostname:?}"));
        }
        for path in [&self.state_dir, &self.layers_dir, &self.init.binary] {
            check_path(path, false)?;
        }
        check_path(&self.init.inside, true)?;
        for bind in &self.binds {
            check_path(&bind.host, false)?;
            check_path(&bind.inside, true)?;
            let managed = ["/", "/proc", "/sys", "/dev", "/usr", "/etc"];
            if managed.iter().any(|path| bind.inside == Path::new(path)) {
                return invalid(format!("{} cannot be a bind", bind.inside.display()));
            }
        }
        for ProtectedPath { within, path } in &self.protected {
            check_path(&within.join(path), true)?;
            if path.is_absolute() {
                return invalid(format!("{} is not relative", path.display()));
            }
        }
        if let Some(cpus) = self.limits.cpus
            && (!cpus.is_finite() || cpus <= 0.0)
        {
            return invalid(format!("{cpus} cpus"));
        }
        if self.limits.memory_bytes == Some(0) || self.limits.processes == Some(0) {
            return invalid("a limit of 0".to_owned());
        }
        let has_nul = |text: &String| text.contains('\0');
        let env_is_bad = |(key, value): &(String, String)| {
            key.is_empty() || key.contains('=') || has_nul(key) || has_nul(value)
        };
        if self.init.args.iter().any(has_nul) || self.init.env.iter().any(env_is_bad) {
            return invalid("arguments or environment of PID 1".to_owned());
        }
        Ok(())
    }

    /// Whether a bind replaces this directory.
    #[cfg(target_os = "linux")]
    pub(crate) fn binds_to(&self, inside: &str) -> bool {
        self.binds
            .iter()
            .any(|bind| bind.inside == Path::new(inside))
    }
}

fn check_path(path: &Path, inside: bool) -> Result<()> {
    let plain = path
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain {
        return invalid(format!("{} is not an absolute, plain path", path.display()));
    }
    let text = path.to_str();
    if text.is_none_or(|text| text.contains('\0')) {
        return invalid(format!("{} is not valid UTF-8", path.display()));
    }
    if inside && path.components().count() > 32 {
        return invalid(format!("{} is too deep", path.display()));
    }
    Ok(())
}

fn invalid(what: String) -> Result<()> {
    Err(Error::Invalid(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            id: "abc-1".to_owned(),
            state_dir: "/run/x".into(),
            layers_dir: "/run/y".into(),
            binds: vec![],
            protected: vec![],
            hostname: "abc".to_owned(),
            network: NetworkNamespace::Private,
            refused_ports: vec![],
            limits: ResourceLimits::default(),
            users_of: None,
            nested: false,
            init: Init {
                binary: "/bin/init".into(),
                inside: "/usr/local/bin/init".into(),
                args: vec![],
                env: vec![],
            },
            method: Method::Native,
        }
    }

    #[test]
    fn a_valid_specification_survives_json() {
        let spec = spec();
        spec.validate().unwrap();
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), spec);
    }

    #[test]
    fn invalid_specifications_are_refused() {
        let broken: [fn(&mut Spec); 8] = [
            |spec| spec.id = "A".to_owned(),
            |spec| spec.id = String::new(),
            |spec| spec.hostname = "a b".to_owned(),
            |spec| spec.state_dir = "relative".into(),
            |spec| spec.init.inside = "/a/../b".into(),
            |spec| spec.limits.cpus = Some(f64::NAN),
            |spec| spec.init.env = vec![("A=B".to_owned(), String::new())],
            |spec| {
                spec.binds = vec![Bind {
                    host: "/tmp".into(),
                    inside: "/proc".into(),
                    read_only: false,
                    owner: None,
                }];
            },
        ];
        for (index, change) in broken.iter().enumerate() {
            let mut spec = spec();
            change(&mut spec);
            assert!(spec.validate().is_err(), "case {index}");
        }
    }
}
