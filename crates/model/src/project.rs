//! The stored settings of a project.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    BranchPattern, EnvValue, GitIdentity, HostPattern, NetworkPolicy, RemoteUrl, Scope, Secret,
    env_value,
};

/// The level of autonomy or of reasoning of an agent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Level {
    Off,
    Low,
    Medium,
    High,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        })
    }
}

/// The network of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Network {
    None,
    Host,
    Bridge,
    // Out only through the gate, which checks every connection. Not in the documentation: schemas of enums whose
    // values are described are harder for hosts of tools.
    Policy,
}

/// The form in which a list of tools shows the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ToolStyle {
    Both,
    Unified,
    Split,
}

/// An additional MCP server for the agents of a project.
// Serialization reveals `env`: write it to the store and to agents, never to a result. Not in the
// documentation, which is the description in JSON schemas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct McpServer {
    pub name: String,
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(
        default,
        serialize_with = "env_value::reveal_map",
        deserialize_with = "env_value::parse_env"
    )]
    pub env: BTreeMap<String, EnvValue>,
}

/// The limits of a project's container and of its trees of agents; `None` is the default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProjectLimits {
    pub memory_mb: Option<u32>,
    pub cpus: Option<f64>,
    pub max_processes: Option<u32>,
    #[serde(default)]
    pub disk_mb: Option<u32>,
    pub max_recursion_depth: Option<u32>,
    pub max_agents_per_session: Option<u32>,
    pub max_cost_usd: Option<f64>,
}

/// All settings of a project except its name.
///
/// Serialization reveals `env`: write it to the store, never to a result. It has no JSON schema, so
/// that it cannot become part of an operation's output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProjectSettings {
    pub description: String,
    pub remote_url: Option<RemoteUrl>,
    pub git_credential: Option<String>,
    /// The author of commits in its containers.
    pub git_identity: Option<GitIdentity>,
    /// The branches that may be pushed.
    pub push_branches: Option<Vec<BranchPattern>>,
    pub agent: Option<String>,
    /// The model of its own agent.
    pub model: Option<String>,
    /// The models of agents, by the agent's name.
    pub models: BTreeMap<String, String>,
    pub autonomy: Option<Level>,
    pub reasoning: Option<Level>,
    pub container_type: Option<String>,
    pub network: Option<Network>,
    /// What its containers with the network `policy` may reach, besides what the server allows.
    pub network_policy: Option<NetworkPolicy>,
    /// The `allow` entries of `network_policy` that an admin made.
    pub network_allowed_by_admin: Vec<HostPattern>,
    pub limits: ProjectLimits,
    pub protected_paths: Vec<String>,
    #[serde(serialize_with = "env_value::reveal_map")]
    pub env: BTreeMap<String, EnvValue>,
    pub mcp_servers: Vec<McpServer>,
    pub credential_refs: Vec<String>,
    pub agent_scope: Option<Scope>,
    pub workspace_isolation: bool,
    pub tools_style: Option<ToolStyle>,
}

impl ProjectSettings {
    /// The models of its sessions that choose none, by the name of their agent. `model` is that of the
    /// project's own agent, which is `default_agent` if the project names none.
    pub fn models_by_agent(&self, default_agent: &str) -> BTreeMap<String, String> {
        let mut models = self.models.clone();
        if let Some(model) = &self.model {
            let agent = self.agent.as_deref().unwrap_or(default_agent);
            let own = models.entry(agent.to_owned());
            own.or_insert_with(|| model.clone());
        }
        models
    }

    /// What must not appear in the log of its agents: the secrets among the environment variables of
    /// the container and of the MCP servers.
    pub fn secrets(&self) -> Vec<Secret> {
        let servers = self.mcp_servers.iter().flat_map(|server| &server.env);
        let variables = self.env.iter().chain(servers);
        variables
            .flat_map(|(name, value)| value.secrets(name))
            .collect()
    }
}
