//! `oubliette agent install`: npm fetches the package that the catalogue pins, and the program is put
//! where containers see it.

use std::fs;
use std::io::{self, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use oubliette_agent::{Agent, Package, catalogue};
use serde_json::json;

use super::{install_dir, manifest, program_path, progress, start_check, unknown_agent};
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal;
use crate::terminal::output::{self, note};

pub(crate) fn install(home: &Home, name: &str) -> Result<(), Failure> {
    let agents = catalogue();
    let Some(agent) = agents.iter().find(|agent| agent.name == name) else {
        return Err(unknown_agent(name));
    };
    let Some(package) = agent.package else {
        if output::is_json() {
            terminal::print_json(&json!({ "agent": name, "state": "built in" }));
        }
        note!("{name} is built in; there is nothing to install.");
        return Ok(());
    };
    home.prepare()?;
    let failed = |what: &str, error: io::Error| Failure::with_cause(what.to_owned(), &error);
    let parent = home.agents_dir();
    fs::create_dir_all(&parent).map_err(|e| failed("cannot create the directory", e))?;
    // Installed in a temporary directory and renamed, so that containers never see a part of it.
    let staging = tempfile::Builder::new()
        .prefix(".installing-")
        .tempdir_in(&parent)
        .map_err(|e| failed("cannot create a temporary directory", e))?;
    npm_install(staging.path(), package)?;
    assemble(staging.path(), package).map_err(|e| {
        let advice = script_advice(package);
        failed(
            &format!("nothing was installed: the package is not as expected{advice}"),
            e,
        )
    })?;
    let models = check_start(staging.path(), agent, package)?;
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
    oubliette_engine::store_models(home.path(), name, &models)
        .map_err(|e| failed("cannot store the models that the agent offers", e))?;
    let version = package.version;
    if output::is_json() {
        terminal::print_json(&json!({
            "agent": name, "state": "installed", "version": version, "directory": target, "models": models,
        }));
    }
    note!(
        "Installed {name} {version} for the containers of {}.",
        home.path().display()
    );
    let kinds: Vec<&str> = agent.credential_kinds().collect();
    note!(
        "It signs in with a credential of kind {}; add one with `oubliette credential add {name} --kind KIND`.",
        kinds.join(" or ")
    );
    Ok(())
}

fn npm_install(directory: &Path, package: Package) -> Result<(), Failure> {
    let failed = |error: &io::Error| Failure::with_cause("cannot run npm", error);
    // Shown at its end, so that it does not mix with the progress.
    let mut messages = tempfile::tempfile().map_err(|error| failed(&error))?;
    let mut npm = Command::new("npm");
    npm.arg("install")
        .arg("--prefix")
        .arg(directory)
        .args(["--no-audit", "--no-fund", "--loglevel=error"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(messages.try_clone().map_err(|error| failed(&error))?);
    fs::write(directory.join(manifest::FILE_NAME), manifest::text(package))
        .map_err(|error| Failure::with_cause("cannot write the npm manifest", &error))?;
    note!("Fetching {} {} with npm …", package.npm, package.version);
    let what = format!("npm fetches {}", package.npm);
    let status = progress::show(&what, Some(directory), || npm.status());
    let _ = messages
        .rewind()
        .and_then(|()| io::copy(&mut messages, &mut io::stderr()));
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(format!(
            "npm could not install {}@{} ({status}); its output is above",
            package.npm, package.version
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::new(
            "npm was not found; install Node.js with npm and try again",
        )),
        Err(error) => Err(failed(&error)),
    }
}

/// Starts the agent once: the models that it offers. Containers run Linux, so another system cannot.
fn check_start(directory: &Path, agent: &Agent, package: Package) -> Result<Vec<String>, Failure> {
    if cfg!(not(target_os = "linux")) {
        return Ok(Vec::new());
    }
    note!("Starting it once …");
    let program = program_path(directory, package);
    let what = format!("{} starts", agent.name);
    let checked = progress::show(&what, None, || start_check::check(&program, agent));
    checked.map_err(|reason| {
        let (name, advice) = (&agent.name, script_advice(package));
        Failure::new(format!(
            "nothing was installed: {name} does not start{advice}: {reason}"
        ))
    })
}

/// What to do when a package's installation script has not run.
fn script_advice(package: Package) -> String {
    let (scripted, _) = manifest::scripted(package);
    format!(
        " (it needs the installation script of `{scripted}`; if npm's setting `ignore-scripts` is on, set \
         npm_config_ignore_scripts=false for this command)"
    )
}

/// The architecture of this machine, as npm's packages call it.
fn npm_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Creates `bin/PROGRAM` from the installed npm package.
fn assemble(directory: &Path, package: Package) -> io::Result<()> {
    let bin = directory.join("bin");
    fs::create_dir(&bin)?;
    let target = bin.join(package.program);
    match package.binary {
        Some(file) => {
            let file = &file.replace("{arch}", npm_architecture());
            let modules = directory.join("node_modules");
            let whole = modules.join(package.npm).join(file).canonicalize()?;
            // Some packages contain a small script instead until their install step has run.
            if fs::metadata(&whole)?.len() < 1 << 20 {
                return Err(io::Error::other(format!("{file} is not a program")));
            }
            match package.unpack_variable {
                None => fs::rename(whole, &target)?,
                // So that it unpacks itself once, now, and not in the home of each session.
                Some(variable) => {
                    fs::rename(whole, directory.join(package.program))?;
                    let script = format!(
                        "#!/bin/sh\nhere=$(dirname \"$0\")/..\n{variable}=$here/unpacked exec \
                         \"$here/{}\" \"$@\"\n",
                        package.program
                    );
                    fs::write(&target, script)?;
                }
            }
            fs::remove_dir_all(modules)?;
        }
        None => {
            let script = format!(
                "#!/bin/sh\nhere=$(dirname \"$0\")/..\nexec \"$here/node_modules/node/bin/node\" \
                 \"$here/node_modules/.bin/{}\" \"$@\"\n",
                package.program
            );
            fs::write(&target, script)?;
            let modules = directory.join("node_modules");
            fs::metadata(modules.join(".bin").join(package.program))?;
            fs::metadata(modules.join("node/bin/node"))
                .map_err(|_| io::Error::other("Node.js is missing"))?;
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
            unpack_variable: None,
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
    fn a_program_that_unpacks_itself_is_told_where() {
        let directory = tempfile::tempdir().unwrap();
        let modules = directory.path().join("node_modules");
        fs::create_dir_all(modules.join("some-agent")).unwrap();
        let platform = modules.join(format!("some-agent-{}", npm_architecture()));
        fs::create_dir_all(&platform).unwrap();
        fs::write(platform.join("agent"), vec![0; 2 << 20]).unwrap();
        let package = Package {
            unpack_variable: Some("AGENT_CACHE"),
            ..package(Some("../some-agent-{arch}/agent"))
        };
        assemble(directory.path(), package).unwrap();
        let made = fs::read_to_string(directory.path().join("bin/agent")).unwrap();
        let line = "AGENT_CACHE=$here/unpacked exec \"$here/agent\" \"$@\"";
        assert!(made.contains(line), "{made}");
        assert!(directory.path().join("agent").exists() && !modules.exists());
    }

    #[test]
    fn a_script_gets_its_own_node() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("node_modules/.bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("agent"), "console.log(1)").unwrap();
        let failed = assemble(directory.path(), package(None)).unwrap_err();
        assert_eq!(failed.to_string(), "Node.js is missing");
        fs::remove_dir_all(directory.path().join("bin")).unwrap();
        let node = directory.path().join("node_modules/node/bin");
        fs::create_dir_all(&node).unwrap();
        fs::write(node.join("node"), "").unwrap();
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
