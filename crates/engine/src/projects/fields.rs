//! The settings of a project as parameters: the same for `project_create` and `project_update`.

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

/// What both operations take. An absent field leaves the setting as it is.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Fields {
    /// What the project is about.
    description: Option<String>,
    /// The agent its sessions use unless they say otherwise; `project_options` lists them.
    agent: Option<String>,
    /// The model its agents use unless a session says otherwise.
    model: Option<String>,
    /// What agents may do without asking; the default is `high`, because the container is the
    /// fence.
    autonomy: Option<Level>,
    /// How hard agents think.
    reasoning: Option<Level>,
    /// The kind of container; `project_options` lists them.
    container_type: Option<String>,
    /// What the container may reach: `none`, `host` or `bridge`. Not by project tokens.
    network: Option<Network>,
    /// Memory of the container in MB. Not by project tokens.
    memory_mb: Option<u32>,
    /// Processors of the container. Not by project tokens.
    cpus: Option<f64>,
    /// Most processes in the container. Not by project tokens.
    max_processes: Option<u32>,
    /// What the project may take on the disk in MB; `project_options` says how far that holds. Not
    /// by project tokens.
    disk_mb: Option<u32>,
    /// Paths in the workspace that agents can read but not change, relative to it.
    protected_paths: Option<Vec<String>>,
    /// Environment variables for the container, `{"NAME": "value"}`. Never shown again; replaces
    /// the ones before.
    env: Option<BTreeMap<String, Secret>>,
    /// MCP servers that the agents get besides Oubliette's own, started in the container.
    mcp_servers: Option<Vec<McpServer>>,
    /// Names of credentials of the server's configuration that agents of this project may use.
    credential_refs: Option<Vec<String>>,
    /// The scope of the key that each session's agent gets to call Oubliette itself; no wider than
    /// that of the token that sets it. Not by project tokens.
    agent_scope: Option<Scope>,
    /// How deep agents may start agents. Not by project tokens.
    max_recursion_depth: Option<u32>,
    /// How many sessions one tree of agents may have. Not by project tokens.
    max_agents_per_session: Option<u32>,
    /// What one tree of agents may cost in US dollars. Not by project tokens.
    max_cost_usd: Option<f64>,
    /// Which names of Oubliette's tools the agents see: `both`, `unified` or `split`.
    tools_style: Option<ToolStyle>,
}

impl Fields {
    /// The first parameter that a project token may not use.
    pub(super) fn restricted(&self) -> Option<&'static str> {
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
        text("description", self.description.as_deref(), 10_000)?;
        text("model", self.model.as_deref(), 200)?;
        let agents = agents::names(settings);
        let agents: Vec<&str> = agents.iter().map(String::as_str).collect();
        known("agent", self.agent.as_deref(), &agents)?;
        let types: Vec<&str> = settings
            .container_types
            .keys()
            .map(String::as_str)
            .collect();
        known("container_type", self.container_type.as_deref(), &types)?;
        range(
            "memory_mb",
            self.memory_mb.map(f64::from),
            64.0,
            4_194_304.0,
        )?;
        range("cpus", self.cpus, 0.01, 1024.0)?;
        range(
            "disk_mb",
            self.disk_mb.map(f64::from),
            16.0,
            f64::from(u32::MAX),
        )?;
        range(
            "max_processes",
            self.max_processes.map(f64::from),
            8.0,
            4_194_304.0,
        )?;
        range(
            "max_recursion_depth",
            self.max_recursion_depth.map(f64::from),
            0.0,
            100.0,
        )?;
        range(
            "max_agents_per_session",
            self.max_agents_per_session.map(f64::from),
            1.0,
            10_000.0,
        )?;
        range("max_cost_usd", self.max_cost_usd, 0.0, 1_000_000.0)?;
        self.protected_paths
            .iter()
            .flatten()
            .try_for_each(|path| relative(path))?;
        self.env
            .iter()
            .flatten()
            .try_for_each(|(name, value)| variable("env", name, value))?;
        count("env", self.env.as_ref().map(BTreeMap::len), 500)?;
        count(
            "protected_paths",
            self.protected_paths.as_ref().map(Vec::len),
            500,
        )?;
        count(
            "credential_refs",
            self.credential_refs.as_ref().map(Vec::len),
            100,
        )?;
        count("mcp_servers", self.mcp_servers.as_ref().map(Vec::len), 50)?;
        self.mcp_servers.as_deref().map_or(Ok(()), servers)?;
        let credentials: Vec<&str> = settings.credentials.keys().map(String::as_str).collect();
        for name in self.credential_refs.iter().flatten() {
            known("credential_refs", Some(name), &credentials)?;
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

fn text(parameter: &str, given: Option<&str>, most: usize) -> Result<()> {
    match given {
        Some(text) if text.len() > most || text.contains('\0') => Err(EngineError::invalid(
            format!("`{parameter}` must have at most {most} bytes and no NUL character"),
        )),
        _ => Ok(()),
    }
}

fn count(parameter: &str, given: Option<usize>, most: usize) -> Result<()> {
    match given {
        Some(given) if given > most => Err(EngineError::invalid(format!(
            "`{parameter}` has {given} entries; at most {most} are taken"
        ))),
        _ => Ok(()),
    }
}

fn range(parameter: &str, given: Option<f64>, least: f64, most: f64) -> Result<()> {
    match given {
        Some(value) if !(least..=most).contains(&value) => Err(EngineError::invalid(format!(
            "`{parameter}` is {value}; it must be {least} to {most}"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a name that is not one of those there are.
pub(super) fn known(parameter: &str, given: Option<&str>, names: &[&str]) -> Result<()> {
    let Some(given) = given else { return Ok(()) };
    if names.contains(&given) {
        return Ok(());
    }
    let hint = match nearest(given, names.iter().copied()) {
        Some(near) => did_you_mean(Some(near)),
        None if names.is_empty() => "; the server's configuration has none".to_owned(),
        None => format!("; there are `{}`", names.join("`, `")),
    };
    Err(EngineError::invalid(format!(
        "`{parameter}`: unknown name {}{hint}",
        quoted(given)
    )))
}

fn relative(path: &str) -> Result<()> {
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

fn variable(parameter: &str, name: &str, value: &Secret) -> Result<()> {
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

fn servers(servers: &[McpServer]) -> Result<()> {
    let mut names = BTreeSet::new();
    for server in servers {
        let name = &server.name;
        let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
        if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) || name == "oubliette" {
            return Err(EngineError::invalid(format!(
                "`mcp_servers`: {} is not a server name; use 1 to 64 letters, digits, `_` or `-`, \
                 and not `oubliette`",
                quoted(name)
            )));
        }
        if !names.insert(name) {
            return Err(EngineError::invalid(format!(
                "`mcp_servers`: the name `{name}` stands there twice"
            )));
        }
        text("mcp_servers.command", Some(&server.command), 4096)?;
        if server.command.is_empty() {
            return Err(EngineError::invalid(format!(
                "`mcp_servers`: `{name}` has no command"
            )));
        }
        server
            .env
            .iter()
            .try_for_each(|(key, value)| variable("mcp_servers.env", key, value))?;
    }
    Ok(())
}
