//! The agents that projects can use: those of the catalogue, changed and extended by the
//! configuration.

use std::path::{Path, PathBuf};

use oubliette_agent::{Agent, catalogue};
use oubliette_model::{nearest, quoted};
use uuid::Uuid;

use crate::error::did_you_mean;
use crate::{AgentCommand, EngineError, Result, Settings};

/// Where containers see the agents that `agent install` has put into the data directory.
pub const INSTALLED_AGENTS_DIR: &str = "/opt/oubliette/agents";

/// Where the models that agents offer are stored, in the data directory.
const MODELS_DIR: &str = "models";

/// Every agent, sorted by name.
pub(crate) fn all(settings: &Settings) -> Vec<Agent> {
    let mut agents = catalogue();
    for (name, configured) in &settings.agents {
        match agents.iter_mut().find(|agent| agent.name == *name) {
            Some(agent) => apply_config(agent, configured),
            None => {
                let mut agent = Agent::from_command(name, Vec::new());
                apply_config(&mut agent, configured);
                agents.push(agent);
            }
        }
    }
    agents.sort_by(|one, other| one.name.cmp(&other.name));
    agents
}

fn apply_config(agent: &mut Agent, config: &AgentCommand) {
    if let Some(command) = &config.command {
        agent.argv = vec![command.clone()];
        agent.argv.extend(config.args.clone());
        agent.package = None;
    } else {
        agent.argv.extend(config.args.clone());
    }
    agent.env.extend(config.env.clone());
    agent.files.extend(config.files.clone());
    agent.credentials.extend(config.credentials.clone());
}

/// The names of all agents.
pub(crate) fn names(settings: &Settings) -> Vec<String> {
    all(settings).into_iter().map(|agent| agent.name).collect()
}

/// The agent with this name.
pub(crate) fn find(settings: &Settings, name: &str) -> Result<Agent> {
    let agents = all(settings);
    if let Some(agent) = agents.iter().find(|agent| agent.name == name) {
        if agent.argv.is_empty() {
            return Err(EngineError::Failed(format!(
                "[agents.{name}] in the configuration has no `command`"
            )));
        }
        return Ok(agent.clone());
    }
    let names: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
    let hint = match nearest(name, names.iter().copied()) {
        Some(near) => did_you_mean(Some(near)),
        None => format!("; there are `{}`", names.join("`, `")),
    };
    Err(EngineError::invalid(format!(
        "there is no agent {}{hint}",
        quoted(name)
    )))
}

/// Whether `agent install` has installed an agent.
pub(crate) fn is_installed(settings: &Settings, agent: &Agent) -> bool {
    agent.package.is_some_and(|package| {
        settings
            .data_dir
            .join("agents")
            .join(&agent.name)
            .join("bin")
            .join(package.program)
            .exists()
    })
}

/// The command line that starts an agent in a container.
pub(crate) fn command_line(settings: &Settings, agent: &Agent) -> Vec<String> {
    let mut argv = agent.argv.clone();
    if let (Some(program), Some(package)) = (argv.first_mut(), agent.package)
        && is_installed(settings, agent)
    {
        *program = format!(
            "{INSTALLED_AGENTS_DIR}/{}/bin/{}",
            agent.name, package.program
        );
    }
    argv
}

/// Stores which models an agent offers, as it said when it was started last.
///
/// # Errors
/// If the file cannot be written.
pub fn store_models(data_dir: &Path, agent: &str, models: &[String]) -> std::io::Result<()> {
    if models.is_empty() || *models == stored_models(data_dir, agent) {
        return Ok(());
    }
    let directory = data_dir.join(MODELS_DIR);
    std::fs::create_dir_all(&directory)?;
    // Renamed, so that a reader never sees a part of it.
    let staged = directory.join(format!(".{}", Uuid::new_v4()));
    std::fs::write(&staged, serde_json::to_vec(models)?)?;
    std::fs::rename(staged, models_file(data_dir, agent))
}

/// The models that an agent offers; empty if it was never started.
pub fn stored_models(data_dir: &Path, agent: &str) -> Vec<String> {
    let text = std::fs::read(models_file(data_dir, agent)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn models_file(data_dir: &Path, agent: &str) -> PathBuf {
    // The name is from the configuration and may have any character.
    let name = agent.replace(['/', '\0'], "_");
    data_dir.join(MODELS_DIR).join(format!("{name}.json"))
}
