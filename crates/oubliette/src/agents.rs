//! `oubliette agent`: lists the agents, and installs one into the data directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oubliette_agent::{Agent, Package, catalogue};
use oubliette_model::nearest;
use serde_json::{Value, json};

use crate::config::Config;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal;

/// The Node.js for agents that are scripts; the system's own is often too old.
const NODE_PACKAGE: &str = "node@24.21.0";

pub(crate) fn list(home: &Home, json: bool) -> Result<(), Failure> {
    let config = Config::load(&home.config_file(), std::env::vars())?;
    let mut rows: Vec<Value> = catalogue()
        .iter()
        .map(|agent| {
            let credentials: Vec<&String> = agent.credentials.keys().collect();
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
    let result = json!({ "agents": rows });
    let Value::Object(result) = result else {
        return Ok(());
    };
    terminal::print_line(&if json {
        serde_json::to_string_pretty(&result).unwrap_or_default()
    } else {
        terminal::render(&result)
    });
    Ok(())
}

fn state(home: &Home, agent: &Agent) -> &'static str {
    match agent.package {
        None => "built in",
        Some(package) if program_path(&install_dir(home, &agent.name), package).exists() => {
            "installed"
        }
        Some(_) => "not installed",
    }
}

fn install_dir(home: &Home, name: &str) -> PathBuf {
    home.path().join("agents").join(name)
}

fn program_path(install_dir: &Path, package: Package) -> PathBuf {
    install_dir.join("bin").join(package.program)
}

pub(crate) fn install(home: &Home, name: &str) -> Result<(), Failure> {
    let agents = catalogue();
    let Some(agent) = agents.iter().find(|agent| agent.name == name) else {
        let names: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
        let hint = match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the agents are {}", names.join(", ")),
        };
        return Err(Failure::new(format!("there is no agent `{name}`; {hint}")));
    };
    let Some(package) = agent.package else {
        eprintln!("{name} is built in; there is nothing to install.");
        return Ok(());
    };
    home.prepare()?;
    let failed = |what: &str, error: std::io::Error| Failure::with_cause(what.to_owned(), &error);
    let parent = home.path().join("agents");
    fs::create_dir_all(&parent).map_err(|e| failed("cannot create the directory", e))?;
    // Installed in a temporary directory and renamed, so that containers never see a part of it.
    let staging = tempfile::Builder::new()
        .prefix(".installing-")
        .tempdir_in(&parent)
        .map_err(|e| failed("cannot create a temporary directory", e))?;
    npm_install(staging.path(), package)?;
    assemble(staging.path(), package)
        .map_err(|e| failed("the package is not as expected; nothing was installed", e))?;
    fs::set_permissions(staging.path(), fs::Permissions::from_mode(0o755))
        .map_err(|e| failed("cannot make the directory readable for containers", e))?;
    let target = install_dir(home, name);
    let old = parent.join(format!(".old-{}", std::process::id()));
    let replaced = fs::rename(&target, &old).is_ok();
    fs::rename(staging.keep(), &target)
        .map_err(|e| failed("cannot move the agent to its directory", e))?;
    if replaced {
        let _ = fs::remove_dir_all(old);
    }
    let version = package.version;
    eprintln!(
        "Installed {name} {version} for the containers of {}.",
        home.path().display()
    );
    let kinds: Vec<&str> = agent.credentials.keys().map(String::as_str).collect();
    eprintln!(
        "It signs in with a credential of kind {}; see docs/agents.md for how to configure one.",
        kinds.join(" or ")
    );
    Ok(())
}

fn npm_install(directory: &Path, package: Package) -> Result<(), Failure> {
    let mut npm = Command::new("npm");
    npm.arg("install")
        .arg("--prefix")
        .arg(directory)
        .args(["--no-audit", "--no-fund", "--loglevel=error"])
        .arg(format!("{}@{}", package.npm, package.version))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if package.binary.is_none() {
        npm.arg(NODE_PACKAGE);
    }
    eprintln!("Fetching {} {} with npm …", package.npm, package.version);
    match npm.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(format!(
            "npm could not install {}@{} ({status}); its output is above",
            package.npm, package.version
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::new(
            "npm was not found; install Node.js with npm and try again",
        )),
        Err(error) => Err(Failure::with_cause("cannot run npm", &error)),
    }
}

/// Creates `bin/PROGRAM` from the installed npm package.
fn assemble(directory: &Path, package: Package) -> std::io::Result<()> {
    let bin = directory.join("bin");
    fs::create_dir(&bin)?;
    let target = bin.join(package.program);
    match package.binary {
        Some(file) => {
            let modules = directory.join("node_modules");
            let whole = modules.join(package.npm).join(file).canonicalize()?;
            // Some packages contain a small script instead until their install step has run.
            if fs::metadata(&whole)?.len() < 1 << 20 {
                return Err(std::io::Error::other(format!("{file} is not a program")));
            }
            fs::rename(whole, &target)?;
            fs::remove_dir_all(modules)?;
        }
        None => {
            let script = format!(
                "#!/bin/sh\nhere=$(dirname \"$0\")/..\nexec \"$here/node_modules/node/bin/node\" \
                 \"$here/node_modules/.bin/{}\" \"$@\"\n",
                package.program
            );
            fs::write(&target, script)?;
            fs::metadata(directory.join("node_modules/.bin").join(package.program))?;
        }
    }
    fs::set_permissions(&target, fs::Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(binary: Option<&'static str>) -> Package {
        Package {
            npm: "some-agent",
            version: "1.0.0",
            program: "agent",
            binary,
        }
    }

    #[test]
    fn a_package_with_one_binary_is_reduced_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("node_modules/some-agent/bin");
        fs::create_dir_all(&inside).unwrap();
        fs::write(inside.join("agent"), vec![0; 2 << 20]).unwrap();
        assemble(directory.path(), package(Some("bin/agent"))).unwrap();
        let made = fs::metadata(directory.path().join("bin/agent")).unwrap();
        assert_eq!(
            (made.len(), made.permissions().mode() & 0o777),
            (2 << 20, 0o755)
        );
        assert!(!directory.path().join("node_modules").exists());
    }

    #[test]
    fn a_script_gets_its_own_node() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("node_modules/.bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("agent"), "console.log(1)").unwrap();
        assemble(directory.path(), package(None)).unwrap();
        let made = fs::read_to_string(directory.path().join("bin/agent")).unwrap();
        assert!(made.contains("node_modules/node/bin/node"), "{made}");
    }

    #[test]
    fn a_package_without_its_program_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("node_modules/some-agent/bin");
        fs::create_dir_all(&inside).unwrap();
        fs::write(inside.join("agent"), "#!/bin/sh\necho reinstall me").unwrap();
        assert!(assemble(directory.path(), package(Some("bin/agent"))).is_err());
    }
}
