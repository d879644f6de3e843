//! What a runtime can do on this machine, as plain data.

use oubliette_model::Network;
use schemars::JsonSchema;
use serde::Serialize;

/// Facts that callers check before they request something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Capabilities {
    /// Name of the runtime, as the configuration spells it.
    pub name: &'static str,
    /// Whether containers start from images.
    pub images: bool,
    pub networks: Networks,
    pub memory_limit: Enforcement,
    pub cpu_limit: Enforcement,
    pub process_limit: Enforcement,
    pub disk_limit: Enforcement,
    /// Whether a socket of the host can be mounted into a container. If not, the supervisor listens
    /// in the container and the server connects through the runtime.
    pub host_sockets: bool,
    /// Restrictions and properties, in sentences.
    pub notes: Vec<String>,
}

impl Capabilities {
    /// The limits of a project, by their parameters, that have no effect on this machine. `disk_mb` is
    /// not among them: the engine stops containers that exceed it.
    pub fn unenforced_limits(&self) -> Vec<&'static str> {
        let limits = [
            ("memory_mb", self.memory_limit),
            ("cpus", self.cpu_limit),
            ("max_processes", self.process_limit),
        ];
        let unenforced = limits
            .into_iter()
            .filter(|(_, enforcement)| *enforcement == Enforcement::NotEnforced);
        unenforced.map(|(name, _)| name).collect()
    }
}

/// What a runtime says that has no network `policy`.
pub(crate) const NO_POLICY_NOTE: &str = "There is no network `policy` here, because no socket of this machine can be mounted: projects \
     that choose no network have `bridge`, and no `network_policy` applies to them.";

/// Which networks a container can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Networks {
    pub none: bool,
    pub host: bool,
    pub bridge: bool,
    /// Only through the gate, which checks every connection against `network_policy`.
    pub policy: bool,
}

impl Networks {
    /// The network of containers whose project chooses none: the one that is confined by rules, where there is one.
    pub fn default_network(self) -> Network {
        if self.policy {
            Network::Policy
        } else if self.bridge {
            Network::Bridge
        } else {
            Network::Host
        }
    }
}

/// Whether a limit is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Enforcement {
    Enforced,
    /// Only in part; `notes` say for what.
    Partly,
    NotEnforced,
}
