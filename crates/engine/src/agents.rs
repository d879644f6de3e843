//! Which agents there are: the catalogue's, as the configuration changes them, and its own.

use oubliette_agent::{Agent, catalogue};
use oubliette_model::{Secret, nearest, quoted};
use oubliette_store::Project;

use crate::error::did_you_mean;
use crate::{AgentCommand, EngineError, Result, Settings};

/// Where containers see what `agent install` has put into the data directory.
pub(crate) const INSTALLED: &str = "/opt/oubliette/agents";

/// Every agent that a project may name, by name.
pub(crate) fn all(settings: &Settings) -> Vec<Agent> {
    let mut agents = catalogue();
    for (name, own) in &settings.agents {
        match agents.iter_mut().find(|agent| agent.name == *name) {
            Some(known) => change(known, own),
            None => {
                let mut agent = Agent::from_command(name, Vec::new());
                change(&mut agent, own);
                agents.push(agent);
            }
        }
    }
    agents.sort_by(|one, other| one.name.cmp(&other.name));
    agents
}

fn change(agent: &mut Agent, own: &AgentCommand) {
    if let Some(command) = &own.command {
        agent.argv = vec![command.clone()];
        agent.argv.extend(own.args.clone());
        agent.package = None;
    } else {
        agent.argv.extend(own.args.clone());
    }
    agent.env.extend(own.env.clone());
    agent.files.extend(own.files.clone());
    agent.credentials.extend(own.credentials.clone());
}

/// The names of all agents.
pub(crate) fn names(settings: &Settings) -> Vec<String> {
    all(settings).into_iter().map(|agent| agent.name).collect()
}

/// The agent of that name.
pub(crate) fn find(settings: &Settings, name: &str) -> Result<Agent> {
    let agents = all(settings);
    if let Some(agent) = agents.iter().find(|agent| agent.name == name) {
        return match agent.argv.is_empty() {
            false => Ok(agent.clone()),
            true => Err(EngineError::Failed(format!(
                "[agents.{name}] of the configuration has no `command`"
            ))),
        };
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

/// The secrets of a project's credentials that an agent takes, each with its variable.
pub(crate) fn secrets(
    settings: &Settings,
    project: &Project,
    agent: &Agent,
) -> Result<Vec<(String, Secret)>> {
    let mut secrets = Vec::new();
    for name in &project.settings.credential_refs {
        let Some(credential) = settings.credentials.get(name) else {
            return Err(EngineError::Failed(format!(
                "the credential {} of the project is not in the server's configuration; add \
                 [credentials.{name}] or change the project's `credential_refs`",
                quoted(name)
            )));
        };
        let Some(variable) = agent.credentials.get(&credential.kind) else {
            continue;
        };
        let secret = credential.read().map_err(|why| {
            EngineError::Failed(format!(
                "the credential {} cannot be used: {why}",
                quoted(name)
            ))
        })?;
        secrets.push((variable.clone(), secret));
    }
    Ok(secrets)
}

/// Whether `agent install` has put it there.
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

/// The program and its arguments, as the container finds them.
pub(crate) fn command_line(settings: &Settings, agent: &Agent) -> Vec<String> {
    let mut argv = agent.argv.clone();
    if let (Some(program), Some(package)) = (argv.first_mut(), agent.package)
        && is_installed(settings, agent)
    {
        *program = format!("{INSTALLED}/{}/bin/{}", agent.name, package.program);
    }
    argv
}
