//! The settings of a project as parameters, shared by `project_create` and `project_update`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use oubliette_model::{
    BranchPattern, EnvValue, GitIdentity, HostPattern, Level, MIN_SECRET_BYTES, McpServer, Network,
    NetworkPolicy, ProjectSettings, Scope, ToolStyle, may_allow_private_addresses, may_grant,
    nearest, quoted,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::did_you_mean;
use crate::{Actor, Engine, EngineError, Result, agents, network};

/// Of all secrets in the environment of a project.
const MAX_ENV_SECRET_BYTES: usize = 256 << 10;

/// Of all settings of a project, as they are stored. Every call that reads the project parses them.
const MAX_SETTINGS_BYTES: usize = 256 << 10;
const MAX_MCP_SERVER_ARGS: usize = 100;
const MAX_MCP_SERVER_ARG_BYTES: usize = 8 << 10;
const MAX_MCP_SERVER_VARIABLES: usize = 100;

/// An omitted field leaves the setting unchanged.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SettingsParams {
    /// Free text.
    description: Option<String>,
    /// Default agent.
    ///
    /// `project_options` lists the agents.
    agent: Option<String>,
    /// Default model of that agent.
    model: Option<String>,
    /// Default models by agent.
    ///
    /// `{"AGENT": "model"}`, for other agents than the project's own. Replaces the previous ones.
    models: Option<BTreeMap<String, String>>,
    /// What agents may do unasked (`high`).
    ///
    /// The container confines them also at `high`.
    autonomy: Option<Level>,
    /// Reasoning effort of agents.
    reasoning: Option<Level>,
    /// Type of container.
    ///
    /// `project_options` lists them.
    container_type: Option<String>,
    /// Container network.
    ///
    /// `policy` (the default where the runtime has it) or `none`; for admins also `host` and `bridge`, which no
    /// policy applies to. Project tokens cannot set this.
    network: Option<Network>,
    /// What the network `policy` allows.
    ///
    /// `{preset: open|strict, presets: [models, git, npm, pypi, crates, go, apt], allow: [host[:port]], deny: […]}`.
    /// Replaces the previous one. Project tokens cannot set this.
    #[schemars(extend("x-unlisted" = true))]
    network_policy: Option<NetworkPolicy>,
    /// Container memory.
    ///
    /// In MB. Project tokens cannot set this.
    memory_mb: Option<u32>,
    /// Container CPUs.
    ///
    /// Project tokens cannot set this.
    cpus: Option<f64>,
    /// Process limit.
    ///
    /// Project tokens cannot set this.
    #[schemars(extend("x-unlisted" = true))]
    max_processes: Option<u32>,
    /// Disk limit; 0: none.
    ///
    /// In MB, for the whole project; `project_options` shows how it is enforced. Project tokens cannot set
    /// this.
    disk_mb: Option<u32>,
    /// Paths agents cannot change.
    ///
    /// Replaces the previous ones. Relative to each workspace, no patterns. One that does not exist becomes an
    /// empty directory. An empty list removes them. A container that is not in use is stopped to apply them;
    /// `restart_needed` names what one in use lacks.
    protected_paths: Option<Vec<String>>,
    /// Variables `{NAME: value}`; replaces all.
    ///
    /// `{"NAME": "value"}` or `{"NAME": {"value": "…", "secret": true}}`.
    ///
    /// Values are never returned. A value that looks like a key, by its name or itself, is also hidden in what
    /// agents write; `secret` decides that.
    #[serde(deserialize_with = "oubliette_model::parse_optional_env")]
    env: Option<BTreeMap<String, EnvValue>>,
    /// MCP servers for agents.
    ///
    /// They are started in the container.
    mcp_servers: Option<Vec<McpServer>>,
    /// Credentials that agents may use.
    ///
    /// `project_options` lists them. Project tokens cannot add names.
    credential_refs: Option<Vec<String>>,
    /// Commit author.
    ///
    /// `Name <address>`; default: the server's.
    #[schemars(extend("x-unlisted" = true))]
    git_identity: Option<GitIdentity>,
    /// Branches that may be pushed.
    ///
    /// Names, or beginnings with `*` (default `oubliette/*`). Project tokens cannot set this.
    push_branches: Option<Vec<BranchPattern>>,
    /// Scope of agents' keys, or `none`.
    ///
    /// With such a key an agent can call Oubliette. Not wider than the scope of your token. Project tokens
    /// cannot set this.
    agent_scope: Option<AgentScope>,
    /// Max depth of agents starting agents.
    ///
    /// Project tokens cannot set this.
    max_recursion_depth: Option<u32>,
    /// Max sessions per tree.
    ///
    /// Project tokens cannot set this.
    max_agents_per_session: Option<u32>,
    /// Max cost per tree.
    ///
    /// In US dollars. Project tokens cannot set this.
    max_cost_usd: Option<f64>,
    /// How agents see Oubliette's tools.
    #[schemars(extend("x-unlisted" = true))]
    tools_style: Option<ToolStyle>,
}

impl SettingsParams {
    /// The first given parameter that a project token must not set.
    pub(super) fn first_restricted(&self) -> Option<&'static str> {
        [
            ("network", self.network.is_some()),
            ("network_policy", self.network_policy.is_some()),
            ("memory_mb", self.memory_mb.is_some()),
            ("cpus", self.cpus.is_some()),
            ("max_processes", self.max_processes.is_some()),
            ("disk_mb", self.disk_mb.is_some()),
            ("push_branches", self.push_branches.is_some()),
            ("agent_scope", self.agent_scope.is_some()),
            ("max_recursion_depth", self.max_recursion_depth.is_some()),
            (
                "max_agents_per_session",
                self.max_agents_per_session.is_some(),
            ),
            ("max_cost_usd", self.max_cost_usd.is_some()),
        ]
        .into_iter()
        .find_map(|(name, given)| given.then_some(name))
    }

    /// The first given parameter by which an agent would loosen what bounds itself.
    pub(super) fn first_bound_of_agents(&self) -> Option<&'static str> {
        [
            ("autonomy", self.autonomy.is_some()),
            ("protected_paths", self.protected_paths.is_some()),
        ]
        .into_iter()
        .find_map(|(name, given)| given.then_some(name))
    }

    /// Whether agents of the project could use a credential that they cannot use now. Project tokens may
    /// only take names away.
    pub(super) fn adds_credentials(&self, settings: &ProjectSettings) -> bool {
        let mut given = self.credential_refs.iter().flatten();
        given.any(|name| !settings.credential_refs.contains(name))
    }

    /// Checks every field, then changes the settings.
    pub(super) fn apply(
        &self,
        engine: &Engine,
        actor: &Actor,
        settings: &mut ProjectSettings,
    ) -> Result<()> {
        self.check(engine, actor)?;
        let bytes_before = stored_bytes(settings)?;
        replace(&mut settings.description, &self.description);
        set(&mut settings.agent, &self.agent);
        set(&mut settings.model, &self.model);
        replace(&mut settings.models, &self.models);
        set(&mut settings.autonomy, &self.autonomy);
        set(&mut settings.reasoning, &self.reasoning);
        set(&mut settings.container_type, &self.container_type);
        if self.network != settings.network {
            network::Network::check_choice(actor, self.network)?;
        }
        set(&mut settings.network, &self.network);
        if let Some(policy) = &self.network_policy {
            set_network_policy(settings, policy, actor);
        }
        set(&mut settings.limits.memory_mb, &self.memory_mb);
        set(&mut settings.limits.cpus, &self.cpus);
        set(&mut settings.limits.max_processes, &self.max_processes);
        set(&mut settings.limits.disk_mb, &self.disk_mb);
        replace(&mut settings.protected_paths, &self.protected_paths);
        replace(&mut settings.env, &self.env);
        replace(&mut settings.mcp_servers, &self.mcp_servers);
        replace(&mut settings.credential_refs, &self.credential_refs);
        set(&mut settings.git_identity, &self.git_identity);
        set(&mut settings.push_branches, &self.push_branches);
        if let Some(AgentScope(scope)) = self.agent_scope {
            settings.agent_scope = scope;
        }
        set(
            &mut settings.limits.max_recursion_depth,
            &self.max_recursion_depth,
        );
        set(
            &mut settings.limits.max_agents_per_session,
            &self.max_agents_per_session,
        );
        set(&mut settings.limits.max_cost_usd, &self.max_cost_usd);
        set(&mut settings.tools_style, &self.tools_style);
        let bytes = stored_bytes(settings)?;
        // Settings of an older version may be larger; they can still be changed.
        if bytes > MAX_SETTINGS_BYTES && bytes > bytes_before {
            return Err(EngineError::invalid(format!(
                "the settings of the project would have {bytes} bytes; the maximum is \
                 {MAX_SETTINGS_BYTES}. Put long values of `env`, `mcp_servers` and `protected_paths` into \
                 files of the project"
            )));
        }
        Ok(())
    }

    /// Every session of the project searches its output for all secrets, so their size is bounded.
    fn check_secret_bytes(&self) -> Result<()> {
        let servers = self.mcp_servers.iter().flatten();
        let variables = servers.flat_map(|server| &server.env);
        let variables = self.env.iter().flatten().chain(variables);
        let secrets = variables.flat_map(|(name, value)| value.secrets(name));
        let bytes: usize = secrets.map(|secret| secret.reveal().len()).sum();
        if bytes > MAX_ENV_SECRET_BYTES {
            return Err(EngineError::invalid(format!(
                "the secrets in `env` and `mcp_servers` have {bytes} bytes; the maximum is \
                 {MAX_ENV_SECRET_BYTES}. Put long ones into files, or mark those that are no secrets \
                 with `\"secret\": false`"
            )));
        }
        Ok(())
    }

    fn check(&self, engine: &Engine, actor: &Actor) -> Result<()> {
        let settings = engine.settings();
        check_text("description", self.description.as_deref(), 10_000)?;
        check_text("model", self.model.as_deref(), 200)?;
        let agent_names = agents::names(settings);
        let agents: Vec<&str> = agent_names.iter().map(String::as_str).collect();
        require_known_name("agent", self.agent.as_deref(), &agents)?;
        for (agent, model) in self.models.iter().flatten() {
            require_known_name("models", Some(agent), &agents)?;
            check_text("models", Some(model), 200)?;
        }
        let types: Vec<&str> = settings
            .container_types
            .keys()
            .map(String::as_str)
            .collect();
        require_known_name("container_type", self.container_type.as_deref(), &types)?;
        check_range(
            "memory_mb",
            self.memory_mb.map(f64::from),
            64.0,
            4_194_304.0,
        )?;
        check_range("cpus", self.cpus, 0.01, 1024.0)?;
        self.network_policy
            .as_ref()
            .map_or(Ok(()), network::Network::check_policy)?;
        check_disk_limit(self.disk_mb)?;
        check_range(
            "max_processes",
            self.max_processes.map(f64::from),
            8.0,
            4_194_304.0,
        )?;
        check_range(
            "max_recursion_depth",
            self.max_recursion_depth.map(f64::from),
            0.0,
            100.0,
        )?;
        check_range(
            "max_agents_per_session",
            self.max_agents_per_session.map(f64::from),
            1.0,
            10_000.0,
        )?;
        check_range("max_cost_usd", self.max_cost_usd, 0.0, 1_000_000.0)?;
        self.protected_paths
            .iter()
            .flatten()
            .try_for_each(|path| check_protected_path(path))?;
        self.env
            .iter()
            .flatten()
            .try_for_each(|(name, value)| check_env_variable("env", name, value))?;
        check_count("env", self.env.as_ref().map(BTreeMap::len), 500)?;
        self.check_secret_bytes()?;
        check_count(
            "protected_paths",
            self.protected_paths.as_ref().map(Vec::len),
            500,
        )?;
        check_count(
            "credential_refs",
            self.credential_refs.as_ref().map(Vec::len),
            100,
        )?;
        check_count(
            "push_branches",
            self.push_branches.as_ref().map(Vec::len),
            100,
        )?;
        check_count("mcp_servers", self.mcp_servers.as_ref().map(Vec::len), 50)?;
        self.mcp_servers
            .as_deref()
            .map_or(Ok(()), check_mcp_servers)?;
        let credentials = engine.credentials().names();
        let credentials: Vec<&str> = credentials.iter().map(String::as_str).collect();
        for name in self.credential_refs.iter().flatten() {
            require_known_name("credential_refs", Some(name), &credentials)?;
        }
        match self.agent_scope {
            Some(AgentScope(Some(wanted))) if !may_grant(Some(actor.scope), wanted) => {
                Err(EngineError::invalid(format!(
                    "`agent_scope` `{wanted}` is wider than your own scope `{}`",
                    actor.scope
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The scope of the agents of a project: a scope, or `none`.
#[derive(Debug, Clone, Copy)]
struct AgentScope(Option<Scope>);

impl<'de> Deserialize<'de> for AgentScope {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "none" {
            return Ok(Self(None));
        }
        let scope = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(Some(scope)))
    }
}

impl JsonSchema for AgentScope {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AgentScope".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

/// The settings that a running container has from its start, by their parameters, and that differ.
pub(super) fn changed_container_settings(
    before: &ProjectSettings,
    after: &ProjectSettings,
) -> Vec<&'static str> {
    [
        (
            "protected_paths",
            before.protected_paths != after.protected_paths,
        ),
        (
            "container_type",
            before.container_type != after.container_type,
        ),
        ("network", before.network != after.network),
        (
            "memory_mb",
            before.limits.memory_mb != after.limits.memory_mb,
        ),
        ("cpus", before.limits.cpus != after.limits.cpus),
        (
            "max_processes",
            before.limits.max_processes != after.limits.max_processes,
        ),
    ]
    .into_iter()
    .filter_map(|(name, is_changed)| is_changed.then_some(name))
    .collect()
}

/// Replaces the policy. Entries that an admin made stay an admin's when others keep them.
fn set_network_policy(settings: &mut ProjectSettings, policy: &NetworkPolicy, actor: &Actor) {
    let by_admin = may_allow_private_addresses(actor.scope, actor.is_agent());
    let before = std::mem::take(&mut settings.network_allowed_by_admin);
    let is_admins = |pattern: &&HostPattern| by_admin || before.contains(pattern);
    settings.network_allowed_by_admin = policy.allow.iter().filter(is_admins).cloned().collect();
    settings.network_policy = Some(policy.clone());
}

fn stored_bytes(settings: &ProjectSettings) -> Result<usize> {
    let text = serde_json::to_vec(settings).map_err(EngineError::fault)?;
    Ok(text.len())
}

fn set<T: Clone>(setting: &mut Option<T>, given: &Option<T>) {
    if given.is_some() {
        setting.clone_from(given);
    }
}

fn replace<T: Clone>(setting: &mut T, given: &Option<T>) {
    if let Some(given) = given {
        setting.clone_from(given);
    }
}

fn check_text(parameter: &str, given: Option<&str>, max: usize) -> Result<()> {
    match given {
        Some(text) if text.len() > max || text.contains('\0') => Err(EngineError::invalid(
            format!("`{parameter}` must have at most {max} bytes and no NUL character"),
        )),
        _ => Ok(()),
    }
}

fn check_count(parameter: &str, given: Option<usize>, max: usize) -> Result<()> {
    match given {
        Some(given) if given > max => Err(EngineError::invalid(format!(
            "`{parameter}` has {given} entries; the maximum is {max}"
        ))),
        _ => Ok(()),
    }
}

fn check_range(parameter: &str, given: Option<f64>, min: f64, max: f64) -> Result<()> {
    match given {
        Some(value) if !(min..=max).contains(&value) => Err(EngineError::invalid(format!(
            "`{parameter}` is {value}; it must be {min} to {max}"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a name that is not in `names`.
pub(super) fn require_known_name(
    parameter: &str,
    given: Option<&str>,
    names: &[&str],
) -> Result<()> {
    let Some(given) = given else { return Ok(()) };
    if names.contains(&given) {
        return Ok(());
    }
    let hint = match nearest(given, names.iter().copied()) {
        Some(near) => did_you_mean(Some(near)),
        None if names.is_empty() => "; the server's configuration defines none".to_owned(),
        None => format!("; use one of `{}`", names.join("`, `")),
    };
    Err(EngineError::invalid(format!(
        "`{parameter}`: unknown name {}{hint}",
        quoted(given)
    )))
}

/// The smallest `disk_mb` of a project that is limited.
const MIN_DISK_MB: u32 = 16;

fn check_disk_limit(given: Option<u32>) -> Result<()> {
    match given {
        Some(1..MIN_DISK_MB) => Err(EngineError::invalid(format!(
            "`disk_mb` must be at least {MIN_DISK_MB}, or 0 for no limit"
        ))),
        _ => Ok(()),
    }
}

fn check_protected_path(path: &str) -> Result<()> {
    // Names of files may have these characters, but who writes them here means something else.
    if path.contains(['*', '?', ',']) {
        return Err(EngineError::invalid(format!(
            "`protected_paths`: {} looks like a pattern or a list; name each file or directory by itself, \
             without `*`, `?` and `,`",
            quoted(path)
        )));
    }
    let inside = !path.is_empty()
        && path.len() <= 4096
        && !path.contains('\0')
        && Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if inside {
        return Ok(());
    }
    Err(EngineError::invalid(format!(
        "`protected_paths`: {} must be a path inside the workspace, relative to it, without `..`",
        quoted(path)
    )))
}

/// Of one environment variable.
const MAX_ENV_VALUE_BYTES: usize = 128 * 1024;

fn check_env_variable(parameter: &str, name: &str, value: &EnvValue) -> Result<()> {
    let valid = !name.is_empty()
        && name.len() <= 200
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
    if !valid {
        return Err(EngineError::invalid(format!(
            "`{parameter}`: {} is not the name of an environment variable",
            quoted(name)
        )));
    }
    if value.reveal().len() > MAX_ENV_VALUE_BYTES {
        return Err(EngineError::invalid(format!(
            "`{parameter}`: the value of `{name}` is longer than {} KiB",
            MAX_ENV_VALUE_BYTES / 1024
        )));
    }
    if value.reveal().contains('\0') {
        return Err(EngineError::invalid(format!(
            "`{parameter}`: the value of `{name}` contains a NUL character"
        )));
    }
    if value.is_too_short() {
        return Err(EngineError::invalid(format!(
            "`{parameter}`: the value of `{name}` is marked as secret, but values of less than \
             {MIN_SECRET_BYTES} bytes cannot be hidden; make it longer or omit the mark"
        )));
    }
    Ok(())
}

fn check_mcp_servers(servers: &[McpServer]) -> Result<()> {
    let mut names = BTreeSet::new();
    for server in servers {
        let name = &server.name;
        let is_allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
        if name.is_empty()
            || name.len() > 64
            || !name.bytes().all(is_allowed)
            || name == "oubliette"
        {
            return Err(EngineError::invalid(format!(
                "`mcp_servers`: {} is not a server name; use 1 to 64 letters, digits, `_` or `-`, \
                 and not `oubliette`",
                quoted(name)
            )));
        }
        if !names.insert(name) {
            return Err(EngineError::invalid(format!(
                "`mcp_servers`: duplicate name `{name}`"
            )));
        }
        check_text("mcp_servers.command", Some(&server.command), 4096)?;
        if server.command.is_empty() {
            return Err(EngineError::invalid(format!(
                "`mcp_servers`: `{name}` has no command"
            )));
        }
        check_count(
            "mcp_servers.args",
            Some(server.args.len()),
            MAX_MCP_SERVER_ARGS,
        )?;
        for arg in &server.args {
            check_text("mcp_servers.args", Some(arg), MAX_MCP_SERVER_ARG_BYTES)?;
        }
        check_count(
            "mcp_servers.env",
            Some(server.env.len()),
            MAX_MCP_SERVER_VARIABLES,
        )?;
        server
            .env
            .iter()
            .try_for_each(|(key, value)| check_env_variable("mcp_servers.env", key, value))?;
    }
    Ok(())
}
