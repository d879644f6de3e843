//! The settings of a project as parameters, shared by `project_create` and `project_update`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use oubliette_model::{
    Level, McpServer, Network, ProjectSettings, Scope, Secret, ToolStyle, may_grant, nearest,
    quoted,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::did_you_mean;
use crate::{Actor, Engine, EngineError, Result, agents};

/// An omitted field leaves the setting unchanged.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SettingsParams {
    /// A description of the project.
    description: Option<String>,
    /// The default agent of its sessions; `project_options` lists the agents.
    agent: Option<String>,
    /// The default model of its sessions.
    model: Option<String>,
    /// What agents may do without asking for permission (default `high`: the container confines
    /// them).
    autonomy: Option<Level>,
    /// The reasoning effort of agents.
    reasoning: Option<Level>,
    /// The container type; `project_options` lists them.
    container_type: Option<String>,
    /// The network of the container: `none`, `host` or `bridge`. Project tokens cannot set this.
    network: Option<Network>,
    /// Memory of the container in MB. Project tokens cannot set this.
    memory_mb: Option<u32>,
    /// CPUs of the container. Project tokens cannot set this.
    cpus: Option<f64>,
    /// The maximum number of processes in the container. Project tokens cannot set this.
    max_processes: Option<u32>,
    /// Disk space of the project in MB; `project_options` shows how it is enforced. Project tokens
    /// cannot set this.
    disk_mb: Option<u32>,
    /// Paths relative to the workspace that agents can read but not change.
    protected_paths: Option<Vec<String>>,
    /// Environment variables of the container, `{"NAME": "value"}`. Replaces the previous ones.
    /// Values are never shown.
    env: Option<BTreeMap<String, Secret>>,
    /// Additional MCP servers for the agents, started in the container.
    mcp_servers: Option<Vec<McpServer>>,
    /// The names of credentials that agents of this project may use; `project_options` lists them.
    credential_refs: Option<Vec<String>>,
    /// The scope of the key with which the agent of each session can call Oubliette; not wider than
    /// the scope of your token. Project tokens cannot set this.
    agent_scope: Option<Scope>,
    /// The maximum depth of agents that start agents. Project tokens cannot set this.
    max_recursion_depth: Option<u32>,
    /// The maximum number of sessions in one tree of agents. Project tokens cannot set this.
    max_agents_per_session: Option<u32>,
    /// The cost limit of one tree of agents in US dollars. Project tokens cannot set this.
    max_cost_usd: Option<f64>,
    /// The form in which agents see Oubliette's tools: `both`, `unified` or `split`.
    tools_style: Option<ToolStyle>,
}

impl SettingsParams {
    /// The first given parameter that a project token must not set.
    pub(super) fn first_restricted(&self) -> Option<&'static str> {
        [
            ("network", self.network.is_some()),
            ("memory_mb", self.memory_mb.is_some()),
            ("cpus", self.cpus.is_some()),
            ("max_processes", self.max_processes.is_some()),
            ("disk_mb", self.disk_mb.is_some()),
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

    /// Checks every field, then changes the settings.
    pub(super) fn apply(
        &self,
        engine: &Engine,
        actor: &Actor,
        settings: &mut ProjectSettings,
    ) -> Result<()> {
        self.check(engine, actor)?;
        replace(&mut settings.description, &self.description);
        set(&mut settings.agent, &self.agent);
        set(&mut settings.model, &self.model);
        set(&mut settings.autonomy, &self.autonomy);
        set(&mut settings.reasoning, &self.reasoning);
        set(&mut settings.container_type, &self.container_type);
        set(&mut settings.network, &self.network);
        set(&mut settings.limits.memory_mb, &self.memory_mb);
        set(&mut settings.limits.cpus, &self.cpus);
        set(&mut settings.limits.max_processes, &self.max_processes);
        set(&mut settings.limits.disk_mb, &self.disk_mb);
        replace(&mut settings.protected_paths, &self.protected_paths);
        replace(&mut settings.env, &self.env);
        replace(&mut settings.mcp_servers, &self.mcp_servers);
        replace(&mut settings.credential_refs, &self.credential_refs);
        set(&mut settings.agent_scope, &self.agent_scope);
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
        Ok(())
    }

    fn check(&self, engine: &Engine, actor: &Actor) -> Result<()> {
        let settings = engine.settings();
        check_text("description", self.description.as_deref(), 10_000)?;
        check_text("model", self.model.as_deref(), 200)?;
        let agent_names = agents::names(settings);
        let agents: Vec<&str> = agent_names.iter().map(String::as_str).collect();
        require_known_name("agent", self.agent.as_deref(), &agents)?;
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
        check_range(
            "disk_mb",
            self.disk_mb.map(f64::from),
            16.0,
            f64::from(u32::MAX),
        )?;
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
        check_count("mcp_servers", self.mcp_servers.as_ref().map(Vec::len), 50)?;
        self.mcp_servers
            .as_deref()
            .map_or(Ok(()), check_mcp_servers)?;
        let credentials: Vec<&str> = settings.credentials.keys().map(String::as_str).collect();
        for name in self.credential_refs.iter().flatten() {
            require_known_name("credential_refs", Some(name), &credentials)?;
        }
        match self.agent_scope {
            Some(wanted) if !may_grant(Some(actor.scope), wanted) => {
                Err(EngineError::invalid(format!(
                    "`agent_scope` `{wanted}` is wider than your own scope `{}`",
                    actor.scope
                )))
            }
            _ => Ok(()),
        }
    }
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

fn check_protected_path(path: &str) -> Result<()> {
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

fn check_env_variable(parameter: &str, name: &str, value: &Secret) -> Result<()> {
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
    if value.reveal().len() > 128 * 1024 || value.reveal().contains('\0') {
        return Err(EngineError::invalid(format!(
            "`{parameter}`: the value of `{name}` is longer than 128 KiB or contains NUL"
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
        server
            .env
            .iter()
            .try_for_each(|(key, value)| check_env_variable("mcp_servers.env", key, value))?;
    }
    Ok(())
}
