//! What a runtime can do on this machine, as plain data.

use schemars::JsonSchema;
use serde::Serialize;

/// Facts that callers check before they ask for something.
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
    /// Whether a socket of the host can be mounted into a container; where it cannot, the
    /// supervisor listens inside.
    pub host_sockets: bool,
    /// What is worth knowing before relying on it, in sentences.
    pub notes: Vec<String>,
}

/// Which networks a container can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Networks {
    pub none: bool,
    pub host: bool,
    pub bridge: bool,
}

/// Whether a limit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Enforcement {
    Enforced,
    /// For some of what it is about; `notes` say for what.
    Partly,
    NotEnforced,
}
