//! A project in results: everything but its secrets.

use std::collections::BTreeMap;

use oubliette_model::{
    BranchPattern, EnvValue, GitIdentity, Level, MIN_SECRET_BYTES, Network, NetworkPolicy,
    ProjectId, Scope, ToolStyle,
};
use oubliette_store::Project;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Engine;

/// A project in full.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProjectView {
    id: ProjectId,
    project_id: ProjectId,
    name: String,
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_url: Option<String>,
    /// The directory on the server's machine that is its default workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    git_credential: Option<String>,
    git_identity: GitIdentity,
    push_branches: Vec<BranchPattern>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    models: BTreeMap<String, String>,
    autonomy: Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Level>,
    container_type: String,
    /// Chosen, or the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    network_policy: Option<NetworkPolicy>,
    memory_mb: u32,
    cpus: f64,
    max_processes: u32,
    /// Absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_mb: Option<u32>,
    protected_paths: Vec<String>,
    /// The names of the environment variables; their values are never shown.
    env_names: Vec<String>,
    /// Those of them whose values are hidden in what agents write.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hidden_env_names: Vec<String>,
    mcp_servers: Vec<McpServerView>,
    credential_refs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_scope: Option<Scope>,
    workspace_isolation: bool,
    max_recursion_depth: u32,
    max_agents_per_session: u32,
    max_cost_usd: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools_style: Option<ToolStyle>,
    /// The limits that have no effect on the server's machine; `oubliette doctor` says why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_enforced: Vec<&'static str>,
    /// Changed settings that a running container does not have yet: `container_stop` stops it, and the
    /// next command or session starts it with them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    restart_needed: Vec<&'static str>,
    /// Settings that do less than they seem to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    created_at: String,
    updated_at: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct McpServerView {
    name: String,
    command: String,
    args: Vec<String>,
    env_names: Vec<String>,
}

impl ProjectView {
    pub(super) fn new(project: Project, engine: &Engine) -> Self {
        let defaults = &engine.settings().limits;
        let rules = &engine.settings().projects;
        let settings = project.settings;
        let hidden = settings
            .env
            .iter()
            .filter(|(name, value)| value.is_hidden(name));
        let hidden_env_names = hidden.map(|(name, _)| name.clone()).collect();
        let containers = engine.containers();
        let warnings = short_secrets(&settings.env)
            .into_iter()
            .chain(containers.missing_policy(&settings))
            .collect();
        let network = containers.known_network(&settings);
        let mcp_server = |server: oubliette_model::McpServer| McpServerView {
            name: server.name,
            command: server.command,
            args: server.args,
            env_names: server.env.into_keys().collect(),
        };
        Self {
            id: project.id,
            project_id: project.id,
            name: project.name.to_string(),
            description: settings.description,
            remote_url: settings.remote_url.map(String::from),
            mount: mount_of(project.id, engine),
            git_credential: settings.git_credential,
            git_identity: settings
                .git_identity
                .unwrap_or_else(|| rules.git_identity.clone()),
            push_branches: settings
                .push_branches
                .unwrap_or_else(|| rules.push_branches.clone()),
            agent: settings.agent,
            model: settings.model,
            models: settings.models,
            autonomy: settings.autonomy.unwrap_or(Level::High),
            reasoning: settings.reasoning,
            container_type: settings.container_type.unwrap_or_else(|| "base".to_owned()),
            network,
            network_policy: settings.network_policy,
            memory_mb: settings.limits.memory_mb.unwrap_or(defaults.memory_mb),
            cpus: settings.limits.cpus.unwrap_or(defaults.cpus),
            max_processes: settings
                .limits
                .max_processes
                .unwrap_or(defaults.max_processes),
            disk_mb: defaults.disk_of(&settings.limits),
            protected_paths: settings.protected_paths,
            env_names: settings.env.into_keys().collect(),
            hidden_env_names,
            mcp_servers: settings.mcp_servers.into_iter().map(mcp_server).collect(),
            credential_refs: settings.credential_refs,
            agent_scope: settings.agent_scope,
            workspace_isolation: settings.workspace_isolation,
            max_recursion_depth: settings
                .limits
                .max_recursion_depth
                .unwrap_or(defaults.max_recursion_depth),
            max_agents_per_session: settings
                .limits
                .max_agents_per_session
                .unwrap_or(defaults.max_agents_per_session),
            max_cost_usd: settings
                .limits
                .max_cost_usd
                .unwrap_or(defaults.max_cost_usd),
            tools_style: settings.tools_style,
            not_enforced: engine.containers().unenforced_limits(),
            restart_needed: Vec::new(),
            warnings,
            created_at: project.created_at.to_string(),
            updated_at: project.updated_at.to_string(),
        }
    }
}

impl ProjectView {
    /// Adds what an update could not apply to containers that are in use.
    pub(super) fn with_restart_needed(mut self, settings: Vec<&'static str>) -> Self {
        if !settings.is_empty() {
            self.warnings.push(format!(
                "the project's container is in use and keeps the old {} until it starts again: end its \
                 sessions and commands, or stop it with `container_stop`; the next command or session \
                 starts it",
                settings.join(", ")
            ));
        }
        self.restart_needed = settings;
        self
    }
}

fn mount_of(project: ProjectId, engine: &Engine) -> Option<String> {
    let mounted = engine.files().mounted_path(project);
    mounted.map(|path| path.display().to_string())
}

/// A warning about variables that look like secrets and are too short to be hidden.
fn short_secrets(env: &BTreeMap<String, EnvValue>) -> Option<String> {
    let short = env
        .iter()
        .filter(|(name, value)| value.is_too_short_to_hide(name));
    let names: Vec<&str> = short.map(|(name, _)| name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "`env`: values of less than {MIN_SECRET_BYTES} bytes are never hidden in what agents write: {}",
            names.join(", ")
        )
    })
}

/// A project in a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ProjectSummary {
    id: ProjectId,
    project_id: ProjectId,
    name: String,
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    /// Chosen, or the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network>,
    /// The directory on the server's machine that is its default workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<String>,
    created_at: String,
    updated_at: String,
}

impl ProjectSummary {
    pub(super) fn new(project: Project, engine: &Engine) -> Self {
        let network = engine.containers().known_network(&project.settings);
        Self {
            id: project.id,
            project_id: project.id,
            name: project.name.to_string(),
            description: project.settings.description,
            agent: project.settings.agent,
            network,
            mount: mount_of(project.id, engine),
            created_at: project.created_at.to_string(),
            updated_at: project.updated_at.to_string(),
        }
    }
}
