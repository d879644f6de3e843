//! `oubliette agent`: lists the agents, and installs one into the data directory.

mod install;
mod manifest;
mod progress;
mod start_check;

use std::path::{Path, PathBuf};

use oubliette_agent::{Agent, Package, catalogue};
use oubliette_engine::INSTALLED_AGENTS_DIR;
use oubliette_model::nearest;
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::{self, output};

pub(crate) use install::install;

pub(crate) fn list(home: &Home) -> Result<(), Failure> {
    let config = Config::load(&home.config_file(), std::env::vars())?;
    let mut rows: Vec<Value> = catalogue()
        .iter()
        .map(|agent| {
            let credentials: Vec<&str> = agent.credential_kinds().collect();
            json!({
                "name": agent.name,
                "about": agent.about,
                "state": state(home, agent),
                "version": agent.package.map(|package| package.version),
                "credentials": credentials,
            })
        })
        .collect();
    let known: Vec<String> = catalogue().into_iter().map(|agent| agent.name).collect();
    for name in config.agents.keys().filter(|name| !known.contains(name)) {
        rows.push(
            json!({ "name": name, "about": "defined in oubliette.toml", "state": "configured" }),
        );
    }
    let result = Map::from_iter([("agents".to_owned(), rows.into())]);
    if output::is_json() {
        terminal::print_json(&result);
    } else {
        terminal::print_line(&terminal::render(&result));
    }
    Ok(())
}

/// The names of the agents that can be installed.
pub(crate) fn installable() -> Vec<String> {
    let agents = catalogue().into_iter();
    let with_package = agents.filter(|agent| agent.package.is_some());
    with_package.map(|agent| agent.name).collect()
}

/// Prints the models that an agent offers.
pub(crate) fn models(home: &Home, name: &str) -> Result<(), Failure> {
    let models = oubliette_engine::stored_models(home.path(), name);
    if models.is_empty() {
        let known = catalogue().iter().any(|agent| agent.name == name);
        let configured = Config::load(&home.config_file(), std::env::vars())?.agents;
        if !known && !configured.contains_key(name) {
            return Err(unknown_agent(name));
        }
        return Err(Failure::new(format!(
            "the models of `{name}` are not known yet: it says them when it starts and has signed in. Run \
             `oubliette run --agent {name} 'hello'` once"
        )));
    }
    if output::is_json() {
        terminal::print_json(&json!({ "agent": name, "models": models }));
    } else {
        models
            .iter()
            .for_each(|model| terminal::print_line(&terminal::printable(model)));
    }
    Ok(())
}

pub(crate) fn unknown_agent(name: &str) -> Failure {
    let agents = catalogue();
    let names: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
    let hint = match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the agents are {}", names.join(", ")),
    };
    Failure::new(format!("there is no agent `{name}`; {hint}"))
}

fn state(home: &Home, agent: &Agent) -> &'static str {
    let Some(package) = agent.package else {
        return "built in";
    };
    let directory = install_dir(home, &agent.name);
    if !program_path(&directory, package).exists() {
        "not installed"
    } else if manifest::is_current(&directory, package) {
        "installed"
    } else {
        "outdated"
    }
}

/// The program of an agent as containers see it; none if it is not installed.
pub(crate) fn program_in_container(home: &Home, agent: &Agent) -> Option<String> {
    let Some(package) = agent.package else {
        return agent.argv.first().cloned();
    };
    let program = program_path(&install_dir(home, &agent.name), package);
    program.exists().then(|| {
        format!(
            "{INSTALLED_AGENTS_DIR}/{}/bin/{}",
            agent.name, package.program
        )
    })
}

fn install_dir(home: &Home, name: &str) -> PathBuf {
    home.agents_dir().join(name)
}

fn program_path(install_dir: &Path, package: Package) -> PathBuf {
    install_dir.join("bin").join(package.program)
}
